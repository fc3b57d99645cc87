"""Retry policies with back-off, and the exceptions by which a handler snoozes, retries or cancels its job.

The default, `Retry()`, makes 13 attempts within 37 to 56 minutes, so that jobs survive an outage of half an hour.
`Retry(max_attempts=6, base=2, factor=2, max_delay=32, jitter=0)` waits 2, 4, 8, 16 and 32 seconds between six
attempts.
Failures and timeouts use up attempts. Crashes are counted separately, and an attempt that a shutdown interrupts
does not count. A handler raises `Snooze` or `Cancel` to end its attempt without a failure, and `Retry.Later` to
fail its attempt and choose the delay of the retry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from mainspring.clock import Duration, to_nanoseconds
from mainspring.jobs.timestamps import describe_duration, to_microseconds
from mainspring.runners.validation import require_positive


class Suspend(BaseException):
    """The base class of `Snooze`, `Cancel` and `Retry.Later`, by which a handler ends its attempt on purpose.

    It is no `Exception`, so that an `except Exception` of the handler does not swallow it and complete the job.
    """


class Snooze(Suspend):
    """Raised by a handler to run its job again after `delay`. This uses up no attempt."""

    def __init__(self, delay: Duration) -> None:
        to_nanoseconds(delay, "delay")
        self.delay = delay
        super().__init__(f"snooze for {delay}")


class Cancel(Suspend):
    """Raised by a handler to end its job as CANCELED, with a reason."""

    def __init__(self, reason: str = "canceled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class RetryLater(Suspend):
    """Raised by a handler, as `Retry.Later`, to fail this attempt and retry the job after `delay`.

    If no attempt is left, the job becomes a dead letter.
    """

    def __init__(self, delay: Duration) -> None:
        to_nanoseconds(delay, "delay")
        self.delay = delay
        super().__init__(f"retry after {delay}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A retry policy: how often a failed job is retried, and with which back-off."""

    max_attempts: int = 13
    """After this many failed or timed out attempts, including the first, a job becomes a dead letter."""
    base: Duration = 2
    """The delay before the second attempt."""
    factor: float = 2
    """The factor by which the delay grows each time."""
    max_delay: Duration = 600
    """The longest delay before a retry. With `jitter`, a delay may be longer by that share."""
    jitter: float = 0.2
    """The share of each delay, 0 to 1, by which it varies at random, so that retries do not coincide."""
    on: tuple[type[BaseException], ...] | None = None
    """The exceptions of a handler that are retried; None for all. Others make the job a dead letter at once."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """Exceptions that are not retried, also if `on` names one of their base classes."""

    Later = RetryLater

    def __str__(self) -> str:
        """Describe the attempts and delays: `13 attempts, 2 s to 10 min apart`."""
        if self.max_attempts == 1:
            return "one attempt"
        first, last = (self.delay_after(used, lambda: 0.5) or 0 for used in (1, self.max_attempts - 1))
        delays = " to ".join(dict.fromkeys(describe_duration(delay) for delay in (first, last)))
        return f"{self.max_attempts:,} attempts, {delays} apart"

    def __post_init__(self) -> None:
        require_positive(self.max_attempts, "max_attempts", "attempts")
        to_nanoseconds(self.base, "base")
        to_nanoseconds(self.max_delay, "max_delay")
        _require_number(self.factor, "factor")
        _require_number(self.jitter, "jitter")
        if not 1 <= self.factor < inf:
            raise ValueError(
                f"factor must be a finite number of at least 1, got {self.factor!r}; delays do not shrink"
            )
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be a share between 0 and 1, got {self.jitter!r}")
        if self.on is not None:
            _require_exceptions(self.on, "on")
        _require_exceptions(self.give_up_on, "give_up_on")

    def gives_up(
        self, is_one_of: Callable[[tuple[type[BaseException], ...]], bool], *, has_timed_out: bool = False
    ) -> bool:
        """Return whether an exception of a handler is not retried. `is_one_of` compares it with exception classes.

        If the handler ended after its timeout, only `give_up_on` applies, not `on`.
        """
        if is_one_of(self.give_up_on):
            return True
        return self.on is not None and not has_timed_out and not is_one_of((*self.on, RetryLater))

    def delay_after(self, attempts: int, draw: Callable[[], float]) -> int | None:
        """Return the microseconds before the next attempt, after `attempts` used ones; None if none is left.

        `draw` returns the random number behind the jitter, from 0 for the shortest delay to 1 for the longest.
        """
        if attempts >= self.max_attempts:
            return None
        longest = to_microseconds(self.max_delay, "max_delay")
        try:
            wait = min(longest, to_microseconds(self.base, "base") * float(self.factor) ** (attempts - 1))
        except OverflowError:
            wait = longest
        return round(wait * (1 + self.jitter * (2 * draw() - 1)))


def _require_number(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")


def _require_exceptions(given: object, name: str) -> None:
    if not (isinstance(given, tuple) and all(map(_is_exception, given))):
        raise TypeError(f"{name} must be a tuple of exception classes, got {given!r}")


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
