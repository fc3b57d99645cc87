"""A future that knows which pool it comes from, so that waiting for it inside that pool cannot hang.

Inside a task of the same pool, `result()` runs an unstarted target inline if it belongs to no sequence, and
else counts as `blocking()`, so that somebody else takes over. Waiting for one's own sequence raises at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from inspect import iscoroutine, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.errors import WouldDeadlock
from mainspring.runners.task import Task, describe_function
from mainspring.runners.worker import RAISED, Worker, coroutine_refused, current_worker

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner

R = TypeVar("R")


class TaskFuture(Future[R], Generic[R]):
    """The result of a submitted task, some day."""

    def __init__(self, runner: TaskRunner, function: Callable[..., object]) -> None:
        super().__init__()
        self._runner = runner
        self._mainspring_wrapped: Callable[..., object] | None = function
        self.task: Task | None = None
        self._cancel_coroutine: Callable[[], object] | None = None

    def execute(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> object:
        """Run the task and keep what it gives; called by the runner."""
        is_coroutine = iscoroutinefunction(function)
        # A coroutine stays cancellable while it runs; a function does not, and says so from its start.
        if self.cancelled() if is_coroutine else not self.set_running_or_notify_cancel():
            return None
        try:
            result = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self._settle(error=error)
            return RAISED
        if iscoroutine(result):
            return self._take_coroutine(result)
        self._settle(result)
        return None

    def _take_coroutine(self, coroutine: Coroutine[Any, Any, R]) -> object:
        worker = current_worker()
        if worker is None or not worker.awaits:
            coroutine.close()
            self._settle(error=coroutine_refused(self._mainspring_wrapped))
            return RAISED
        return self._await(coroutine, worker)

    async def _await(self, coroutine: Coroutine[Any, Any, R], worker: Worker) -> object:
        self._cancel_coroutine = worker.canceller_of_current_coroutine()
        if self.cancelled():
            self._cancel_coroutine()
        try:
            result = await coroutine
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self._settle(error=error)
            return RAISED
        self._settle(result)
        return None

    def _settle(self, result: R | None = None, error: BaseException | None = None) -> None:
        self._mainspring_wrapped = None
        self._cancel_coroutine = None
        try:
            if error is None:
                self.set_result(result)  # type: ignore[arg-type]  # None is the R of such a function
            else:
                self.set_exception(error)
        except InvalidStateError:
            pass  # cancelled while its coroutine was ending: the caller has its answer

    def cancel(self) -> bool:
        """Cancel the task if it has not started, or its coroutine if that still runs."""
        is_cancelled = super().cancel()
        if is_cancelled:
            if self.task is not None:
                self.task.cancel()
            cancel_coroutine = self._cancel_coroutine
            if cancel_coroutine is not None:
                cancel_coroutine()
        return is_cancelled

    def result(self, timeout: float | None = None) -> R:
        """Return the result, or raise what the task raised; see the module on waiting inside of a task."""
        with self._waiting():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the task raised, or None; waits as `result` does."""
        with self._waiting():
            return super().exception(timeout)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        worker = None if self.done() else current_worker()
        if worker is None or worker.current_runner() is None:
            yield
            return
        runner = self._runner
        if self.task is None or not runner.run_inline(self.task, worker):
            if runner.is_exclusive and runner.runs_tasks_in_current_sequence():
                raise WouldDeadlock(runner=runner.name, task=self._describe())
        if self.done() or worker.group is None:
            yield
            return
        with worker.group.blocking(worker), worker.waiting(self.done):
            yield

    def _describe(self) -> str:
        function = self._mainspring_wrapped
        return "(unknown)" if function is None else describe_function(function)
