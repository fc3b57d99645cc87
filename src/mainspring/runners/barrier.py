"""A mark in a queue: once it has passed, everything posted before it has been started.

To the queue and to the counters it is a shell, a task that somebody has claimed already: it is not counted, not
dropped and not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.runners.task import Task, TracedTask
from mainspring.runners.task_queue import stamp_for
from mainspring.runners.traits import DEFAULT_TRAITS

if TYPE_CHECKING:
    from mainspring.runners.rest import Rest
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.worker import Worker


class Barrier(TracedTask):
    """Tells `rest` when it has passed, and keeps what `look` sees at that moment."""

    __slots__ = ("_look", "_rest", "is_passed", "running")

    def __init__(
        self,
        runner: TaskRunner,
        rest: Rest,
        priority: int,
        look: Callable[[], list[tuple[Worker, Task]]] | None = None,
    ) -> None:
        super().__init__()
        self.function = None
        self.traits = DEFAULT_TRAITS
        self.priority = priority
        self.queued_at = stamp_for(priority, runner.services.clock.monotonic_ns)
        self.queued = True
        self._rest = rest
        self._look = look
        self.running: list[tuple[Worker, Task]] = []
        self.is_passed = False

    def run_on(self, worker: Worker) -> bool:
        if self._look is not None:
            self.running = self._look()
        self.is_passed = True
        self._rest.announce()
        return False
