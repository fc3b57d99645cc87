"""A future that knows which pool it comes from, and that costs little until somebody waits for it.

Waiting inside of a task of the same pool cannot hang: `result()` runs an unstarted target inline if it belongs
to no sequence, and else counts as `blocking()`, so that another thread takes over. Waiting for one's own
sequence raises at once.

The standard future makes a condition variable for every future, which is most of its cost. This one makes it
when somebody first needs it. Invariants:
- `_gate` holds one element, and popping it is one atomic step. Whoever pops it decides: the task has ended
  before anybody made a condition, or there is a condition and the task must end under it.
- The outcome is stored before the gate is tried. So whoever finds the gate taken, with no condition there, may
  set the state to FINISHED itself.
- Whether a task is run or cancelled is decided by claiming the task, not by the state of the future.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from contextlib import contextmanager
from threading import Condition, Lock, RLock
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.clock import NANOSECONDS, Duration, to_nanoseconds
from mainspring.errors import WouldDeadlock
from mainspring.runners.task import Task, Wrapper
from mainspring.runners.worker import RAISED, Worker, coroutine_refused, current_worker

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner

R = TypeVar("R")

_making_condition = Lock()
_noting_waits = RLock()  # re-entrant for finalizers
_DONE = (FINISHED, CANCELLED_AND_NOTIFIED, CANCELLED)


class TaskFuture(Future[R], Wrapper):
    """The result of a submitted task, some day."""

    # What every future starts with stands here once, and not in each of them.
    _state = PENDING
    _result: R | None = None
    _exception: BaseException | None = None
    _made_condition: Condition | None = None
    _cancel_coroutine: Callable[[], object] | None = None
    task: Task | None = None
    is_awaited = False  # by a coroutine, into which StopIteration cannot be raised

    def __init__(self, runner: TaskRunner, function: Callable[..., object]) -> None:
        self._runner = runner
        self._gate = [None]
        self._function: Callable[..., object] | None = function  # for its name, until it has ended

    def wrapped(self) -> Callable[..., object] | None:
        return self._function

    if TYPE_CHECKING:
        _condition: Condition
    else:

        @property
        def _condition(self) -> Condition:
            """What the standard library's part of this class locks and waits on."""
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
        """Answer whether the task has ended or was cancelled."""
        return self._state in _DONE

    # -- on the side of the runner

    def execute(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> object:
        """Run the task and keep what it gives."""
        worker = current_worker()
        if worker is None or not worker.awaits:
            self._state = RUNNING  # on a loop it may be a coroutine, which can be cancelled while it runs
        try:
            result = function(*arguments)
        except BaseException as error:  # it belongs to whoever asks for the result
            self._settle(None, error)
            # The traceback of the error holds this frame, which must not hold the error.
            self = arguments = None  # type: ignore[assignment]  # noqa: PLW0642
            return RAISED
        if isinstance(result, CoroutineType):
            return self._take_coroutine(result, function, worker)
        self._settle(result, None)
        return None

    def _take_coroutine(
        self, coroutine: Coroutine[Any, Any, R], function: Callable[..., R], worker: Worker | None
    ) -> object:
        if worker is None or not worker.awaits:
            coroutine.close()
            self._settle(None, coroutine_refused(function))
            return RAISED
        self._cancel_coroutine = _nothing  # from here on it can be cancelled, before its first step, too
        return self._await(coroutine, worker)

    async def _await(self, coroutine: Coroutine[Any, Any, R], worker: Worker) -> object:
        self._cancel_coroutine = worker.canceller_of_current_coroutine()
        if self.cancelled():
            coroutine.close()
            return RAISED
        try:
            result = await coroutine
        except BaseException as error:  # it belongs to whoever asks for the result
            self._settle(None, error)
            self = None  # type: ignore[assignment]  # noqa: PLW0642 - as above
            return RAISED
        self._settle(result, None)
        return None

    def _settle(self, result: R | None, error: BaseException | None) -> None:
        if self.is_awaited and isinstance(error, StopIteration):
            error, cause = RuntimeError("the task raised StopIteration"), error
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
            pass  # cancelled while its coroutine was ending: the caller has its answer

    # -- on the side of the caller

    def cancel(self) -> bool:
        """Cancel the task if it has not started, or its coroutine if that still runs."""
        task = self.task
        # Held until the lock is released: letting go of a user's objects may run their finalizers.
        _held = None if task is None else (list(task), task.function, task.context)
        with self._condition:  # so that all who cancel at once get the same answer
            if self._state in (CANCELLED, CANCELLED_AND_NOTIFIED):
                return True
            cancel_coroutine = self._cancel_coroutine
            if cancel_coroutine is None and not (task is not None and task.cancel()):
                return False
            if self._state == FINISHED:
                return False
            self._state = CANCELLED
            self._condition.notify_all()
        self._tell_cancelled()
        if cancel_coroutine is not None:
            cancel_coroutine()
        return True

    def _tell_cancelled(self) -> None:
        self._function = None
        self._invoke_callbacks()  # type: ignore[attr-defined]  # private there, and tested to exist
        self.set_running_or_notify_cancel()  # tells wait() and as_completed(), as an executor would later

    def dropped(self) -> None:
        with self._condition:
            self._state = CANCELLED
            self._condition.notify_all()
        self._tell_cancelled()

    def result(self, timeout: Duration | None = None) -> R:
        """Return the result, or raise what the task raised; see the module on waiting inside of a task.

        `timeout` is real time, whatever clock the pool has, as for every future.
        """
        try:
            with self._waiting():
                return super().result(_seconds(timeout))
        finally:
            self = None  # type: ignore[assignment]  # noqa: PLW0642 - the error must not hold this frame's future

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """Return what the task raised, or None; waits as `result` does."""
        with self._waiting():
            return super().exception(_seconds(timeout))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        worker = None if self.done() else current_worker()
        if worker is None or worker.current_runner() is None:
            yield
            return
        if self.task is not None:
            self._runner.run_inline(self.task, worker)
        if self.done():
            yield
            return
        if self._waits_for_itself(worker):
            name = "(unknown)" if self.task is None else self.task.name
            raise WouldDeadlock(runner=self._runner.name, task=name)
        try:
            with worker.standing_in(), worker.waiting(self.done):
                if worker.group is not None:
                    worker.group.help_out(worker, self.done)
                yield
        finally:
            worker.waits_for = None

    def _waits_for_itself(self, worker: Worker) -> bool:
        """Note for whom `worker` waits, and follow that chain: does it lead back to what `worker` occupies?"""
        runner = self._runner
        if not runner.is_exclusive:
            return False
        if worker.occupies(runner):
            return True
        with _noting_waits:  # one at a time: of two that close a circle, the second sees the first
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
    return None if timeout is None else to_nanoseconds(timeout, "timeout") / NANOSECONDS


def _nothing() -> None:
    pass
