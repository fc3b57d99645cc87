"""A mark in a queue: once it has passed, everything posted before it has been started.

To the queue and to the counters it is a shell, a task that somebody has claimed already: it is not counted, not
dropped and not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.runners.task import TracedTask
from mainspring.runners.task_queue import stamp_for
from mainspring.runners.traits import DEFAULT_TRAITS

if TYPE_CHECKING:
    from mainspring.runners.rest import Rest
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.worker import Worker


class Barrier(TracedTask):
    """Tells `rest` when it has passed."""

    __slots__ = ("_rest", "is_passed")

    def __init__(self, runner: TaskRunner, rest: Rest, priority: int) -> None:
        super().__init__()
        self.function = None
        self.traits = DEFAULT_TRAITS
        self.priority = priority
        self.queued_at = stamp_for(priority, runner.services.clock.monotonic_ns)
        self.queued = True
        self._rest = rest
        self.is_passed = False

    def run_on(self, worker: Worker) -> bool:
        self.is_passed = True
        self._rest.announce()
        return False
