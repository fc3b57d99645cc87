"""Sequenced and parallel runners: task queues that the workers of a pool serve in slices.

A sequenced runner is one logical thread: its tasks run in strict order, one at a time, on any worker, so state
that only these tasks use needs no lock. A parallel runner is a bounded part of a pool: its tasks start in order
and run concurrently, at most `limit` at once.

A pooled runner has one token for each worker that may serve it. `post` appends a task; if a token is free, it
takes the token and puts the runner into the ready queue, with the priority of its head task. A worker runs a slice
of at most `SLICE` tasks. If other work is ready then, the worker puts the runner back into the ready queue, so
that no runner starves another. If no task is left, it returns the token.

Invariants
- A token is in the runner, or in the ready queue, or with a worker. Taking it is one atomic `list.pop`.
- No wake-up is lost: a producer appends its task and then checks for a token; a worker returns the token and
  then checks for tasks. The second of the two sees what the first has done.
- With one token, tasks run strictly in order, one at a time, and each sees the effects of the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.runners.flush import EarlierTasks
from mainspring.runners.idle_condition import IdleCondition
from mainspring.runners.runner import TaskRunner
from mainspring.runners.task import DelayedTask, Priority, Task, TaskTraits
from mainspring.runners.task_queue import compact_lane, first_traits
from mainspring.runners.worker import WorkerThread, current_worker

if TYPE_CHECKING:
    from mainspring.runners.services import Services
    from mainspring.runners.thread_group import TaskScheduler, ThreadGroup


SLICE = 4
_SLICE = range(SLICE)


class PooledRunner(TaskRunner):
    """A queue of tasks that at most `limit` workers of a thread group serve at once."""

    __slots__ = (
        "_append_ready",
        "_completed",
        "_failed",
        "_group",
        "_has_priorities",
        "_idle",
        "_idle_condition",
        "_lanes",
        "_limit",
        "_scheduler",
        "_tasks",
        "_tokens",
    )

    def __init__(
        self,
        services: Services,
        scheduler: TaskScheduler,
        group: ThreadGroup,
        *,
        limit: int,
        name: str,
        capacity: int | None,
        traits: TaskTraits | None,
        metadata: dict[str, object] | None,
    ) -> None:
        super().__init__(services, name=name, capacity=capacity, traits=traits, metadata=metadata)
        self._scheduler = scheduler
        self._group = group
        self._limit = limit
        self._tasks: deque[Task] = deque()
        self._append = self._tasks.append
        self._lanes = scheduler.ready.lanes
        self._append_ready = scheduler.ready.appender(Priority.USER_VISIBLE)
        self._idle = scheduler.idle
        self._tokens = [None] * limit
        self._wakeable = self._tokens
        self._has_priorities = False  # the first task with another priority than USER_VISIBLE sets it
        self._completed = 0
        self._failed = 0
        self._idle_condition: IdleCondition | None = None  # created when a thread waits for the first time
        self._open_fast_path()

    # -- taking and returning a token

    def shares_threads_with(self, worker: WorkerThread) -> bool:
        return worker.group is self._group

    def _wake_worker(self) -> None:
        try:
            self._tokens.pop()
        except IndexError:
            return
        except BaseException:  # a signal handler raised right after the pop, which took the token
            self._make_ready()
            raise
        self._make_ready()

    def _make_ready(self) -> None:
        if self._has_priorities:
            self._scheduler.schedule(self, self._head_priority())
            return
        try:
            self._append_ready(self)
        finally:
            if self._idle:
                self._scheduler.wake_one()

    def _head_priority(self) -> int:
        try:
            return self._tasks[0].priority
        except IndexError:
            return Priority.USER_VISIBLE

    @property
    def runs_made(self) -> int:
        """The number of tasks that this runner has run.

        If it has changed, the ready queue measures anew how long its tasks have waited, so that none waits for
        ever.
        """
        return self._completed + self._failed

    @property
    def queued_at(self) -> int:
        """The time at which the first queued task was queued; 0 if unknown, which counts as long ago."""
        try:
            return self._tasks[0].queued_at or 0
        except IndexError:
            return 0

    def run_on(self, worker: WorkerThread) -> None:
        """Run a few tasks of this runner (a slice) on a worker of the pool; a sequence runs further ones if
        nothing else is ready.

        Then put the runner into the ready queue again, or, if no task is left, return the token, which allows one
        worker to serve the runner.
        """
        worker.runner = self
        worker.completed_before_slice = worker.completed
        worker.failed_before_slice = worker.failed
        tasks = self._tasks
        if self._has_priorities or self._limit > 1:
            self._run_slice_by_priority(worker)
        else:
            urgent, visible, background = self._lanes
            take = tasks.popleft
            try:
                while True:
                    for _ in _SLICE:
                        if not take().run_on(worker):
                            self.tombstone_popped()
                    if visible or urgent or background or self._group.has_requests or self._has_priorities:
                        break  # if no other work is ready, continue without going through the ready queue
            except IndexError:
                pass  # the queue is empty; `run_on` of a task does not raise IndexError
        self._count(worker)
        # last, because a thread that sees no serving worker must see all tasks counted
        worker.runner = worker.home
        if tasks:
            self._make_ready()
        else:
            self._go_idle()

    def _run_slice_by_priority(self, worker: WorkerThread) -> None:
        """Run a few tasks (a slice).

        End early if the next task is less urgent, or the thread group needs the worker.
        """
        priority = self._head_priority()
        for _ in _SLICE:
            try:
                task = self._tasks.popleft()
            except IndexError:
                return
            if not task.run_on(worker):
                self.tombstone_popped()
            if self._head_priority() < priority or self._group.has_requests:
                return

    def _go_idle(self) -> None:
        self._tokens.append(None)
        if self._tasks:
            self._wake_worker()
        if self._idle_condition is not None:
            self._idle_condition.announce()

    def _count(self, worker: WorkerThread) -> None:
        completed, failed = worker.completed, worker.failed
        self._completed += completed - worker.completed_before_slice
        self._failed += failed - worker.failed_before_slice
        worker.completed_before_slice, worker.failed_before_slice = completed, failed

    # -- the interface of a runner

    def _push(self, task: DelayedTask) -> None:
        if task.priority != Priority.USER_VISIBLE:
            self._has_priorities = True
        self._tasks.append(task)

    def _waiting(self) -> int:
        return max(0, len(self._tasks) - self._tombstones)

    def waiting(self) -> int:
        """Return the number of tasks in this runner's queue, without canceled ones."""
        return self._waiting()

    def is_unserved(self) -> bool:
        """Return whether no task is queued and no worker serves this runner."""
        return not self._tasks and len(self._tokens) == self._limit

    def serving_workers(self) -> list[WorkerThread]:
        return [worker for worker in self._group.workers() if worker.runner is self]

    def queued_tasks(self) -> list[Task]:
        return list(self._tasks.copy())

    def peek_traits(self) -> TaskTraits | None:
        return first_traits(self._tasks)

    def is_tombstone(self) -> bool:
        """Return False: the ready queue must not drop a runner as it drops canceled tasks, because the right of a
        worker to serve the runner (its token) would be lost.
        """
        return False

    def _remove_tombstones(self) -> int:
        return compact_lane(self._tasks)

    def is_live(self) -> bool:
        """Return whether the queue has a task that can still run."""
        return any(task.is_live() for task in self._tasks.copy())

    def running_tasks(self) -> list[tuple[WorkerThread, Task]]:
        return [(worker, task) for worker in self.serving_workers() if (task := worker.task) is not None]

    def totals(self) -> tuple[int, int]:
        completed, failed = self._completed, self._failed
        for worker in self.serving_workers():
            completed += worker.completed - worker.completed_before_slice
            failed += worker.failed - worker.failed_before_slice
        return completed, failed

    @property
    def idle_condition(self) -> IdleCondition:
        with self._lock:
            if self._idle_condition is None:
                self._idle_condition = IdleCondition(self.services.clock)
            return self._idle_condition

    def is_quiet(self, is_resting: Callable[[WorkerThread], bool]) -> bool:
        # Queue before workers: a worker sets `runner` before it takes a task from the queue.
        is_live = self.is_live()
        mine = self.serving_workers()
        if not all(is_resting(worker) for worker in mine):
            return False
        # A task that called shutdown keeps the tasks behind it from running: shutdown does not wait for them.
        return not is_live or (len(mine) == self._limit and all(worker.is_shutting_down for worker in mine))

    def runs_tasks_in_current_sequence(self) -> bool:
        worker = current_worker()
        return worker is not None and worker.runner is self

    @property
    def width(self) -> int:
        return self._limit

    def _worker_count(self) -> int:
        return self._limit

    def wait_until_ended(self, earlier: EarlierTasks, deadline: int | None) -> bool:
        return self._group.wait_until(earlier.have_tasks_ended, deadline)


class SequencedRunner(PooledRunner):
    """A runner that runs its tasks in strict order, one at a time. `pool.sequenced()` makes one."""

    __slots__ = ()


class ParallelRunner(PooledRunner):
    """A runner whose tasks run concurrently, at most `limit` at once. `pool.parallel()` makes one."""

    __slots__ = ()

    @property
    def is_exclusive(self) -> bool:
        return self._limit == 1

    def may_run_inline(self, worker: WorkerThread) -> bool:
        # The inline task runs in place of the waiting one, so the limit holds.
        return worker.runner is self

    def _count(self, worker: WorkerThread) -> None:
        with self._lock:
            super()._count(worker)
