"""The clocks of the package: they return the time, and threads wait through them.

`monotonic_ns` is for waiting and measuring, `now` (aware UTC) is for records. Threads wait through the clock, too,
so that a manual clock can drive every delay and every timeout. This is the only module that asks the operating
system for the time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from math import isfinite
from threading import TIMEOUT_MAX, Condition
from typing import Protocol, TypeAlias

Duration: TypeAlias = timedelta | float | int

NANOSECONDS = 1_000_000_000

process_ns = time.process_time_ns
"""Returns the processor time that all threads of this process have used, in nanoseconds."""
thread_ns = time.thread_time_ns
"""Returns the processor time that the calling thread has used, in nanoseconds."""


class ClockMember(Protocol):
    """A component whose progress depends on a clock, such as a pool with delayed tasks or a worker.

    A manual clock advances from one `next_due` to the next and calls `settle` of every member in between.
    """

    def next_due(self) -> int | None:
        """Return the next monotonic time, in nanoseconds, at which this member has work to do; None for never."""

    def activity(self) -> object:
        """Return a value that changes whenever this member has done work. A manual clock compares the values."""

    def settle(self, real_seconds: float) -> str | None:
        """Wait until all started work of this member has ended or waits for the clock, and return None.

        After `real_seconds`, return the name of a part that is still busy instead.
        """


class Clock(Protocol):
    """The interface of a clock. Components get their clock as a parameter."""

    def monotonic_ns(self) -> int:
        """Return the monotonic time in nanoseconds; it never decreases."""

    def now(self) -> datetime:
        """Return the wall-clock time as an aware UTC `datetime`."""

    def wait(self, condition: Condition, deadline_ns: int | None) -> bool:
        """Wait on `condition`, whose lock the caller holds; return True if it was notified before `deadline_ns`.

        Return False if the monotonic time `deadline_ns` has passed. Without a deadline, wait until the condition
        is notified.
        """

    def attach(self, member: ClockMember) -> None:
        """Register a component that works by this clock.

        A manual clock stops at the due times of the component, and waits until it has done its work.
        """

    def detach(self, member: ClockMember) -> None:
        """Remove a registered component. Unknown ones are ignored."""


class SystemClock:
    """The clock of the operating system."""

    monotonic_ns = staticmethod(time.monotonic_ns)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def microseconds(self) -> int:
        """Return the wall-clock time in microseconds since 1970; cheaper than `now`."""
        return time.time_ns() // 1_000

    def wait(self, condition: Condition, deadline_ns: int | None) -> bool:
        if deadline_ns is None:
            condition.wait()
            return True
        remaining = deadline_ns - time.monotonic_ns()
        if remaining <= 0:
            return False
        condition.wait(min(remaining / NANOSECONDS, TIMEOUT_MAX))
        return time.monotonic_ns() < deadline_ns

    def attach(self, member: ClockMember) -> None:
        """Do nothing: real time advances by itself."""

    def detach(self, member: ClockMember) -> None:
        """Do nothing: this clock does not keep track of components."""


def to_nanoseconds(value: Duration, name: str) -> int:
    """Convert a `timedelta` or a number of seconds to nanoseconds; `name` is the argument's name, for errors.

    Raises `TypeError` for other types, and `ValueError` for a negative or infinite value.
    """
    if type(value) is float and 0 <= value < NANOSECONDS:  # a short cut for the usual values
        return round(value * NANOSECONDS)
    if isinstance(value, timedelta):
        nanoseconds = (value.days * 86_400 + value.seconds) * NANOSECONDS + value.microseconds * 1_000
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a timedelta or a number of seconds, got {value!r}")
    elif not isfinite(value * NANOSECONDS):
        raise ValueError(f"{name} must be a finite number of seconds, got {value!r}")
    else:
        nanoseconds = round(value * NANOSECONDS)
    if nanoseconds < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}; pass zero or more")
    return nanoseconds


def deadline_after(clock: Clock, timeout: Duration | None, name: str = "timeout") -> int | None:
    """Return the monotonic time `timeout` from now, in nanoseconds; None if `timeout` is None.

    Raises `TypeError` or `ValueError`, which names the argument `name`, if `timeout` is no duration.
    """
    if timeout is None:
        return None
    return clock.monotonic_ns() + to_nanoseconds(timeout, name)
