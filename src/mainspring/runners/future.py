"""The future of a submitted task. It is cheap until a thread waits for it, and tasks of the pool may wait for it.

Waiting inside a task of the same pool does not deadlock while the pool may grow: `result()` runs an unstarted
task inline if it belongs to no sequence and the wait has no timeout. Otherwise the wait counts as `blocking()`, so
that another thread takes over. Waiting for a task of the caller's own sequence raises `WouldDeadlock` at once.
A wait with a timeout runs no task on the thread that waits, because the call could not return before its end.

The standard library creates a condition variable for every future, which is most of its cost. This class creates
it when a thread first needs it. Invariants:
- `_gate` holds one element, and popping it is one atomic step. If the ending task pops it, the task has ended
  before there was a condition. If `_make_condition` pops it, the task must end under the condition.
- The task stores its outcome before it tries to pop the gate. So a thread that finds the gate empty, and no
  condition, may set the state to FINISHED itself.
- The claim of the task, not the state of the future, decides whether the task runs or is canceled.

`RunAndReply` runs a function on one runner and posts its result to another.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from contextlib import contextmanager
from inspect import iscoroutine
from threading import Condition, Lock, RLock
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.clock import NANOSECONDS, Duration, to_nanoseconds
from mainspring.errors import WouldDeadlock
from mainspring.runners.task import Task, Wrapper
from mainspring.runners.worker import RAISED, WorkerThread, coroutine_refused, current_worker

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.task import Origin, TaskTraits


R = TypeVar("R")

_making_condition = Lock()
_noting_waits = RLock()  # re-entrant, because finalizers may use it
_DONE = (FINISHED, CANCELLED_AND_NOTIFIED, CANCELLED)


class TaskFuture(Future[R], Wrapper):
    """The future result of a task that was submitted to a runner, as `concurrent.futures.Future` defines it."""

    # initial values are stored once in the class, not in every instance
    _state = PENDING
    _result: R | None = None
    _exception: BaseException | None = None
    _made_condition: Condition | None = None
    _cancel_coroutine: Callable[[], object] | None = None
    task: Task | None = None
    is_awaited = False  # a coroutine awaits the future, and StopIteration cannot be raised into a coroutine

    def __init__(self, runner: TaskRunner, function: Callable[..., object]) -> None:
        self._runner = runner
        self._gate = [None]
        self._function: Callable[..., object] | None = function  # the task, for error texts, until it has ended

    def wrapped(self) -> Callable[..., object] | None:
        return self._function

    if TYPE_CHECKING:
        _condition: Condition
    else:

        @property
        def _condition(self) -> Condition:
            """The condition that the standard library's base class locks and waits on."""
            return self._made_condition or self._make_condition()

    def _make_condition(self) -> Condition:
        with _making_condition:
            if self._made_condition is None:
                try:
                    self._gate.pop()
                except IndexError:
                    self._state = FINISHED
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                self._made_condition = Condition()
            return self._made_condition

    def done(self) -> bool:
        """Return whether the task has ended or was canceled."""
        return self._state in _DONE

    # -- called by the runner

    def execute(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> object:
        """Run the function of the task, and store its result or exception. The runner calls it.

        Return `RAISED` if the function raised, a coroutine if the event loop has to await one, or None.
        """
        worker = current_worker()
        if worker is None or not worker.awaits:
            self._state = RUNNING  # on a loop it may be a coroutine, which can be canceled while it runs
        try:
            result = function(*arguments)
        except BaseException as error:  # `result()` raises it to its caller
            self._settle(None, error)
            # The traceback of the error references this frame, which must not reference the error.
            self = arguments = None  # type: ignore[assignment]  # noqa: PLW0642
            return RAISED
        if isinstance(result, CoroutineType):
            return self._take_coroutine(result, function, worker)
        self._settle(result, None)
        return None

    def _take_coroutine(
        self, coroutine: Coroutine[Any, Any, R], function: Callable[..., R], worker: WorkerThread | None
    ) -> object:
        if worker is None or not worker.awaits:
            coroutine.close()
            self._settle(None, coroutine_refused(function))
            return RAISED
        self._cancel_coroutine = _nothing  # from here on the coroutine can be canceled, even before its first step
        return self._await(coroutine, worker)

    async def _await(self, coroutine: Coroutine[Any, Any, R], worker: WorkerThread) -> object:
        self._cancel_coroutine = worker.canceller_of_current_coroutine()
        if self.cancelled():
            coroutine.close()
            return RAISED
        try:
            result = await coroutine
        except BaseException as error:  # `result()` raises it to its caller
            self._settle(None, error)
            self = None  # type: ignore[assignment]  # noqa: PLW0642 - as above
            return RAISED
        self._settle(result, None)
        return None

    def _settle(self, result: R | None, error: BaseException | None) -> None:
        if self.is_awaited and isinstance(error, StopIteration):
            error, cause = RuntimeError("the task raised StopIteration, which a coroutine cannot receive"), error
            error.__cause__ = cause
        self._result = result
        self._exception = error
        self._function = self._cancel_coroutine = None
        try:
            self._gate.pop()
        except IndexError:
            self._settle_under_condition(result, error)
        else:
            self._state = FINISHED

    def _settle_under_condition(self, result: R | None, error: BaseException | None) -> None:
        try:
            if error is None:
                self.set_result(result)  # type: ignore[arg-type]  # None is the R of such a function
            else:
                self.set_exception(error)
        except InvalidStateError:
            pass  # the future was canceled while its coroutine was ending: `cancel` has returned True

    # -- called by the user of the future

    def cancel(self) -> bool:
        """Cancel the task if it has not started, or its running coroutine; return whether it is canceled now."""
        return self._cancel(is_running_included=True)

    def cancel_unstarted(self) -> bool:
        """Cancel the task if it has not started; return whether it is canceled now.

        A task that has started goes on.
        """
        return self._cancel(is_running_included=False)

    def _cancel(self, *, is_running_included: bool) -> bool:
        task = self.task
        # kept until the lock is released: releasing a user's objects may run their finalizers
        _held = None if task is None else (list(task), task.function, task.context)
        with self._condition:  # so that concurrent calls of `cancel` return the same value
            if self._state in (CANCELLED, CANCELLED_AND_NOTIFIED):
                return True
            cancel_coroutine = self._cancel_coroutine if is_running_included else None
            if cancel_coroutine is None and not (task is not None and task.cancel()):
                return False
            if self._state == FINISHED:
                return False
            self._state = CANCELLED
            self._condition.notify_all()
        self._tell_canceled()
        if cancel_coroutine is not None:
            cancel_coroutine()
        return True

    def _tell_canceled(self) -> None:
        self._function = None
        self._invoke_callbacks()  # type: ignore[attr-defined]  # private in the base class; a test checks it
        # wakes wait() and as_completed() of the standard library, as an executor does
        self.set_running_or_notify_cancel()

    def dropped(self) -> None:
        with self._condition:
            self._state = CANCELLED
            self._condition.notify_all()
        self._tell_canceled()

    def result(self, timeout: Duration | None = None) -> R:
        """Return the result of the task, or raise its exception; wait for it if necessary.

        Raises `CancelledError` if the task was canceled, or dropped by a shutdown, and `TimeoutError` after
        `timeout`, which is real time, whatever clock the pool has. Inside of a task, a call without a timeout may
        run the awaited task inline. It raises `WouldDeadlock` if the calling task would wait for itself, directly
        or in a cycle of waits. Only runners of one task at a time are checked for this.
        """
        try:
            with self._waiting(may_run_inline=timeout is None):
                return super().result(_seconds(timeout))
        finally:
            self = None  # type: ignore[assignment]  # noqa: PLW0642 - the error must not reference the future

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """Return the exception of the task, or None if it succeeded; wait as `result` does.

        Raises `CancelledError`, `TimeoutError` and `WouldDeadlock` as `result` does.
        """
        with self._waiting(may_run_inline=timeout is None):
            return super().exception(_seconds(timeout))

    @contextmanager
    def _waiting(self, *, may_run_inline: bool) -> Iterator[None]:
        worker = None if self.done() else current_worker()
        if worker is None or worker.current_runner() is None:
            yield
            return
        if may_run_inline and self.task is not None:
            self._runner.run_inline(self.task, worker)
        if self.done():
            yield
            return
        if self._waits_for_itself(worker):
            name = "(unknown)" if self.task is None else self.task.name
            raise WouldDeadlock(runner=self._runner.name, task=name)
        try:
            with worker.blocking(), worker.waiting(self.done):
                if may_run_inline and worker.group is not None:
                    worker.group.run_ready_inline(worker, self.done)
                yield
        finally:
            worker.waits_for = None

    def _waits_for_itself(self, worker: WorkerThread) -> bool:
        """Return whether `worker`, if it waits for this task, waits for itself: directly or in a cycle of waits.

        If not, record that it waits for the task's runner. Only runners of one task at a time are checked.
        """
        runner = self._runner
        if not runner.is_exclusive:
            return False
        if worker.occupies(runner):
            return True
        with _noting_waits:  # one at a time: if two waits form a cycle, the second sees the first
            worker.waits_for = runner
            seen: set[TaskRunner] = set()
            while runner not in seen:
                seen.add(runner)
                waiting = [other.waits_for for other in runner.serving_workers() if other.waits_for is not None]
                if not waiting:
                    return False
                runner = waiting[0]
                if worker.occupies(runner):
                    worker.waits_for = None
                    return True
        return False


def _seconds(timeout: Duration | None) -> float | None:
    """Return a timeout in seconds. A negative number is zero: `Executor.map` passes one when its time is over."""
    if isinstance(timeout, int | float) and timeout < 0:
        return 0.0
    return None if timeout is None else to_nanoseconds(timeout, "timeout") / NANOSECONDS


def _nothing() -> None:
    pass


class RunAndReply(Wrapper, Generic[R]):
    """Runs a function, or lets the event loop await its coroutine, and posts the reply to another runner.

    The reply is a function that gets the result. If the first function raises, no reply is posted.
    """

    def __init__(
        self,
        function: Callable[[], R],
        reply: Callable[[R], object],
        target: TaskRunner,
        traits: TaskTraits | None,
        origin: Origin,
    ) -> None:
        self._function = function
        self._reply = reply
        self._target = target
        self._traits = traits
        self._origin = origin

    def wrapped(self) -> Callable[..., object]:
        return self._function

    def __call__(self) -> Coroutine[Any, Any, None] | None:
        result = self._function()
        if iscoroutine(result):
            return self._await(result)
        self._post_reply(result)
        return None

    async def _await(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._post_reply(await coroutine)

    def _post_reply(self, result: R) -> None:
        reply = self._target.services.observed(self._reply)
        self._target.post_at(None, self._origin, reply, (result,), self._traits)
