"""The thread pool, which creates runners and shuts them down.

`TaskScheduler` orders tasks, `ThreadGroup` runs them, and `DelayManager` keeps delayed tasks until they are due.
The pool connects the three and tracks its runners. It is itself a runner, of unordered tasks.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from threading import Lock
from types import TracebackType
from typing import Literal, TypeVar
from weakref import WeakSet

from mainspring.clock import Clock, Duration, SystemClock, deadline_after, to_nanoseconds
from mainspring.errors import RunnerClosed
from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.delay_manager import DelayManager
from mainspring.runners.flush import EarlierTasks, FlushBarrier
from mainspring.runners.group_runner import GroupRunner, SingleThreadRunner
from mainspring.runners.observer import TaskObserver
from mainspring.runners.pooled_runners import ParallelRunner, PooledRunner, SequencedRunner
from mainspring.runners.runner import TaskRunner
from mainspring.runners.services import Services
from mainspring.runners.statistics import PoolStatistics
from mainspring.runners.task import Priority, Task, TaskFailure, TaskTraits
from mainspring.runners.task_queue import FifoTaskQueue, PriorityTaskQueue, QueueEntry
from mainspring.runners.validation import require_positive
from mainspring.runners.worker import WorkerThread, current_worker

R = TypeVar("R", bound=TaskRunner)

SPARE_WORKERS = 64  # how many threads may be added while workers are blocked, without `max_workers`
TIMER_PATIENCE = 1.0  # seconds that the timer has to pass on due tasks; after that `shutdown` handles them
DEFAULT_IDLE_TIMEOUT = 30.0


class ThreadPool(GroupRunner):
    """A pool of threads that runs tasks and makes other runners.

    It starts its threads when the `with` block is entered or with the first task, and shuts down at the end of the
    block.

    - `workers`: the number of threads; None for the number of processors plus four, at most 32
    - `name`: the name of the pool in logs, statistics and the names of its threads
    - `queue`: `"priority"` runs urgent tasks first, with ageing; `"fifo"` runs tasks in the order of their posts
    - `max_workers`: the number of threads while tasks block (`TaskTraits(may_block=True)`, `blocking()`); None for
      `workers` plus 64
    - `capacity`: the largest number of waiting tasks, delayed ones included; beyond it `post` raises `QueueFull`;
      None for no limit
    - `idle_timeout`: after this time without a task, a thread beyond `workers` ends
    - `on_error`: a function that gets a `TaskFailure` for each posted task that raises an exception; None logs it
    - `observer`: a `TaskObserver` whose methods are called when tasks start, finish, fail or are rejected
    - `long_task`: a task that runs for longer than this is logged as a warning, with the stack of its thread; None
      for never
    - `trace_posts`: whether a `TaskFailure` names the line that posted the task, and not only the function
    - `clock`: the clock for delays and time-outs, such as a `ManualClock` in tests; None for the system's clock
    - `traits`: the `TaskTraits` of tasks that are posted without traits; None for the default traits
    - `metadata`: any values that the application wants to keep with the pool, as `pool.metadata`
    """

    def __init__(
        self,
        workers: int | None = None,
        name: str = "pool",
        *,
        queue: Literal["priority", "fifo"] = "priority",
        max_workers: int | None = None,
        capacity: int | None = None,
        idle_timeout: Duration = DEFAULT_IDLE_TIMEOUT,
        on_error: Callable[[TaskFailure], object] | None = None,
        observer: TaskObserver | None = None,
        long_task: Duration | None = None,
        trace_posts: bool = False,
        clock: Clock | None = None,
        traits: TaskTraits | None = None,
        metadata: dict[str, object] | None = None,
    ) -> None:
        size = require_positive(
            min(32, (os.cpu_count() or 1) + 4) if workers is None else workers, "workers", "threads"
        )
        max_size = size + SPARE_WORKERS if max_workers is None else max_workers
        if max_size < size:
            raise ValueError(f"max_workers must be at least workers ({size}), got {max_workers!r}")
        if queue not in ("priority", "fifo"):
            raise ValueError(f"queue must be 'priority' or 'fifo', got {queue!r}")
        clock = clock or SystemClock()
        services = Services(
            clock=clock,
            delays=DelayManager(clock, name=name),
            on_error=on_error,
            observer=observer,
            long_task_ns=None if long_task is None else to_nanoseconds(long_task, "long_task"),
            trace_posts=trace_posts,
        )
        super().__init__(
            services,
            PriorityTaskQueue(clock.monotonic_ns) if queue == "priority" else FifoTaskQueue(),
            size=size,
            max_size=max_size,
            idle_timeout_ns=to_nanoseconds(idle_timeout, "idle_timeout"),
            name=name,
            capacity=capacity,
            traits=traits,
            metadata=metadata,
        )
        self._numbers = count(1)
        self._runners_lock = Lock()  # guards the following attributes
        self._pooled: WeakSet[PooledRunner] = WeakSet()
        self._dedicated: list[SingleThreadRunner | AsyncioRunner] = []
        self._ended_totals = (0, 0)  # counts of runners with own threads that were closed before the pool
        self._process = os.getpid()
        self._is_started = self._is_prepared = False
        self._is_ending = False

    # -- starting and ending

    def start(self) -> ThreadPool:
        """Start the threads, unless they were started, and return the pool; raise `RunnerClosed` after shutdown.

        Entering the `with` block, the first task and the first runner also start them.
        """
        if not self.is_open:
            raise RunnerClosed(runner=self.name)
        with self._runners_lock:
            if self._is_started:
                return self
            self._is_started = self._is_prepared = True
        self._group.start()
        self.services.clock.attach(self)
        atexit.register(self._shutdown_at_exit)
        self._open_fast_path()
        return self

    def _shutdown_at_exit(self) -> None:
        if os.getpid() == self._process:  # a forked child has none of its parent's threads
            self.shutdown()

    def __enter__(self) -> ThreadPool:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for runner in self._runners():
                    runner.drop_delayed()
                self._refuse_own_task("wait_idle")
                self.services.delays.settle(TIMER_PATIENCE)
                self.wait_quiet(WorkerThread.is_parked, None)
        finally:
            self.shutdown()

    def runners_to_shut_down(self) -> list[TaskRunner]:
        with self._runners_lock:
            self._is_ending = True
        return self._runners()

    def finish_closing(self) -> None:
        super().finish_closing()
        self.services.delays.close()
        self.services.clock.detach(self)
        atexit.unregister(self._shutdown_at_exit)

    def _prepare_to_post(self) -> None:
        if self.is_open:  # after the start, `post` can use its fast path
            self.start()

    # -- making runners

    def sequenced(
        self,
        name: str | None = None,
        *,
        capacity: int | None = None,
        traits: TaskTraits | None = None,
        metadata: dict[str, object] | None = None,
    ) -> SequencedRunner:
        """Make a sequenced runner: one task at a time, in strict order, on any thread of the pool."""
        runner = SequencedRunner(
            self.services,
            self._scheduler,
            self._group,
            limit=1,
            name=self._name(name, "sequence"),
            capacity=capacity,
            traits=traits,
            metadata=metadata,
        )
        self._add(runner, self._pooled.add)
        return runner

    def parallel(
        self,
        limit: int,
        name: str | None = None,
        *,
        capacity: int | None = None,
        traits: TaskTraits | None = None,
        metadata: dict[str, object] | None = None,
    ) -> ParallelRunner:
        """Make a runner whose tasks run concurrently, at most `limit` at once."""
        require_positive(limit, "limit", "tasks at once")
        runner = ParallelRunner(
            self.services,
            self._scheduler,
            self._group,
            limit=limit,
            name=self._name(name, "parallel"),
            capacity=capacity,
            traits=traits,
            metadata=metadata,
        )
        self._add(runner, self._pooled.add)
        return runner

    def single_thread(
        self,
        name: str | None = None,
        *,
        capacity: int | None = None,
        traits: TaskTraits | None = None,
        metadata: dict[str, object] | None = None,
    ) -> SingleThreadRunner:
        """Make a runner with one thread of its own, whose tasks run in strict order."""
        runner = SingleThreadRunner(
            self.services,
            name=self._name(name, "thread"),
            capacity=capacity,
            traits=traits,
            metadata=metadata,
        )
        self._add(runner, self._dedicated.append)
        return runner

    def asyncio(
        self,
        name: str | None = None,
        *,
        capacity: int | None = None,
        traits: TaskTraits | None = None,
        metadata: dict[str, object] | None = None,
    ) -> AsyncioRunner:
        """Make a runner with an event loop on a thread of its own, for coroutines and callables."""
        runner = AsyncioRunner(
            self.services,
            name=self._name(name, "loop"),
            capacity=capacity,
            traits=traits,
            metadata=metadata,
        )
        self._add(runner, self._dedicated.append)
        return runner

    def _name(self, name: str | None, kind: str) -> str:
        return name if name is not None else f"{self.name}.{kind}-{next(self._numbers)}"

    def _add(self, runner: R, keep: Callable[[R], object]) -> None:
        self.start()
        with self._runners_lock:
            is_refused = self._is_ending
            if not is_refused:
                keep(runner)
        if is_refused:
            runner.shutdown()
            raise RunnerClosed(runner=self.name)

    def _runners(self) -> list[TaskRunner]:
        with self._runners_lock:
            return [self, *self._pooled, *self._dedicated]

    # -- the pool as a runner that includes its runners

    def may_run_inline(self, worker: WorkerThread) -> bool:
        return worker.group is self._group

    @property
    def is_exclusive(self) -> bool:
        return False

    @property
    def width(self) -> int:
        return self._group.size

    def _counts(self, worker: WorkerThread) -> bool:
        return worker.home.services is self.services

    def _parts(self) -> list[SingleThreadRunner | AsyncioRunner]:
        with self._runners_lock:
            for part in [part for part in self._dedicated if part.is_over()]:
                self._dedicated.remove(part)
                self._ended_totals = _sum([self._ended_totals, part.totals()])
            return list(self._dedicated)

    def compact(self) -> int:
        return super().compact() + sum(runner.compact() for runner in self._runners()[1:])

    def totals(self) -> tuple[int, int]:
        parts = [part.totals() for part in self._parts()]
        return _sum([super().totals(), self._ended_totals, *parts])

    def running_tasks(self) -> list[tuple[WorkerThread, Task]]:
        return super().running_tasks() + [pair for part in self._parts() for pair in part.running_tasks()]

    def is_quiet(self, is_resting: Callable[[WorkerThread], bool]) -> bool:
        parts = self._parts()
        before = self.activity()
        if not (super().is_quiet(is_resting) and all(part.is_quiet(is_resting) for part in parts)):
            return False
        # Work may have moved from one part to another during the check: only a second, equal reading counts.
        return (
            before == self.activity()
            and super().is_quiet(is_resting)
            and all(part.is_quiet(is_resting) for part in parts)
        )

    def wait_quiet(
        self, is_resting: Callable[[WorkerThread], bool], deadline: int | None, clock: Clock | None = None
    ) -> bool:
        worker = current_worker()
        # `blocking` once, not in each iteration: it wakes threads, and this loop checks for wake-ups.
        with nullcontext() if worker is None else worker.blocking():
            while not self.is_quiet(is_resting):
                if not self.idle_condition.wait(lambda: self._group.is_idle(is_resting), deadline, clock):
                    return False
                for part in self._parts():
                    if not part.wait_quiet(is_resting, deadline, clock):
                        return False
        return True

    def statistics(self) -> PoolStatistics:
        """Return the counts of the pool and all its runners together, and the statistics of the timing wheel."""
        own = super().statistics()
        counters = self.services.counters
        parts = [part.statistics() for part in self._parts()]
        return PoolStatistics(
            name=own.name,
            active=own.active,
            completed=own.completed,
            failed=own.failed,
            queued=self._queued_in_group() + sum(part.queued for part in parts),
            delayed=len(self.services.delays),
            workers=own.workers + sum(part.workers for part in parts),
            rejected=counters.rejected,
            cancelled=counters.canceled + self.services.delays.canceled,
            skipped=counters.skipped,
            timers=self.services.delays.statistics(),
        )

    def _queued_in_group(self) -> int:
        """Return how many tasks wait for a worker thread of this pool.

        They are in the ready queue, in the pooled runners that this queue has, or in those that a worker serves.
        """
        entries = self._scheduler.ready.entries()
        runners = self._busy_runners(entries)
        tasks = sum(isinstance(entry, Task) for entry in entries) - self._tombstones
        return max(0, tasks) + sum(runner.waiting() for runner in runners)

    def _busy_runners(self, entries: list[QueueEntry]) -> set[PooledRunner]:
        served = [worker.runner for worker in self._group.workers()]
        return {runner for runner in (*entries, *served) if isinstance(runner, PooledRunner)}

    def all_queued_tasks(self) -> list[Task]:
        tasks = [task for runner in self._runners()[1:] for task in runner.queued_tasks()]
        return tasks + self.queued_tasks()

    def wait_until_ended(self, earlier: EarlierTasks, deadline: int | None) -> bool:
        return super().wait_until_ended(earlier, deadline) and all(
            part.wait_until_ended(earlier, deadline) for part in self._parts()
        )

    def _post_barriers(self) -> list[FlushBarrier]:
        if self.is_open:
            self.start()
        idle_condition = self.idle_condition
        lanes = zip(reversed(Priority), self._scheduler.ready.lanes, strict=True)
        mine = [self.post_barrier(idle_condition, priority) for priority, lane in lanes if lane]
        with self._runners_lock:
            others: list[TaskRunner] = [runner for runner in self._pooled if not runner.is_unserved()]
        others += self._parts()
        return mine + [runner.post_barrier(idle_condition) for runner in others]

    # -- the pool as a member of its clock

    def activity(self) -> object:
        return [super().activity(), *(part.activity() for part in self._parts())]

    def next_due(self) -> int | None:
        """Return the time at which the timer must wake up next, not later than the next delayed task is due.

        Return None if there is no delayed task.
        """
        return self.services.delays.next_due()

    def settle(self, real_seconds: float) -> str | None:
        """Wait in real time until all due tasks have ended or wait; return None.

        If this takes longer than `real_seconds`, return a text with the tasks that still run.
        """
        real = SystemClock()
        deadline = deadline_after(real, real_seconds)
        is_settled = self.services.delays.settle(real_seconds) and self.wait_quiet(_waits, deadline, real)
        return None if is_settled else self._describe_busy()


def _waits(worker: WorkerThread) -> bool:
    return worker.parked or worker.is_waiting()


def _sum(totals: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(completed for completed, _ in totals), sum(failed for _, failed in totals)
