"""Runners that own threads: the base class of the pool, and the single-thread runner.

A single-thread runner runs all tasks in strict order on the same thread, for libraries that require that.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.runners.flush import EarlierTasks
from mainspring.runners.idle_condition import IdleCondition
from mainspring.runners.runner import TaskRunner
from mainspring.runners.services import Services
from mainspring.runners.task import DelayedTask, Priority, Task, TaskTraits
from mainspring.runners.task_queue import FifoTaskQueue, TaskQueue
from mainspring.runners.thread_group import TaskScheduler, ThreadGroup
from mainspring.runners.worker import WorkerThread, current_worker


class GroupRunner(TaskRunner):
    """A runner with a scheduler that orders its tasks and a thread group that runs them."""

    __slots__ = ("_group", "_scheduler")

    def __init__(
        self,
        services: Services,
        queue: TaskQueue,
        *,
        size: int,
        max_size: int,
        idle_timeout_ns: int,
        name: str,
        capacity: int | None,
        traits: TaskTraits | None,
        metadata: dict[str, object] | None,
    ) -> None:
        super().__init__(services, name=name, capacity=capacity, traits=traits, metadata=metadata)
        self._scheduler = TaskScheduler(queue)
        self._group = ThreadGroup(
            self._scheduler,
            self,
            size=size,
            max_size=max_size,
            idle_timeout_ns=idle_timeout_ns,
            delays=services.delays,
        )
        self._append = queue.appender(Priority.USER_VISIBLE)
        self._wakeable = self._scheduler.idle

    def shares_threads_with(self, worker: WorkerThread) -> bool:
        return worker.group is self._group

    def _push(self, task: DelayedTask) -> None:
        if task.priority == Priority.USER_VISIBLE:
            self._append(task)
        else:
            self._scheduler.ready.push(task, task.priority)

    def _wake_worker(self) -> None:
        self._scheduler.wake_one()

    def _waiting(self) -> int:
        return max(0, len(self._scheduler.ready) - self._tombstones)

    def _is_full(self, room: int) -> bool:
        # The ready queue also holds sequences, which need no capacity: count again without them before refusing.
        return super()._is_full(room) and sum(task.is_live() for task in self.queued_tasks()) >= room

    def peek_traits(self) -> TaskTraits | None:
        return self._scheduler.ready.peek_traits()

    def _remove_tombstones(self) -> int:
        return self._scheduler.ready.compact()

    def queued_tasks(self) -> list[Task]:
        return [entry for entry in self._scheduler.ready.entries() if isinstance(entry, Task)]

    def running_tasks(self) -> list[tuple[WorkerThread, Task]]:
        return [(worker, task) for worker in self._group.workers() if (task := worker.task) is not None]

    def totals(self) -> tuple[int, int]:
        return self._group.totals()

    @property
    def idle_condition(self) -> IdleCondition:
        return self._group.idle_condition

    def is_quiet(self, is_resting: Callable[[WorkerThread], bool]) -> bool:
        return self._group.is_idle(is_resting)

    def is_over(self) -> bool:
        """Return whether the runner is closed and its threads have ended."""
        return self.is_closed and not self._group.workers()

    def activity(self) -> object:
        """Return a value that changes whenever one of the runner's threads was woken."""
        return [(worker, worker.wakes) for worker in self._group.workers()]

    def runs_tasks_in_current_sequence(self) -> bool:
        worker = current_worker()
        return worker is not None and worker.task is not None and worker.runner is self

    def wait_until_ended(self, earlier: EarlierTasks, deadline: int | None) -> bool:
        return self._group.wait_until(earlier.have_tasks_ended, deadline)

    def serving_workers(self) -> list[WorkerThread]:
        return self._group.workers()

    def _worker_count(self) -> int:
        return len(self._group.workers())

    def finish_closing(self) -> None:
        super().finish_closing()
        self._group.stop()
        self._group.join()


class SingleThreadRunner(GroupRunner):
    """A runner with one thread of its own. `pool.single_thread()` makes one."""

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        capacity: int | None,
        traits: TaskTraits | None,
        metadata: dict[str, object] | None,
    ) -> None:
        super().__init__(
            services,
            FifoTaskQueue(),
            size=1,
            max_size=1,
            idle_timeout_ns=0,
            name=name,
            capacity=capacity,
            traits=traits,
            metadata=metadata,
        )
        self._group.start()
        self._open_fast_path()
