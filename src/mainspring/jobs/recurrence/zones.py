"""Time zones and clock changes for cron rules: divides a year into periods with a constant offset from UTC.

All values are whole seconds: instants since 1970 (UTC), and wall times since 1970 on the wall clock of the zone.
The periods of a year define which instants a recurring wall time has when clocks change:

- A wall time that does not exist is in a gap. With `"shift"` it is moved by the length of the gap, for example
  from 02:30 to 03:30. With `"skip"` it does not occur.
- A wall time that exists twice is in a fold. With `"first"` its first instant counts, with `"second"` its second
  instant, and with `"both"` both instants.

The periods of a year are in the order of their beginnings. They overlap only where a gap is shifted.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from mainspring.errors import ScheduleInvalid
from mainspring.jobs.timestamps import EPOCH
from mainspring.similar_names import did_you_mean

DstGap: TypeAlias = Literal["shift", "skip"]
DstFold: TypeAlias = Literal["first", "second", "both"]

DAY = 86_400
"""The seconds of a day. The offset of every zone from UTC is smaller than a day."""
FIRST_YEAR, LAST_YEAR = 3, 9990  # a `datetime` must also be able to express the years before and after these
_NAIVE_EPOCH = EPOCH.replace(tzinfo=None)
_EPOCH_DAY = EPOCH.toordinal()
_STEP = 2 * DAY  # time between two checks of an offset; no zone has ever changed twice within six days


class OffsetPeriod(NamedTuple):
    """A period in which every instant has the wall time `instant + offset`. `end` is not part of the period."""

    begin: int
    end: int
    offset: int


class _OffsetChange(NamedTuple):
    at: int
    before: int
    after: int


@lru_cache(maxsize=4096)
def offset_periods(tz: str, dst_gap: DstGap, dst_fold: DstFold, year: int) -> tuple[OffsetPeriod, ...]:
    """Return the periods of constant UTC offset in a UTC year, with gaps and folds treated as the policies say.

    Every occurrence of a cron rule in that year is in one of them.
    """
    # Include the neighbouring years, because a change at New Year may shift or drop wall times of this year.
    changes = [change for near in (year - 1, year, year + 1) for change in _changes(tz, near)]
    begin, offset = start_of(year - 1), _offset(ZoneInfo(tz), start_of(year - 1) - 1)
    found = []
    for at, before, after in changes:
        gap, fold = max(after - before, 0), max(before - after, 0)
        found.append(OffsetPeriod(begin, at - fold if dst_fold == "second" else at, before))
        if dst_gap == "shift":
            found.append(OffsetPeriod(at, at + gap, before))
        begin, offset = (at + fold if dst_fold == "first" else at), after
    found.append(OffsetPeriod(begin, start_of(year + 2), offset))
    first, last = start_of(year), start_of(year + 1)
    clipped = (OffsetPeriod(max(s.begin, first), min(s.end, last), s.offset) for s in found)
    return tuple(period for period in clipped if period.begin < period.end)


@lru_cache(maxsize=4096)
def _changes(tz: str, year: int) -> tuple[_OffsetChange, ...]:
    """Search for the changes of the offset in a UTC year, because zoneinfo does not list them."""
    zone = ZoneInfo(tz)
    found = []
    low, last = start_of(year) - 1, start_of(year + 1) - 1
    before = _offset(zone, low)
    while low < last:
        high = min(low + _STEP, last)
        after = _offset(zone, high)
        if after != before:
            between = range(low + 1, high + 1)
            at = between[bisect_left(between, True, key=lambda second: _offset(zone, second) == after)]
            found.append(_OffsetChange(at, before, after))
        low, before = high, after
    return tuple(found)


def _offset(zone: ZoneInfo, second: int) -> int:
    offset = (EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset.days * DAY + offset.seconds


def start_of(year: int) -> int:
    """Return the start of a UTC year, in seconds since 1970."""
    return to_second(datetime(year, 1, 1))  # noqa: DTZ001 - counted as if it were UTC


def year_of(second: int) -> int:
    """Return the UTC year of an instant, given in seconds since 1970."""
    return date.fromordinal(_EPOCH_DAY + second // DAY).year


def to_wall(second: int) -> datetime:
    """Convert seconds since 1970 on a wall clock to a naive datetime."""
    return _NAIVE_EPOCH + timedelta(seconds=second)


def to_second(wall: datetime) -> int:
    """Convert a naive datetime to seconds since 1970 on a wall clock, without fractions."""
    since = wall - _NAIVE_EPOCH
    return since.days * DAY + since.seconds


def zone_name(tz: object, rule: str) -> str:
    """Return the name of a zone; raise `ScheduleInvalid` if there is no such zone. The error names `rule`."""
    name = tz.key if isinstance(tz, ZoneInfo) else tz
    if not isinstance(name, str):
        raise ScheduleInvalid(
            rule=rule,
            problem=f"tz is {tz!r}, which is not the name of a time zone",
            remedy="give a name such as tz='Asia/Taipei' or tz='UTC', or a ZoneInfo that has a key",
        )
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # an unknown zone; an invalid key; a folder such as 'America'
        usual_first = sorted(available_timezones(), key=lambda zone: (zone.count("/") != 1, zone))
        question = did_you_mean(name, usual_first, separator="/")
        raise ScheduleInvalid(
            rule=rule,
            problem=f"there is no time zone {name!r}",
            remedy=question or "give a name such as 'Asia/Taipei' or 'UTC'",
        ) from None
    return name
