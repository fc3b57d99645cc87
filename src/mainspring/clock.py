"""Time as the rest of the package sees it: two readings and one way to wait.

`monotonic_ns` is for waiting and measuring, `now` (aware UTC) is for records. Waiting belongs to the clock
too, so that a manual clock can drive every delay and every time-out. This is the only module that asks the
operating system for the time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from math import isfinite
from threading import TIMEOUT_MAX, Condition
from typing import Protocol, TypeAlias

Duration: TypeAlias = timedelta | float | int

NANOSECONDS = 1_000_000_000


class ClockMember(Protocol):
    """Something whose progress depends on a clock: a pool with delayed tasks, a worker with a wheel.

    A manual clock steps from `next_due` to `next_due` and lets every member `settle` in between.
    """

    def next_due(self) -> int | None:
        """Return the next monotonic instant at which this member has something to do."""

    def activity(self) -> object:
        """Return something that changes whenever this member has done something."""

    def settle(self, real_seconds: float) -> str | None:
        """Wait until everything started has come to rest; else return the name of what is still busy."""


class Clock(Protocol):
    """The clock that is injected everywhere."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never run backwards."""

    def now(self) -> datetime:
        """Return the wall clock as an aware UTC instant."""

    def wait(self, condition: Condition, deadline_ns: int | None) -> bool:
        """Wait on the held `condition` until notified (True) or until `deadline_ns` has passed (False)."""

    def attach(self, member: ClockMember) -> None:
        """Tell the clock of a member that lives by it."""

    def detach(self, member: ClockMember) -> None:
        """Forget a member; unknown ones are fine."""


class SystemClock:
    """The time of the operating system."""

    monotonic_ns = staticmethod(time.monotonic_ns)

    def now(self) -> datetime:
        return datetime.now(UTC)

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
        """Do nothing: real time reaches everyone by itself."""

    def detach(self, member: ClockMember) -> None:
        """Do nothing: nobody is kept."""


def to_nanoseconds(value: Duration, name: str) -> int:
    """Convert a `timedelta` or a number of seconds; `name` is the argument to blame in the error."""
    if isinstance(value, timedelta):
        nanoseconds = (value.days * 86_400 + value.seconds) * NANOSECONDS + value.microseconds * 1_000
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a timedelta or a number of seconds, got {value!r}")
    elif not isfinite(value * NANOSECONDS):
        raise ValueError(f"{name} must be a finite number of seconds, got {value!r}")
    else:
        nanoseconds = round(value * NANOSECONDS)
    if nanoseconds < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}; time only moves forward")
    return nanoseconds


def deadline_after(clock: Clock, timeout: Duration | None, name: str = "timeout") -> int | None:
    """Return the monotonic instant `timeout` from now, or None for 'no limit'."""
    if timeout is None:
        return None
    return clock.monotonic_ns() + to_nanoseconds(timeout, name)
