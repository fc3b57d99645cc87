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
from inspect import iscoroutinefunction
from threading import Condition, Lock
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.errors import WouldDeadlock
from mainspring.runners.task import Task
from mainspring.runners.worker import RAISED, Worker, coroutine_refused, current_worker

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner

R = TypeVar("R")

_making_condition = Lock()
_DONE = (FINISHED, CANCELLED_AND_NOTIFIED, CANCELLED)


class TaskFuture(Future[R]):
    """The result of a submitted task, some day."""

    # What every future starts with stands here once, and not in each of them.
    _state = PENDING
    _result: R | None = None
    _exception: BaseException | None = None
    _made_condition: Condition | None = None
    _cancel_coroutine: Callable[[], object] | None = None
    task: Task | None = None

    def __init__(self, runner: TaskRunner, function: Callable[..., object]) -> None:
        self._runner = runner
        self._gate = [None]
        self._mainspring_wrapped: Callable[..., object] | None = function  # for its name, until it has ended

    @property
    def _condition(self) -> Condition:  # type: ignore[override]  # an attribute there, and never assigned here
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
        if worker is None or not worker.awaits or not iscoroutinefunction(function):
            self._state = RUNNING  # a coroutine does not say so, because it can be cancelled while it runs
        try:
            result = function(*arguments)
        except BaseException as error:
            self._settle(None, error)
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
        return self._await(coroutine, worker)

    async def _await(self, coroutine: Coroutine[Any, Any, R], worker: Worker) -> object:
        self._cancel_coroutine = worker.canceller_of_current_coroutine()
        if self.cancelled():
            self._cancel_coroutine()
        try:
            result = await coroutine
        except BaseException as error:
            self._settle(None, error)
            return RAISED
        finally:
            self._cancel_coroutine = None
        self._settle(result, None)
        return None

    def _settle(self, result: R | None, error: BaseException | None) -> None:
        self._result = result
        self._exception = error
        self._mainspring_wrapped = None
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
        cancel_coroutine = self._cancel_coroutine
        if cancel_coroutine is None and not (self.task is not None and self.task.cancel()):
            return self.cancelled()
        if not super().cancel():
            return False
        self._mainspring_wrapped = None
        self.set_running_or_notify_cancel()  # tells wait() and as_completed(), as an executor would later
        if cancel_coroutine is not None:
            cancel_coroutine()
        return True

    def result(self, timeout: float | None = None) -> R:
        """Return the result, or raise what the task raised; see the module on waiting inside of a task."""
        if self.done():
            return super().result()
        with self._waiting():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the task raised, or None; waits as `result` does."""
        if self.done():
            return super().exception()
        with self._waiting():
            return super().exception(timeout)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        worker = current_worker()
        if worker is None or worker.current_runner() is None:
            yield
            return
        runner = self._runner
        if self.task is not None:
            runner.run_inline(self.task, worker)
        if not self.done() and runner.is_exclusive and runner.runs_tasks_in_current_sequence():
            raise WouldDeadlock(runner=runner.name, task="(unknown)" if self.task is None else self.task.name)
        if self.done() or worker.group is None:
            yield
            return
        with worker.group.blocking(worker), worker.waiting(self.done):
            yield
