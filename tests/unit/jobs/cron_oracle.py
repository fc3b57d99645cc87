"""An oracle for cron that knows no shortcuts: it walks through time minute by minute and compares plain fields.

It shares nothing with what it judges: it has its own reading of expressions, it looks at the wall clock of every
UTC minute, takes for ambiguous what it has seen twice, and for missing what it has not seen in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
MINUTE_LONG = 60_000_000  # in microseconds
DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class Minute(NamedTuple):
    """A wall time at an instant: plain, the first or the second of two, or moved out of a gap."""

    instant: int
    wall: datetime
    kind: str


def instant_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def at(text: str, tz: str = "UTC") -> int:
    """The instant of a wall time that exists once."""
    return instant_of(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)))


def changes_of(tz: str, begin: datetime, end: datetime) -> list[datetime]:
    """Every instant at which the offset changes: found day by day, then minute by minute."""
    zone = ZoneInfo(tz)
    found = []
    day = begin
    while day < end:
        if day.astimezone(zone).utcoffset() != (day + DAY).astimezone(zone).utcoffset():
            offsets = [(day + k * MINUTE).astimezone(zone).utcoffset() for k in range(24 * 60 + 1)]
            found += [day + k * MINUTE for k in range(1, len(offsets)) if offsets[k] != offsets[k - 1]]
        day += DAY
    return found


def minutes_between(tz: str, begin: datetime, end: datetime) -> list[Minute]:
    """Every wall minute between two instants, those that clocks leave out included."""
    zone = ZoneInfo(tz)
    count = (end - begin) // MINUTE
    start = instant_of(begin)
    walls = [(begin + k * MINUTE).astimezone(zone).replace(tzinfo=None, fold=0) for k in range(count)]
    times_seen = Counter(walls)
    seen_before: set[datetime] = set()
    found = []
    previous = walls[0] - MINUTE
    for instant, wall in zip(range(start, start + count * MINUTE_LONG, MINUTE_LONG), walls, strict=True):
        if wall - previous > MINUTE:  # the first minute left out is moved to the first one after the gap
            missing = range(1, (wall - previous) // MINUTE)
            found += [Minute(instant + (k - 1) * MINUTE_LONG, previous + k * MINUTE, "moved") for k in missing]
        kind = "plain"
        if times_seen[wall] > 1:
            kind = "second" if wall in seen_before else "first"
            seen_before.add(wall)
        found.append(Minute(instant, wall, kind))
        previous = wall
    return found


class PlainCron:
    """An expression as sets of numbers."""

    def __init__(self, expression: str) -> None:
        parts = expression.upper().split()
        second, minute, hour, day, month, weekday = parts if len(parts) == 6 else ["0", *parts]
        self.seconds = sorted(_numbers(second, 0, 59))
        self.minutes = _numbers(minute, 0, 59)
        self.hours = _numbers(hour, 0, 23)
        self.months = _numbers(month, 1, 12, MONTHS, first=1)
        days, weekdays = day.split(","), weekday.split(",")
        self.days = _numbers(",".join(t for t in days if "L" not in t), 1, 31)
        self.last_day, self.last_working_day = "L" in days, "LW" in days
        plain = ",".join(t for t in weekdays if "#" not in t and not t.endswith("L"))
        self.weekdays = {number % 7 for number in _numbers(plain, 0, 7, WEEKDAYS)}
        self.last_weekdays = {int(t[:-1]) % 7 for t in weekdays if t.endswith("L")}
        self.nth_weekdays = {(_number(t[:-2], WEEKDAYS) % 7, int(t[-1])) for t in weekdays if "#" in t}
        self.needs_both = day.startswith(("*", "?")) or weekday.startswith(("*", "?"))
        self.follows_the_clock = minute.startswith("*") or hour.startswith("*")
        self._known: dict[date, bool] = {}

    def matches_day(self, day: date) -> bool:
        if day not in self._known:
            by_date, by_weekday = self._matches_date(day), self._matches_weekday(day)
            matches = (by_date and by_weekday) if self.needs_both else (by_date or by_weekday)
            self._known[day] = matches and day.month in self.months
        return self._known[day]

    def _matches_date(self, day: date) -> bool:
        if day.day in self.days:
            return True
        later = [day + k * DAY for k in range(1, 4) if (day + k * DAY).month == day.month]
        is_last_working = day.weekday() < 5 and len(later) < 3 and all(other.weekday() >= 5 for other in later)
        return (self.last_day and not later) or (self.last_working_day and is_last_working)

    def _matches_weekday(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        is_last = (day + 7 * DAY).month != day.month
        which = len([k for k in range(5) if (day - 7 * k * DAY).month == day.month and 7 * k < day.day])
        named = weekday in self.weekdays or (weekday, which) in self.nth_weekdays
        return named or (is_last and weekday in self.last_weekdays)

    def hits(self, minutes: list[Minute]) -> list[Minute]:
        """The minutes that match, whatever the policy."""
        wanted, hours = self.minutes, self.hours
        return [
            minute
            for minute in minutes
            if minute.wall.minute in wanted and minute.wall.hour in hours and self.matches_day(minute.wall.date())
        ]

    def days_between(self, begin: date, end: date) -> list[date]:
        days = [begin + k * DAY for k in range((end - begin).days)]
        return [day for day in days if self.matches_day(day)]

    def occurrences(self, hits: list[Minute], dst_gap: str, dst_fold: str) -> list[int]:
        """The instants of those that count, in order, each once."""
        counts = {"plain"}
        if dst_gap == "shift" or (dst_gap == "auto" and not self.follows_the_clock):
            counts.add("moved")
        if dst_fold == "auto":
            counts |= {"first", "second"} if self.follows_the_clock else {"first"}
        else:
            counts |= {"first", "second"} if dst_fold == "both" else {dst_fold}
        return sorted(
            {hit.instant + second * 1_000_000 for hit in hits if hit.kind in counts for second in self.seconds}
        )


def in_span(occurrences: list[int], after: int, until: int) -> list[int]:
    """Those after `after` and not after `until`."""
    return occurrences[bisect_right(occurrences, after) : bisect_right(occurrences, until)]


def first_after(occurrences: list[int], instant: int) -> int | None:
    index = bisect_right(occurrences, instant)
    return occurrences[index] if index < len(occurrences) else None


def last_until(occurrences: list[int], instant: int, after: int) -> int | None:
    found = in_span(occurrences, after, instant)
    return found[-1] if found else None


def _number(text: str, names: tuple[str, ...], first: int = 0) -> int:
    return names.index(text) + first if text in names else int(text)


def _numbers(text: str, low: int, high: int, names: tuple[str, ...] = (), first: int = 0) -> set[int]:
    found: set[int] = set()
    for term in filter(None, text.split(",")):
        body, _, step = term.partition("/")
        start, _, end = body.partition("-")
        is_any = body in ("*", "?")
        begin = low if is_any else _number(start, names, first)
        until = _number(end, names, first) if end else high if is_any or step else begin
        found.update(range(begin, until + 1, int(step or 1)))
    return found
