"""Waits until all tasks have ended that a runner had at one moment.

A task that was posted before the moment is in a queue, or a worker has taken it and not begun it, or it runs, or
it has ended: looking in this order misses none. A barrier is a mark in a queue: once it has passed, everything
posted before it has been started. To the queue and to the counters it is a task that was claimed already: it is
not counted, not dropped and not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mainspring.runners.task import Task, TracedTask
from mainspring.runners.task_queue import stamp_for
from mainspring.runners.traits import DEFAULT_TRAITS
from mainspring.runners.worker import Worker

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


class Moment(NamedTuple):
    """A worker between two tasks, and how far it had come."""

    worker: Worker
    wakes: int
    ended: int

    @classmethod
    def of(cls, worker: Worker) -> Moment:
        return cls(worker, worker.wakes, worker.completed + worker.failed)

    def has_passed(self) -> bool:
        """Answer whether the worker has done what it may have had in hand, or had nothing."""
        worker = self.worker
        return worker.parked or worker.wakes != self.wakes or worker.completed + worker.failed != self.ended


class Earlier:
    """Everything that was posted to a runner before this was made."""

    def __init__(self, runner: TaskRunner) -> None:
        self._tasks = runner.all_queued_tasks()
        moments = [Moment.of(worker) for worker in runner.serving_workers()]
        self._moments = [moment for moment in moments if moment.worker.task is None]
        running = runner.running_tasks()
        self._tasks += [task for worker, task in running if not worker.is_stand_in]
        self._coroutines = [(worker, task) for worker, task in running if worker.is_stand_in]

    def include(self, barriers: list[Barrier]) -> None:
        """Add the coroutines that were running when the barriers passed: their tasks have returned before."""
        self._coroutines += [pair for barrier in barriers for pair in barrier.running if pair[0].is_stand_in]

    def have_tasks_ended(self) -> bool:
        """Answer whether all tasks have ended that run on threads."""
        tasks = self._tasks
        while tasks and tasks[-1].function is None:
            tasks.pop()  # so that a long list is gone through once, however often somebody asks
        return not tasks and all(moment.has_passed() for moment in self._moments)

    def have_coroutines_ended(self, runner: TaskRunner) -> bool:
        """Answer whether all coroutines have ended that run on the loop of `runner`."""
        return all(worker.task is not task for worker, task in self._coroutines if worker.home is runner)
