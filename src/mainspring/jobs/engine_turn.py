"""The turn to call the engine. One thread at a time has it: the io thread for a batch, or a caller for a call.

If no operation is queued and the turn is free, a caller makes its call on its own thread. This saves two switches
between threads, which take longer than a commit without an fsync. In every other case the caller queues its
operation, and the io thread commits it together with the other queued operations. While several threads submit,
all of them queue. Otherwise a thread that commits alone would make the other threads wait for a transaction of one
job.

Invariants
- A caller makes only its own calls, and never runs code of the control layer: see `OffCallers`.
- A queued operation goes before callers that come later: `is_queue_idle` is False until the operation has its
  reply.
- A `KeyboardInterrupt` may end a caller at any instruction. So callers acquire the lock with `call_with` only, and
  `_holder` is cleared by a plain assignment, during which no interrupt comes.
- A call inside another call on the same thread is refused. Otherwise a signal handler, a finalizer or a callback
  of the engine that submits would wait for the call that it has interrupted. The lock is re-entrant. `_holder` is
  set after the lock is acquired, and cleared before the lock is released. So a signal handler that runs between
  these steps does not wait: its call is made completely before or completely after the call of the interrupted
  thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any, Final, TypeVar

from mainspring.errors import EngineUnavailable, RunnerClosed
from mainspring.jobs.interruptible_lock import call_with
from mainspring.runners.runner import TaskRunner

Result = TypeVar("Result")


class MustQueue:
    """The type of `MUST_QUEUE`."""


MUST_QUEUE: Final = MustQueue()
"""`EngineTurn.call` returns this instead of a result if the caller must queue its operation."""


CALM = 64
"""How many batches in a row must have only one caller before callers make their own calls again."""


class EngineTurn:
    """Lets one thread at a time call the engine: the io thread, or a caller that finds nothing queued."""

    def __init__(self, runner: TaskRunner, *, is_queue_idle: Callable[[], bool], description: str) -> None:
        self._runner = runner
        self._is_queue_idle = is_queue_idle
        self._description = description  # description of the engine, for errors
        self._lock = RLock()
        self._holder = 0  # the thread that calls the engine now
        self._caller = 0  # the same thread if it is a caller, 0 if it is the io thread
        self._is_closed = False
        self._crowd = 0  # how many batches of one caller must come before callers make their own calls again

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result | MustQueue:
        """Call the function, which calls the engine, on this thread, and return its result.

        Return `MUST_QUEUE` instead if another thread calls the engine, if operations are queued or were committed
        together a short time ago, or if the io runner or this object is closed. Raises `EngineUnavailable` if this
        thread is inside such a call already.
        """
        me = get_ident()
        if self._holder == me:
            raise nested_error(self._description)
        if self._holder or self._crowd or not self._is_queue_idle() or self._runner.is_closed:
            return MUST_QUEUE
        return call_with(self._lock, self._call_as, me, function, arguments)

    def _call_as(self, me: int, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result | MustQueue:
        self._holder = self._caller = me
        try:
            # Check both again, because they may have changed while this thread waited for the lock.
            if self._is_closed or not self._is_queue_idle():
                return MUST_QUEUE
            return function(*arguments)
        finally:
            self._holder = self._caller = 0

    def note_batch(self, callers: int) -> None:
        """Record how many operations of callers the io thread commits together: they decide if callers must queue.

        After a batch with several, callers queue until `CALM` batches with one. A batch with none is ignored.
        """
        if callers > 1:
            self._crowd = CALM
        elif callers and self._crowd:
            self._crowd -= 1

    def require_waiting_allowed(self) -> None:
        """Raise `EngineUnavailable` if this thread is calling the engine.

        If so, this is called by code that has interrupted the call, such as a signal handler, a finalizer or a
        callback, which would wait for ever.
        """
        if self._holder == get_ident():
            raise nested_error(self._description)

    @contextmanager
    def held_by_io_thread(self) -> Iterator[None]:
        """Let only the io thread call the engine during a `with` block; first wait until no other thread does."""
        me = get_ident()
        with self._lock:
            self._holder = me
            try:
                yield
            finally:
                self._holder = 0

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self, seconds: float) -> None:
        """Make `call` refuse callers from now on, and wait up to `seconds` for the thread that calls the engine
        now.
        """
        self._is_closed = True
        if seconds and self._lock.acquire(timeout=seconds):
            self._lock.release()

    @property
    def is_held_by_this_caller(self) -> bool:
        """Whether this thread is calling the engine now and is not the io thread."""
        return self._caller == get_ident()


class OffCallers:
    """Calls a function that must not run on the thread of a caller that is calling the engine.

    On such a thread, a task of the io runner calls the function instead. Several requests before this task begins
    become one call.
    """

    def __init__(self, function: Callable[[], object], turn: EngineTurn, runner: TaskRunner) -> None:
        self._function = function
        self._turn = turn
        self._runner = runner
        self._tokens = [None]  # empty while a task is posted and has not begun

    def __call__(self) -> None:
        """Call the function at once; if this thread is calling the engine, post a task that calls it."""
        if not self._turn.is_held_by_this_caller:
            self._function()
            return
        try:
            self._tokens.pop()
        except IndexError:
            return  # the posted task has not begun, so it covers this request
        try:
            self._runner.post(self._run)
        except BaseException as error:
            self._tokens.append(None)
            if not isinstance(error, RunnerClosed):  # a closed runner needs no more calls
                raise

    def _run(self) -> None:
        self._tokens.append(None)  # before the call, because a later request needs another call
        self._function()


def nested_error(description: str) -> EngineUnavailable:
    """Make the error for a call that interrupts another call of the engine on the same thread."""
    return EngineUnavailable(
        engine=description,
        reason="this thread is in the middle of another call, which a signal handler, a finalizer or a callback "
        "has interrupted; the second call has stored nothing",
        remedy="let the signal handler or finalizer only set a flag or start a thread, and make the call outside",
    )
