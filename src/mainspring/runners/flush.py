"""What a runner has in hand at one moment, so that somebody can wait until exactly that has ended.

A task that was posted before the moment is in a queue, or a worker has taken it and not begun with it, or it runs,
or it has ended: looking in this order misses none. A task that has ended holds no function any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.runners.worker import Worker

if TYPE_CHECKING:
    from mainspring.runners.barrier import Barrier
    from mainspring.runners.runner import TaskRunner


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
