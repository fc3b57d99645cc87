"""Threads for calls that wait for the store, so that a coroutine can await such a call without blocking its loop.

`async_twin` makes the asynchronous twin of a method: the twin runs the method itself on one of these threads. So
the method and its twin have one implementation, one signature and one set of errors.

Invariants
- No call uses the default executor of an event loop. Its threads belong to the user's code, which may fill them
  with calls that wait for jobs.
- Calls that write never occupy all threads. While another process holds the write lock, calls that only read go
  on.
- Calls that only compute run one at a time. The interpreter runs one thread at a time, and the event loop would
  wait for its turn behind each of them.
- Threads start with the first call, and end with `close`. A call after `close` starts new ones.
- A call belongs to the same periodic reads as the coroutine that has made it (`jobs.periodic_reads`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from threading import Lock
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from mainspring.errors import EngineUnavailable, RunnerClosed
from mainspring.jobs.periodic_reads import carried
from mainspring.runners.future import TaskFuture
from mainspring.runners.runner import TaskRunner
from mainspring.runners.task import ShutdownBehavior, TaskTraits
from mainspring.runners.thread_pool import ThreadPool

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 8
WRITERS = 4  # threads that calls which write may occupy

# At the exit of the interpreter, a read is abandoned, and a write is waited for.
_READS = TaskTraits(shutdown=ShutdownBehavior.CONTINUE)
_WRITES = TaskTraits(shutdown=ShutdownBehavior.SKIP)
_END: Any = object()


class _Threads(NamedTuple):
    """The threads of an `OffLoop`: all of them, and the runners with a share of them."""

    pool: ThreadPool
    writers: TaskRunner
    computing: TaskRunner


class OffLoop:
    """Runs calls on threads of its own, for coroutines of any number of event loops."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the following attributes
        self._threads: _Threads | None = None

    async def read(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that only reads the store on a thread of this object, and return its result.

        If the awaiting task is canceled, a call that has not begun is dropped; the result of a call that has begun
        is ignored. Raises `EngineUnavailable` if `close` has dropped the call.
        """
        return await self.result(self.submit(partial(function, *args, **kwargs), writes=False))

    async def write(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that may write to the store on a thread of this object, and return its result.

        If the awaiting task is canceled, a call that has not begun is dropped. A call that has begun goes on.
        Raises `EngineUnavailable` if `close` has dropped the call.
        """
        return await self.result(self.submit(partial(function, *args, **kwargs), writes=True))

    async def compute(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that takes processor time and waits for nothing, such as the decoding of a large request.

        One such call runs at a time. It is dropped, or its result ignored, as that of `read`.
        """
        call = partial(function, *args, **kwargs)
        return await self.result(self._submit(call, lambda threads: threads.computing, _READS))

    def submit(self, call: Callable[[], R], *, writes: bool) -> TaskFuture[R]:
        """Queue a call for a thread of this object, and return the future of its result.

        At most eight calls run at once, and at most four of those with `writes`; further ones wait. The first call
        starts the threads, as does the first one after `close`.
        """
        if writes:
            return self._submit(call, lambda threads: threads.writers, _WRITES)
        return self._submit(call, lambda threads: threads.pool, _READS)

    def _submit(
        self, call: Callable[[], R], choose: Callable[[_Threads], TaskRunner], traits: TaskTraits
    ) -> TaskFuture[R]:
        call = carried(call)
        while True:
            threads = self._open()
            try:
                return choose(threads).submit(call, traits=traits)
            except RunnerClosed:  # by `close` on another thread, or at the exit of the interpreter
                self._forget(threads)

    async def result(self, future: TaskFuture[R]) -> R:
        """Await the result of a call that `submit` has queued.

        Raises `EngineUnavailable` if `close` has dropped the call before it began.
        """
        import asyncio  # noqa: PLC0415 - slow to import; the caller's event loop has imported it

        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # `close` has dropped the call
                raise EngineUnavailable(
                    engine="the store of this application",
                    reason="the application was closed before this call began",
                    remedy="await the call before close()",
                ) from None
            raise

    def close(self) -> None:
        """End the threads without waiting: calls in progress go on, and calls that have not begun are dropped.

        A coroutine that awaits a dropped call gets `EngineUnavailable`. The next call starts new threads.
        """
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.pool.shutdown(timeout=0)

    def _open(self) -> _Threads:
        with self._lock:
            if self._threads is None:
                pool = ThreadPool(THREADS, name="mainspring-async")
                writers = pool.parallel(limit=WRITERS, name="mainspring-async-writes")
                computing = pool.parallel(limit=1, name="mainspring-async-computing")
                self._threads = _Threads(pool, writers, computing)
            return self._threads

    def _forget(self, threads: _Threads) -> None:
        with self._lock:
            if self._threads is threads:
                self._threads = None


class CallsStore(Protocol):
    """An object whose methods wait for the store."""

    @property
    def _off_loop(self) -> OffLoop:
        """The threads on which the asynchronous versions (`async_twin`) of this object's methods run."""


S = TypeVar("S", bound=CallsStore)


def async_twin(
    method: Callable[Concatenate[S, P], R], *, writes: bool = False
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Make the asynchronous version of a method, its twin: `get_async = async_twin(get)`.

    The twin runs the method on a thread that is not the event loop's. Pass `writes=True` if the method may write.
    """

    @wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        off_loop = self._off_loop
        run = off_loop.write if writes else off_loop.read
        return await run(method, self, *args, **kwargs)

    _name_twin(twin, method)
    return twin


def async_iterator_twin(
    method: Callable[Concatenate[S, P], Iterator[R]],
) -> Callable[Concatenate[S, P], AsyncIterator[R]]:
    """Make the asynchronous version of a generator method that may write.

    It runs each step of the generator on a thread.
    """

    @wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
        steps = method(self, *args, **kwargs)
        while (step := await self._off_loop.write(next, steps, _END)) is not _END:
            yield step

    _name_twin(twin, method)
    return twin


def _name_twin(twin: Callable[..., Any], method: Callable[..., Any]) -> None:
    twin.__name__ = f"{method.__name__}_async"
    twin.__qualname__ = f"{method.__qualname__}_async"
    twin.__doc__ = (
        f"Asynchronous version of `{method.__name__}`, which does not block the event loop.\n\n{method.__doc__}"
    )
