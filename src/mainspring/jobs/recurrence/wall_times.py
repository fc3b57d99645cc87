"""The wall times of a cron expression. Finds the first wall time from a second on, and the last up to a second.

`cronsim` parses the fields of an expression. This module searches with integers, because a search with cronsim
takes ten times as long. It caches two results:

- A field is parsed once in a process, however many expressions contain it. Its numbers become a bit mask: bit 5 is
  set if 5 matches.
- The matching days of a month depend only on the length of the month and the weekday of its first day, so there
  are 28 kinds of months. A day pattern (day of month, month, day of week) computes the days of each kind once. All
  expressions with the same three fields share a day pattern.

Both results depend on the expression only, so they never become stale. Wall times are whole seconds since 1970 on
a wall clock.
"""

from __future__ import annotations

from calendar import isleap
from collections.abc import Iterable
from datetime import MAXYEAR, MINYEAR, date
from functools import lru_cache
from typing import Any

from cronsim import CronSim, CronSimError

from mainspring.jobs.recurrence.zones import DAY, to_wall

HOUR, MINUTE = 3_600, 60
YEARS = 50
"""How many years a search covers. Every day pattern recurs within forty years (29 February on a Sunday)."""
CACHED_FIELDS = 4_096
CACHED_PATTERNS = 1_024

