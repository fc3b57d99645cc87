"""Instants and durations: converts aware datetimes of users to whole microseconds since 1970 (UTC), and back.

Every store can compare, add and index integers well, and a microsecond is the resolution of `datetime`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from mainspring.clock import Clock, Duration, SystemClock, to_nanoseconds

MICROSECONDS = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, tzinfo=UTC)
_ONE = timedelta(microseconds=1)
FIRST = datetime(1, 1, 2, tzinfo=UTC)
FIRST_INSTANT = (FIRST - EPOCH) // _ONE
"""The earliest instant that is stored: the second day of a `datetime`, which exists in every time zone."""
LAST_INSTANT = (LAST - EPOCH) // _ONE
"""The latest instant that is stored: the beginning of 31 December 9999, the last day of a `datetime`."""


def to_instant(moment: datetime, name: str) -> int:
    """Convert an aware datetime to microseconds since 1970.

    Raises `TypeError` for other objects and `ValueError` for a datetime without a time zone; both call it `name`.
    """
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be an aware datetime, got {moment!r}")
    if moment.tzinfo is None:
        raise ValueError(
            f"{name} must be an aware datetime, got {moment!r}, which could mean any time zone; "
            "add one: datetime.now(UTC), or moment.replace(tzinfo=ZoneInfo('Asia/Taipei'))"
        )
    return (moment - EPOCH) // _ONE


def to_past(moment: datetime | timedelta, now: int, name: str) -> int:
    """Convert an aware datetime, or a timedelta before `now`, to microseconds since 1970."""
    if isinstance(moment, timedelta):
        return now - moment // _ONE
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be an aware datetime, or a timedelta before now, got {moment!r}")
    return to_instant(moment, name)


def instants_of(clock: Clock) -> Callable[[], int]:
    """Return a function that reads this clock's wall time, in microseconds since 1970."""
    if isinstance(clock, SystemClock):
        return clock.microseconds
    return lambda: to_instant(clock.now(), "now")


def to_datetime(instant: int) -> datetime:
    """Convert an instant, in microseconds since 1970, to a datetime in UTC."""
    return EPOCH + timedelta(0, 0, instant)  # days, seconds, microseconds: faster than by name


def to_microseconds(duration: Duration, name: str) -> int:
    """Convert a duration to microseconds, rounded up so that a delay is never shortened."""
    return -(-to_nanoseconds(duration, name) // 1_000)


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_MANY = 10  # from this number of days, hours or minutes on, the smaller unit is left out


def describe_distance(instant: int, now: int, *, in_short: bool = False) -> str:
    """Describe how far an instant is: `in 12 min`, `3 h 5 min ago`, `now`; in short `in 90 min`, `3 h ago`."""
    seconds = round(abs(instant - now) / MICROSECONDS)
    if not seconds:
        return "now"
    words = _in_one_unit(seconds) if in_short else _in_two_units(seconds)
    return f"in {words}" if instant > now else f"{words} ago"


def describe_duration(duration: int) -> str:
    """Describe a duration in microseconds, in one or two units: `90 ms`, `45 s`, `1 h 30 min`."""
    seconds = round(duration / MICROSECONDS)
    return _in_two_units(seconds) if seconds else f"{duration / 1_000:g} ms"


def _in_one_unit(seconds: int) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), _UNITS[-1])
    return f"{seconds // size} {unit}"


def _in_two_units(seconds: int) -> str:
    place = next(place for place, (size, _) in enumerate(_UNITS) if seconds >= size)
    size, unit = _UNITS[place]
    number, rest = divmod(seconds, size)
    if number >= _MANY or place + 1 == len(_UNITS):
        return f"{number} {unit}"
    smaller, name = _UNITS[place + 1]
    return f"{number} {unit} {rest // smaller} {name}" if rest >= smaller else f"{number} {unit}"
