"""What happens after an attempt: how often and how late a failed job is tried again, and what a handler may raise.

`Retry(max_attempts=6, base=2, factor=2, max_delay=32)` waits 2, 4, 8, 16 and 32 seconds between six attempts.
Failures and timeouts use up attempts; crashes of the worker are counted apart, and a deploy counts nothing. A
handler raises `Retry.Later`, `Snooze` or another of these signals to say how its attempt ends; they are no errors.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf

from mainspring.clock import Duration, to_nanoseconds
from mainspring.jobs.instants import to_microseconds
from mainspring.runners.checks import require_positive


class Snooze(Exception):
    """Not now: run this job again after `delay`. Uses up no attempt."""

    def __init__(self, delay: Duration) -> None:
        to_nanoseconds(delay, "delay")
        self.delay = delay
        super().__init__(f"snooze for {delay}")


class Cancel(Exception):
    """This job is of no use any more: end it as CANCELED, with this reason."""

    def __init__(self, reason: str = "canceled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class RetryLater(Exception):
    """Raised by a handler: this attempt failed, try again after `delay`."""

    def __init__(self, delay: Duration) -> None:
        to_nanoseconds(delay, "delay")
        self.delay = delay
        super().__init__(f"retry after {delay}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A policy for attempts that fail."""

    max_attempts: int = 6
    """How often a job may fail or time out, the first attempt included, before it is a dead letter."""
    base: Duration = 2
    """The wait before the second attempt."""
    factor: float = 2
    """By how much the wait grows each time."""
    max_delay: Duration = 32
    """The longest wait."""
    jitter: float = 0.0
    """The share of a wait that is left to chance, so that many failures do not come back at one instant."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """Errors that no repetition cures: straight to the dead letters."""

    Later = RetryLater

    def __post_init__(self) -> None:
        require_positive(self.max_attempts, "max_attempts", "attempts")
        to_nanoseconds(self.base, "base")
        to_nanoseconds(self.max_delay, "max_delay")
        _require_number(self.factor, "factor")
        _require_number(self.jitter, "jitter")
        if not 1 <= self.factor < inf:
            raise ValueError(f"factor must be a number of at least 1, got {self.factor!r}; waits do not shrink")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be a share between 0 and 1, got {self.jitter!r}")
        given: object = self.give_up_on
        if not (isinstance(given, tuple) and all(map(_is_exception, given))):
            raise TypeError(f"give_up_on must be a tuple of exception classes, got {self.give_up_on!r}")

    def delay_after(self, attempts: int, chance: random.Random) -> int | None:
        """Return the wait, in microseconds, after that many used attempts; None to give up."""
        if attempts >= self.max_attempts:
            return None
        longest = to_microseconds(self.max_delay, "max_delay")
        try:
            wait = min(longest, to_microseconds(self.base, "base") * float(self.factor) ** (attempts - 1))
        except OverflowError:
            wait = longest
        return round(wait * (1 + self.jitter * (2 * chance.random() - 1)))


def _require_number(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
