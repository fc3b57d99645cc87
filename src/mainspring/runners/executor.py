"""Executors: any runner as a `concurrent.futures.Executor`, for code that takes one.

An executor does not own its runner. Its shutdown affects only the futures that it has returned; the runner and its
threads stay.

Invariants
- A future is in `_futures` until it is done. So `shutdown` finds every future that it must wait for or cancel.
- Tasks have the shutdown behaviour BLOCK, unless the caller gives other traits: as with the executors of the
  standard library, a submitted task runs even if the runner is shut down or the interpreter exits meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Executor
from contextlib import suppress
from functools import partial
from sys import _getframe
from threading import RLock
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mainspring.errors import RunnerClosed
from mainspring.runners.future import TaskFuture
from mainspring.runners.task import ShutdownBehavior, TaskTraits, require_traits
from mainspring.runners.worker import current_worker

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_EXECUTOR_TRAITS = TaskTraits(shutdown=ShutdownBehavior.BLOCK)


class RunnerExecutor(Executor):
    """An executor whose tasks run on a runner. `runner.executor()` makes one."""

    def __init__(self, runner: TaskRunner, traits: TaskTraits | None = None) -> None:
        self._runner = runner
        self._traits = DEFAULT_EXECUTOR_TRAITS if traits is None else require_traits(traits)
        self._lock = RLock()  # re-entrant, because a finalizer may submit; guards the following attributes
        self._futures: set[TaskFuture[Any]] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[R]:
        """Run `fn(*args, **kwargs)` on the runner; return the future of its result.

        Raises `RuntimeError` after the shutdown of this executor or of its runner, and `QueueFull` if the runner
        has a capacity and is full.
        """
        function = partial(fn, **kwargs) if kwargs else fn
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError(
                    "cannot schedule new futures after shutdown of this executor, although runner "
                    f"{self._runner.name!r} may go on; submit inside the with block, or make another executor"
                )
            try:
                future = self._runner.submit_from(_getframe(1), function, args, None, self._traits)
            except RunnerClosed as error:
                raise RuntimeError(f"cannot schedule new futures after shutdown: {error}") from error
            self._futures.add(future)
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: Any) -> None:
        with self._lock:
            self._futures.discard(future)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Accept no more tasks, and with `wait` return when the tasks that were submitted have ended.

        `cancel_futures` cancels the tasks that have not begun. The runner goes on. A task of this executor that
        calls `shutdown` does not wait for itself.
        """
        with self._lock:
            self._is_shut_down = True
            waiting = list(self._futures)
        if cancel_futures:
            for future in waiting:
                future.cancel_unstarted()
        if wait:
            worker = current_worker()
            own_task = None if worker is None else worker.calling_worker().task
            for future in waiting:
                if own_task is None or future.task is not own_task:
                    with suppress(CancelledError):
                        future.exception()

    def __repr__(self) -> str:
        return f"<RunnerExecutor of {self._runner!r}>"
