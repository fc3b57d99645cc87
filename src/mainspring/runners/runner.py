"""The base class of all runners: posting, futures, replies, repetition, waiting and shutdown.

`post` takes no lock on its fast path, never blocks and never runs the task. A concrete runner implements the
queue, the wake-up of its threads and the check whether it is quiet. `task_acceptor.py` accepts and counts tasks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import copy_context
from sys import _getframe
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from mainspring.clock import Clock, Duration, deadline_after, to_nanoseconds
from mainspring.errors import WouldDeadlock
from mainspring.runners.executor import RunnerExecutor
from mainspring.runners.flush import EarlierTasks, FlushBarrier
from mainspring.runners.future import RunAndReply, TaskFuture
from mainspring.runners.idle_condition import IdleCondition
from mainspring.runners.repeat import Repetition
from mainspring.runners.shutdown import RunnerShutdown
from mainspring.runners.statistics import RunnerStatistics, ShutdownReport
from mainspring.runners.task import DelayedTask, Origin, Priority, Task, TaskHandle, TaskTraits
from mainspring.runners.task_acceptor import TaskAcceptor
from mainspring.runners.validation import require_callable, require_instance
from mainspring.runners.worker import WorkerThread, current_worker

if TYPE_CHECKING:
    from mainspring.runners.services import Services

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


class TaskRunner(TaskAcceptor):
    """The base class of runners. A runner determines where tasks run, and in what order."""

    __slots__ = ("_shutdown", "metadata")

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        capacity: int | None = None,
        traits: TaskTraits | None = None,
        metadata: dict[str, object] | None = None,
    ) -> None:
        super().__init__(services, name=name, capacity=capacity, traits=traits)
        self.metadata: dict[str, object] = dict(metadata or {})
        self._shutdown: RunnerShutdown | None = None  # guarded by _lock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self._state.value}>"

    # -- posting

    def post(
        self,
        function: Callable[[*Ts], object],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> TaskHandle:
        """Run `function(*arguments)` asynchronously on this runner; return a handle to cancel it.

        Raises `RunnerClosed` after shutdown and `QueueFull` if the runner has a capacity and is full.
        """
        if delay is None and traits is None and self._fast:
            # The body of `_post_plain`, inlined: a call would add a tenth to the time of a post.
            if not callable(function):
                require_callable(function)
            task = Task()
            task.append(arguments)
            task.runner = self
            task.origin = _getframe(1).f_code
            task.context = copy_context() or None
            task.function = function
            try:
                self._append(task)
            finally:  # the queued task must run, even if a signal handler raises here
                if self._wakeable:
                    self._wake_worker()
            if not self._fast:
                self._withdraw_if_closed(task)
            return task
        if delay is not None and traits is None and self._fast:
            delay_ns = to_nanoseconds(delay, "delay")
            if delay_ns:
                frame = _getframe(1)
                due = self.services.clock.monotonic_ns() + delay_ns
                delayed = self._post_delayed(due, frame.f_code, frame.f_lineno, function, arguments)
                if delayed is not None:
                    return delayed
        work = self.services.observed(function) if self.services.is_observed else function
        return self._post(_getframe(1), work, arguments, delay, traits)

    def submit(
        self,
        function: Callable[[*Ts], R],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> TaskFuture[R]:
        """Post a task; return a `concurrent.futures.Future` with its result or its exception.

        Raises `RunnerClosed` after shutdown and `QueueFull` if the runner has a capacity and is full.
        """
        return self.submit_from(_getframe(1), function, arguments, delay, traits)

    async def run(
        self,
        function: Callable[[*Ts], R],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> R:
        """Submit a task and await its result; canceling the awaiting coroutine cancels the task."""
        return await self._await(_getframe(1), function, arguments, delay, traits)

    def executor(self, *, traits: TaskTraits | None = None) -> RunnerExecutor:
        """Return a `concurrent.futures.Executor` whose tasks run on this runner, in its order.

        Without `traits`, the tasks run even if the runner is shut down meanwhile (`ShutdownBehavior.BLOCK`).
        """
        return RunnerExecutor(self, traits)

    def post_and_reply(
        self,
        function: Callable[[], R],
        reply: Callable[[R], object],
        *,
        reply_to: TaskRunner | None = None,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> TaskHandle:
        """Run `function()` on this runner, then `reply(result)` on `reply_to`, by default the caller's runner.

        If `function` raises, there is no reply: the exception goes to the error hook. Raises `ValueError` outside
        of a task without `reply_to`.
        """
        target = current_runner() if reply_to is None else reply_to
        if target is None:
            raise ValueError("post_and_reply outside of a task needs reply_to=, the runner to reply on")
        require_instance(target, TaskRunner, "reply_to", "pool.sequenced()")  # type: ignore[type-abstract]
        require_callable(function)
        require_callable(reply, "the reply to a task")
        frame = _getframe(1)
        work = RunAndReply(self.services.observed(function), reply, target, traits, Origin.of(frame))
        return self._post(frame, work, (), delay, traits)

    def repeat(
        self,
        function: Callable[[*Ts], object],
        *arguments: *Ts,
        every: Duration,
        fixed_delay: bool = False,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> Repetition:
        """Run `function(*arguments)` repeatedly, until `stop()` of the returned object or the runner's shutdown.

        The first run is after `delay`, by default `every`. The rate is fixed: runs keep their phase and never
        overlap, and instants that a long run has missed are skipped. With `fixed_delay=True`, `every` is the time
        from the end of a run to the start of the next.
        """
        require_callable(function)
        every_ns = to_nanoseconds(every, "every")
        if every_ns == 0:
            raise ValueError(f"every must be greater than zero, got {every!r}")
        repetition = Repetition(self, function, arguments, every_ns, fixed_delay=fixed_delay, traits=traits)
        repetition.begin(every_ns if delay is None else to_nanoseconds(delay, "delay"), Origin.of(_getframe(1)))
        return repetition

    def submit_from(
        self,
        frame: FrameType,
        function: Callable[..., R],
        arguments: tuple[Any, ...],
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
        *,
        is_awaited: bool = False,
    ) -> TaskFuture[R]:
        """Submit a task as `submit` does, and remember the caller's `frame`, to name the line that posted it.

        With `is_awaited`, a coroutine awaits the future, and a `StopIteration` of the task becomes a
        `RuntimeError`.
        """
        require_callable(function)
        future: TaskFuture[R] = TaskFuture(self, function)
        if is_awaited:
            future.is_awaited = True
        work = self.services.observed(function)
        future.task = self._post(frame, future.execute, (work, arguments), delay, traits)
        return future

    async def _await(
        self,
        frame: FrameType,
        function: Callable[..., R],
        arguments: tuple[Any, ...],
        delay: Duration | None,
        traits: TaskTraits | None,
    ) -> R:
        import asyncio  # noqa: PLC0415 - slow to import; the caller's event loop has imported it

        future = self.submit_from(frame, function, arguments, delay, traits, is_awaited=True)
        worker = current_worker()
        with nullcontext() if worker is None else worker.coroutine_waiting(future.done):
            return await asyncio.wrap_future(future)

    def _post_plain(self, origin: CodeType, function: Callable[..., object], arguments: tuple[Any, ...]) -> Task:
        require_callable(function)
        task = Task()
        task.append(arguments)
        task.runner = self
        task.origin = origin
        task.context = copy_context() or None
        task.function = function
        try:
            self._append(task)
        finally:
            if self._wakeable:
                self._wake_worker()
        if not self._fast:
            self._withdraw_if_closed(task)
        return task

    def _post(
        self,
        frame: FrameType,
        function: Callable[..., object],
        arguments: tuple[Any, ...],
        delay: Duration | None,
        traits: TaskTraits | None,
    ) -> Task:
        """Post a task, and remember the caller's `frame` as the line of code that posted the task."""
        if delay is None and traits is None and self._fast:
            return self._post_plain(frame.f_code, function, arguments)
        delay_ns = 0 if delay is None else to_nanoseconds(delay, "delay")
        due = self.services.clock.monotonic_ns() + delay_ns if delay_ns else None
        return self.post_at(due, Origin.of(frame), function, arguments, traits)

    def run_inline(self, task: Task, worker: WorkerThread) -> bool:
        """Run an unstarted task inside the task that waits for it, if the order allows; return whether it ran."""
        if not self.may_run_inline(worker) or (isinstance(task, DelayedTask) and not task.queued):
            return False
        with self._lock:
            self._tombstones += 1  # the queue still holds the task
        with worker.nested(self):
            has_run = task.run_on(worker)
        if not has_run:
            with self._lock:
                self._tombstones -= 1
        return has_run

    # -- implemented by concrete runners

    @abstractmethod
    def running_tasks(self) -> list[tuple[WorkerThread, Task]]:
        """Return the running tasks of this runner, each with the worker thread that runs it."""

    @abstractmethod
    def peek_traits(self) -> TaskTraits | None:
        """Return the traits of the task that would start next; None if no task is queued.

        Another thread may take that task first.
        """

    @abstractmethod
    def totals(self) -> tuple[int, int]:
        """Return how many tasks of this runner have completed, and how many have failed."""

    @property
    @abstractmethod
    def idle_condition(self) -> IdleCondition:
        """The condition that threads wait on until this runner is quiet."""

    @abstractmethod
    def is_quiet(self, is_resting: Callable[[WorkerThread], bool]) -> bool:
        """Return whether no queued task can run, and `is_resting` is true for each worker of this runner."""

    @abstractmethod
    def runs_tasks_in_current_sequence(self) -> bool:
        """Return whether the calling code is a task of this runner, so that it runs in the runner's order."""

    @abstractmethod
    def _worker_count(self) -> int:
        """Return the number of threads that may run tasks of this runner."""

    @abstractmethod
    def wait_until_ended(self, earlier: EarlierTasks, deadline: int | None) -> bool:
        """Wait until all tasks of `earlier` have ended; return False if the deadline passes first."""

    @abstractmethod
    def serving_workers(self) -> list[WorkerThread]:
        """Return the threads of a group that may have taken a task of this runner; none for an event loop."""

    @property
    def width(self) -> int:
        """The number of tasks of this runner that can run at once while none of them is blocked."""
        return 1

    @property
    def is_exclusive(self) -> bool:
        """Whether a running task of this runner keeps its other tasks from running."""
        return True

    def statistics(self) -> RunnerStatistics:
        """Return a frozen snapshot of the runner's counts."""
        completed, failed = self.totals()
        with self._lock:
            return RunnerStatistics(
                name=self.name,
                queued=self._waiting(),
                active=len(self.running_tasks()),
                delayed=len(self._delayed),
                workers=self._worker_count(),
                completed=completed,
                failed=failed,
                rejected=self._rejected,
                cancelled=self._canceled + self._canceled_delayed,
                skipped=self._skipped,
            )

    # -- waiting and shutdown

    def wait_idle(self, timeout: Duration | None = None) -> None:
        """Wait until nothing is queued or running; delayed tasks that are not due do not count.

        The counts of the runner and of its pool are exact when it returns. Raises `TimeoutError` after `timeout`,
        and `WouldDeadlock` inside of a task of this runner.
        """
        self._refuse_own_task("wait_idle")
        deadline = deadline_after(self.services.clock, timeout)
        # a task that is due counts, even if the timer has not passed it on yet
        is_idle = self.services.delays.settle(timeout)
        if not is_idle or not self.wait_quiet(WorkerThread.is_parked, deadline):
            raise TimeoutError(
                f"runner {self.name!r} was not idle after timeout={timeout!r}: {self._describe_busy()}"
            )

    def wait_quiet(
        self, is_resting: Callable[[WorkerThread], bool], deadline: int | None, clock: Clock | None = None
    ) -> bool:
        """Wait until the runner is quiet; return False if the deadline, by `clock`, passes first."""
        return self.idle_condition.wait(lambda: self.is_quiet(is_resting), deadline, clock)

    def flush(self, timeout: Duration | None = None) -> None:
        """Wait until all tasks that are queued or running now have ended; raise `TimeoutError` after `timeout`.

        Delayed tasks that are not due do not count. Return early if the runner is closed meanwhile. Raises
        `WouldDeadlock` inside of a task of this runner.
        """
        self._refuse_own_task("flush")
        deadline = deadline_after(self.services.clock, timeout)
        earlier = EarlierTasks(self)
        barriers = self._post_barriers()
        if self.idle_condition.wait(
            lambda: self.is_closed or all(barrier.is_passed for barrier in barriers), deadline
        ):
            earlier.include(barriers)
            if self.is_closed or self.wait_until_ended(earlier, deadline):
                return
        raise TimeoutError(
            f"runner {self.name!r} was not flushed after timeout={timeout!r}: {self._describe_busy()}"
        )

    def all_queued_tasks(self) -> list[Task]:
        """Return the tasks in the queues of this runner and of the runners that it contains, with tombstones
        (canceled tasks).
        """
        return self.queued_tasks()

    def _post_barriers(self) -> list[FlushBarrier]:
        return [self.post_barrier(self.idle_condition)]

    def _make_barrier(self, idle_condition: IdleCondition, priority: int) -> FlushBarrier:
        return FlushBarrier(self, idle_condition, priority)

    def post_barrier(self, idle_condition: IdleCondition, priority: int = Priority.USER_VISIBLE) -> FlushBarrier:
        """Put a barrier into the queue. The worker that pops it notifies `idle_condition`."""
        barrier = self._make_barrier(idle_condition, priority)
        with self._lock:
            self._tombstones += 1
            self._push(barrier)
        self._wake_worker()
        return barrier

    def _refuse_own_task(self, verb: str) -> None:
        worker = current_worker()
        if worker is not None and worker.current_runner() is not None and self._counts(worker):
            raise WouldDeadlock(runner=self.name, task=f"{verb}() in {worker.describe_task()}")

    def _counts(self, worker: WorkerThread) -> bool:
        """Return whether the running task of `worker` keeps this runner from being idle."""
        return worker.runner is self

    def _describe_busy(self) -> str:
        running = ", ".join(task.name for _, task in self.running_tasks())
        return f"{self.statistics().queued} queued, running: {running or 'nothing'}"

    def shutdown(self, timeout: Duration | None = None) -> ShutdownReport:
        """Accept no more tasks, run or drop the queued ones as their traits say, and return a report.

        The runner runs the BLOCK tasks that are due, and waits for running tasks except CONTINUE tasks, for at
        most `timeout`. Tasks of the pool can post BLOCK tasks meanwhile. A call inside a task does not wait for
        that task. A second call waits for the first, for at most its own `timeout`. It returns the same report, or
        the counts so far if its time is over first.
        """
        deadline = deadline_after(self.services.clock, timeout)
        with self._lock:
            is_first = self._shutdown is None
            closing = self._shutdown = self._shutdown or RunnerShutdown(self.runners_to_shut_down())
        return closing.run(deadline) if is_first else closing.wait(deadline)

    def runners_to_shut_down(self) -> list[TaskRunner]:
        """Return the runners that are shut down together with this one, this one first.

        A pool makes no more runners after this call.
        """
        return [self]


def current_runner() -> TaskRunner | None:
    """Return the runner of the calling task, or None outside of tasks."""
    worker = current_worker()
    return None if worker is None else worker.current_runner()
