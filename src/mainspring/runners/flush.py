"""Flushing: waits until all tasks that a runner had at one moment have ended.

A task that was posted before that moment is in a queue, or a worker has taken but not started it, or it runs, or
it has ended: checking in this order misses none. A barrier is a marker in a queue: once a worker has popped it,
workers have taken everything posted before it. The queue and the counters treat a barrier as a claimed task: it is
not counted, not dropped and not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mainspring.runners.task import DEFAULT_TRAITS, Task, TracedTask, stamp_for
from mainspring.runners.worker import WorkerThread

if TYPE_CHECKING:
    from mainspring.runners.idle_condition import IdleCondition
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.worker import WorkerThread


class FlushBarrier(TracedTask):
    """A marker in a queue of tasks. The worker that pops it sets `is_passed` and wakes the waiter.

    With `list_running`, that worker first stores the tasks that run at this moment in `running`.
    """

    __slots__ = ("_idle_condition", "_list_running", "is_passed", "running")

    def __init__(
        self,
        runner: TaskRunner,
        idle_condition: IdleCondition,
        priority: int,
        list_running: Callable[[], list[tuple[WorkerThread, Task]]] | None = None,
    ) -> None:
        super().__init__()
        self.function = None
        self.traits = DEFAULT_TRAITS
        self.priority = priority
        self.queued_at = stamp_for(priority, runner.services.clock.monotonic_ns)
        self.queued = True
        self._idle_condition = idle_condition
        self._list_running = list_running
        self.running: list[tuple[WorkerThread, Task]] = []
        self.is_passed = False

    def is_tombstone(self) -> bool:
        return False  # it must stay in its queue until a worker pops it

    def run_on(self, worker: WorkerThread) -> bool:
        if self._list_running is not None:
            self.running = self._list_running()
        self.is_passed = True
        self._idle_condition.announce()
        return False


class WorkerSnapshot(NamedTuple):
    """The counters of a pool thread at one moment. Later counters that differ show that its task has ended."""

    worker: WorkerThread
    wakes: int
    ended: int

    @classmethod
    def of(cls, worker: WorkerThread) -> WorkerSnapshot:
        return cls(worker, worker.wakes, worker.completed + worker.failed)

    def has_passed(self) -> bool:
        """Return whether the task that the worker had at that moment, if any, has ended."""
        worker = self.worker
        return worker.parked or worker.wakes != self.wakes or worker.completed + worker.failed != self.ended


class EarlierTasks:
    """The tasks that a runner had when this object was created. `flush` waits for them."""

    def __init__(self, runner: TaskRunner) -> None:
        self._tasks = runner.all_queued_tasks()
        snapshots = [WorkerSnapshot.of(worker) for worker in runner.serving_workers()]
        self._snapshots = [snapshot for snapshot in snapshots if snapshot.worker.task is None]
        running = runner.running_tasks()
        self._tasks += [task for worker, task in running if not worker.is_stand_in]
        self._coroutines = [(worker, task) for worker, task in running if worker.is_stand_in]

    def include(self, barriers: list[FlushBarrier]) -> None:
        """Add the coroutines that were running when a worker popped the barriers (markers in the queues).

        The tasks that began these coroutines had returned.
        """
        self._coroutines += [pair for barrier in barriers for pair in barrier.running if pair[0].is_stand_in]

    def have_tasks_ended(self) -> bool:
        """Return whether all earlier tasks that run on threads have ended; earlier coroutines do not count."""
        tasks = self._tasks
        while tasks and tasks[-1].function is None:
            tasks.pop()  # drops ended tasks, so that all calls together go through a long list once
        return not tasks and all(snapshot.has_passed() for snapshot in self._snapshots)

    def have_coroutines_ended(self, runner: TaskRunner) -> bool:
        """Return whether all earlier coroutines on the loop of `runner` have ended."""
        return all(worker.task is not task for worker, task in self._coroutines if worker.home is runner)