_EPOCH = date(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
_START = to_wall(0)
_EVERY_WEEK = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

FieldInvalid = (CronSimError, ValueError)
"""The exceptions for a field that cronsim cannot read. A number with thousands of digits raises a ValueError."""


class NeverOccurs(Exception):
    """Raised if a cron expression matches no day of any year, such as 30 February."""


def parse_field(index: int, text: str) -> CronSim:
    """Parse one field, 0 (second) to 5 (day of week), with `*` for the other fields.

    Raises one of the exceptions in `FieldInvalid` if the field cannot be parsed.
    """
    fields = ["*"] * 6
    fields[index] = text
    return CronSim(" ".join(fields), _START)


@lru_cache(CACHED_FIELDS)
def _items(index: int, text: str) -> frozenset[Any]:
    """Return the numbers that a field of a cron expression matches; for days, also cronsim's values of `L`, `LW`,
    `#`.
    """
    parsed = parse_field(index, text)
    fields = (parsed.seconds, parsed.minutes, parsed.hours, parsed.days, parsed.months, parsed.weekdays)
    return frozenset(fields[index])


@lru_cache(CACHED_FIELDS)
def _mask(index: int, text: str) -> int:
    """Return the bit mask of a field that has only numbers: second, minute, hour or month."""
    return _mask_of(_items(index, text))


def _mask_of(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def _least(mask: int, low: int) -> int:
    """Return the least number of a mask that is not below `low`; -1 if there is none."""
    rest = mask >> low
    return low + (rest & -rest).bit_length() - 1 if rest else -1


def _greatest(mask: int, high: int) -> int:
    """Return the greatest number of a mask that is not above `high`; -1 if there is none."""
    return (mask & ((1 << high + 1) - 1)).bit_length() - 1


class DayPattern:
    """The days that match the fields day of month, month and day of week of a cron expression."""

    __slots__ = ("_dates", "_kinds", "_last", "_last_workday", "_months", "_needs_both", "_nth", "_weekdays")

    def __init__(self, day: str, month: str, weekday: str) -> None:
        """Parse the fields.

        Raises `NeverOccurs` if they match no day of any year, such as 30 February, and one of the exceptions in
        `FieldInvalid` if a field cannot be parsed.
        """
        dates, weekdays = _items(3, day), _items(5, weekday)
        self._dates = _mask_of(number for number in dates if number > 0)
        self._last = CronSim.LAST in dates
        self._last_workday = CronSim.LAST_WEEKDAY in dates
        self._months = _mask(4, month)
        self._weekdays = {item % 7 for item in weekdays if isinstance(item, int)}  # 0 and 7 are Sunday
        self._nth = [(item[0] % 7, item[1]) for item in weekdays if isinstance(item, tuple)]
        self._needs_both = day.startswith("*") or weekday.startswith("*")
        self._kinds: dict[int, int] = {}  # masks of days, by weekday of the first day and length of the month
        if self.first_from(_EPOCH) is None:
            raise NeverOccurs

    def first_from(self, day: date) -> date | None:
        """Return the first day that matches and is not before `day`; None if there is none within `YEARS`."""
        year, low = day.year, day.day
        month = _least(self._months, day.month)
        if month != day.month:
            low = 1
        final = min(year + YEARS, MAXYEAR)
        while year <= final:
            while month > 0:
                found = _least(self._days(year, month), low)
                if found > 0:
                    return date(year, month, found)
                month, low = _least(self._months, month + 1), 1
            year += 1
            month, low = _least(self._months, 1), 1
        return None

    def last_until(self, day: date) -> date | None:
        """Return the last day that matches and is not after `day`; None if there is none within `YEARS`."""
        year, high = day.year, day.day
        month = _greatest(self._months, day.month)
        if month != day.month:
            high = 31
        final = max(year - YEARS, MINYEAR)
        while year >= final:
            while month > 0:
                found = _greatest(self._days(year, month), high)
                if found > 0:
                    return date(year, month, found)
                month, high = _greatest(self._months, month - 1), 31
            year -= 1
            month, high = _greatest(self._months, 12), 31
        return None

    def _days(self, year: int, month: int) -> int:
        """Return the mask of the days of a month that match."""
        length = 29 if month == 2 and isleap(year) else _LENGTHS[month]
        first = date(year, month, 1).isoweekday() % 7
        days = self._kinds.get(32 * first + length)
        if days is None:
            days = self._kinds[32 * first + length] = self._days_of_kind(first, length)
        return days

    def _days_of_kind(self, first: int, length: int) -> int:
        """Return the mask of the days that match in a month that begins with the weekday `first`."""
        by_date, by_weekday = self._dates, 0
        if self._last:
            by_date |= 1 << length
        if self._last_workday:
            last = (first + length - 1) % 7
            by_date |= 1 << length - {6: 1, 0: 2}.get(last, 0)  # the Friday before a Saturday or Sunday
        for weekday in self._weekdays:
            by_weekday |= _EVERY_WEEK << 1 + (weekday - first) % 7
        for weekday, which in self._nth:
            days = _EVERY_WEEK << 1 + (weekday - first) % 7
            by_weekday |= 1 << (_greatest(days, length) if which == CronSim.LAST else _least(days, 7 * which - 6))
        days = by_date & by_weekday if self._needs_both else by_date | by_weekday
        return days & (2 << length) - 2


_day_pattern = lru_cache(CACHED_PATTERNS)(DayPattern)


class WallTimes:
    """The wall times that match a cron expression of five fields, or of six with the second as the first field."""

    __slots__ = ("_days", "_first_time", "_hours", "_minutes", "_seconds")

    def __init__(self, fields: list[str]) -> None:
        """Parse the fields.

        Raises `NeverOccurs` if they match no day of any year, such as 30 February, and one of the exceptions in
        `FieldInvalid` if a field cannot be parsed.
        """
        second, minute, hour, day, month, weekday = fields if len(fields) == 6 else ["0", *fields]
        self._seconds = _mask(0, second)
        self._minutes = _mask(1, minute)
        self._hours = _mask(2, hour)
        self._days = _day_pattern(day, month, weekday)
        self._first_time = self._first_time_from(0)

    def first_from(self, second: int) -> int | None:
        """Return the first wall time that is not before `second`; None if there is none within `YEARS`."""
        number, time = divmod(second, DAY)
        time = self._first_time_from(time)
        if time < 0:
            number, time = number + 1, self._first_time
        try:
            day = date.fromordinal(_EPOCH_DAY + number)
        except (ValueError, OverflowError):  # beyond the range of dates
            return None
        found = self._days.first_from(day)
        if found is None:
            return None
        if found != day:
            number, time = found.toordinal() - _EPOCH_DAY, self._first_time
        return number * DAY + time

    def last_until(self, second: int) -> int | None:
        """Return the last wall time that is not after `second`; None if there is none within `YEARS`."""
        number, time = divmod(second, DAY)
        time = self._last_time_until(time)
        if time < 0:
            number, time = number - 1, self._last_time_until(DAY - 1)
        try:
            day = date.fromordinal(_EPOCH_DAY + number)
        except (ValueError, OverflowError):  # beyond the range of dates
            return None
        found = self._days.last_until(day)
        if found is None:
            return None
        if found != day:
            number, time = found.toordinal() - _EPOCH_DAY, self._last_time_until(DAY - 1)
        return number * DAY + time

    def _first_time_from(self, time: int) -> int:
        """Return the first matching time of day from `time` on, in seconds since midnight; -1 if there is none."""
        at_hour, rest = divmod(time, HOUR)
        at_minute, at_second = divmod(rest, MINUTE)
        hour = _least(self._hours, at_hour)
        if hour == at_hour:
            minute = _least(self._minutes, at_minute)
            if minute == at_minute:
                second = _least(self._seconds, at_second)
                if second >= 0:
                    return hour * HOUR + minute * MINUTE + second
                minute = _least(self._minutes, at_minute + 1)
            if minute >= 0:
                return hour * HOUR + minute * MINUTE + _least(self._seconds, 0)
            hour = _least(self._hours, at_hour + 1)
        if hour < 0:
            return -1
        return hour * HOUR + _least(self._minutes, 0) * MINUTE + _least(self._seconds, 0)

    def _last_time_until(self, time: int) -> int:
        """Return the last matching time of day up to `time`, in seconds since midnight; -1 if there is none."""
        at_hour, rest = divmod(time, HOUR)
        at_minute, at_second = divmod(rest, MINUTE)
        hour = _greatest(self._hours, at_hour)
        if hour == at_hour:
            minute = _greatest(self._minutes, at_minute)
            if minute == at_minute:
                second = _greatest(self._seconds, at_second)
                if second >= 0:
                    return hour * HOUR + minute * MINUTE + second
                minute = _greatest(self._minutes, at_minute - 1)
            if minute >= 0:
                return hour * HOUR + minute * MINUTE + _greatest(self._seconds, 59)
            hour = _greatest(self._hours, at_hour - 1)
        if hour < 0:
            return -1
        return hour * HOUR + _greatest(self._minutes, 59) * MINUTE + _greatest(self._seconds, 59)
