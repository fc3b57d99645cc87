"""Instants and durations of jobs: aware datetimes outside, whole microseconds since 1970 (UTC) inside.

Integers compare, add and index well in every store, and a microsecond is what a `datetime` can express.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mainspring.clock import Duration, to_nanoseconds

MICROSECONDS = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, tzinfo=UTC)
_ONE = timedelta(microseconds=1)
LAST_INSTANT = (LAST - EPOCH) // _ONE
"""The end of time, as far as a `datetime` can tell."""


def to_instant(moment: datetime, name: str) -> int:
    """Convert an aware datetime; `name` is the argument to blame in the error."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be an aware datetime, got {moment!r}")
    if moment.tzinfo is None:
        raise ValueError(
            f"{name} must be an aware datetime, got {moment!r}, which could mean any time zone; "
            "add one: datetime.now(UTC), or moment.replace(tzinfo=ZoneInfo('Asia/Taipei'))"
        )
    return (moment - EPOCH) // _ONE


def to_datetime(instant: int) -> datetime:
    """Convert back, to UTC."""
    return EPOCH + timedelta(microseconds=instant)


def to_microseconds(duration: Duration, name: str) -> int:
    """Convert a duration, rounding up: a delay is never cut short."""
    return -(-to_nanoseconds(duration, name) // 1_000)


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_MANY = 10  # of so many days, hours or minutes, what is beyond the whole number is not told


def describe_distance(instant: int, now: int, *, in_short: bool = False) -> str:
    """Say how far away an instant is: `in 12 min`, `3 h 5 min ago`, `now`; in short `in 90 min`, `3 h ago`."""
    seconds = round(abs(instant - now) / MICROSECONDS)
    if not seconds:
        return "now"
    words = _in_one_unit(seconds) if in_short else _in_two_units(seconds)
    return f"in {words}" if instant > now else f"{words} ago"


def describe_duration(duration: int) -> str:
    """Say how long it is, in one or two units: `90 ms`, `45 s`, `1 h 30 min`."""
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
