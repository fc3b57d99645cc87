"""Reads that are repeated without a user waiting for them, such as the updates of open pages.

A block of `PeriodicReads` marks all reads that its coroutine and its tasks make, on any thread of `OffLoop`:

- Their processor time is measured, so that the next ones can be delayed (`jobs.pace`). Blocks of `computing`,
  which never wait, show how much of a processor this process gets.
- An engine with a projection may answer them from an earlier state, and says how old it is.
- Reads of one round that ask the same question share the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.clock import SystemClock, thread_ns

if TYPE_CHECKING:
    from mainspring.jobs.engine import Engine
    from mainspring.jobs.store_statistics import StoreStatistics

R = TypeVar("R")

REMEMBERED = 4
"""How many rounds show how much of a processor this process gets."""


class PeriodicReads:
    """The periodic reads of one reader, such as a server with open pages. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = RLock()  # guards the following attributes
        self._spent_ns = 0
        self._age_ns = 0
        self._answers: dict[Hashable, Any] = {}
        self._computed = (0, 0)  # the elapsed time and the processor time of computations in this round
        self._shares = deque([1.0], maxlen=REMEMBERED)  # the availability in the last rounds

    @contextmanager
    def round(self) -> Iterator[None]:
        """Begin a new round of reads; the reads within the `with` block belong to it.

        Answers of an earlier round are not used again.
        """
        with self._lock:
            self._answers, self._age_ns = {}, 0
            elapsed, spent = self._computed
            if elapsed:
                self._shares.append(spent / elapsed)
            self._computed = (0, 0)
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def measure(self, call: Callable[[], R]) -> R:
        """Make a call on the present thread as a part of these reads, and count its processor time."""
        token = _current.set(self)
        began = thread_ns()
        try:
            return call()
        finally:
            self.add(thread_ns() - began)
            _current.reset(token)

    def add(self, spent_ns: int) -> None:
        """Count nanoseconds of processor time. A negative number takes out time that is counted elsewhere."""
        with self._lock:
            self._spent_ns += spent_ns

    def take_spent(self) -> int:
        """Return the nanoseconds of processor time counted since the last `take_spent`, and begin again at 0."""
        with self._lock:
            spent, self._spent_ns = self._spent_ns, 0
            return max(0, spent)

    def note_computed(self, elapsed_ns: int, spent_ns: int) -> None:
        """Record the elapsed time and the processor time of a computation that never waits."""
        with self._lock:
            elapsed, spent = self._computed
            self._computed = (elapsed + elapsed_ns, spent + spent_ns)

    @property
    def availability(self) -> float:
        """The processor time that a thread which never waits gets, as a share of the elapsed time: 0 to 1.

        It is the lowest of the last rounds, because a computation of a millisecond is often not interrupted
        although other processes want the same processor.
        """
        with self._lock:
            elapsed, spent = self._computed
            return min(1.0, *self._shares, *([spent / elapsed] if elapsed else []))

    def note_age(self, age_ns: int) -> None:
        """Record that an answer of this round shows a state of the store that is `age_ns` nanoseconds old."""
        with self._lock:
            self._age_ns = max(self._age_ns, age_ns)

    @property
    def age_ns(self) -> int:
        """The age of the oldest answer of this round, in nanoseconds; 0 if no answer has noted an age."""
        return self._age_ns

    def once(self, key: Hashable, read: Callable[[], R]) -> R:
        """Return this round's answer for `key`; if there is none yet, call `read` and keep what it returns."""
        with self._lock:
            if key not in self._answers:
                self._answers[key] = read()
            answer: R = self._answers[key]
            return answer


_current: ContextVar[PeriodicReads | None] = ContextVar("mainspring_periodic_reads", default=None)


def periodic_reads() -> PeriodicReads | None:
    """Return the periodic reads to which the present call belongs; None for all other calls."""
    return _current.get()


@contextmanager
def computing() -> Iterator[None]:
    """Measure a block that never waits, if it belongs to periodic reads."""
    reads = _current.get()
    if reads is None:
        yield
        return
    began, began_spent = SystemClock.monotonic_ns(), thread_ns()
    try:
        yield
    finally:
        reads.note_computed(SystemClock.monotonic_ns() - began, thread_ns() - began_spent)


def shared_statistics(engine: Engine) -> StoreStatistics:
    """Count the jobs of a store. Periodic reads of one round share the answer."""
    reads = _current.get()
    return engine.statistics() if reads is None else reads.once(("statistics", id(engine)), engine.statistics)


def carried(call: Callable[[], R]) -> Callable[[], R]:
    """Return a callable for another thread that makes `call` as a part of the present call's periodic reads.

    If the present call belongs to no periodic reads, return `call` itself.
    """
    reads = _current.get()
    return call if reads is None else partial(reads.measure, call)
