"""Cron rules: occurrences by the wall clock of a time zone.

`wall_times.py` finds the wall times of an expression, without a time zone. The periods of the zone (`zones.py`)
convert the wall times to instants. A wall time in a gap is shifted or skipped. If a wall time comes twice (a
fold), the first, the second or both count. Two wall times that fall on one instant are one occurrence. Occurrences
come in the order of instants, which differs from the order of wall times when clocks change. Each search takes a
few steps along wall times, however long the span.

The option `"auto"` chooses the policies by the expression, as Debian's cron does. If the minute or the hour begins
with `*`, the rule follows the wall clock as it runs: wall times in a gap are skipped, and both of a fold count.
Any other rule names fixed wall times: each counts once, shifted out of a gap, the first of a fold. A rule keeps
the policies that were chosen, and not the option, so older workers can read the stored rule.

Expressions have the same meaning as in Debian's cron:
- If the field day of month or the field day of week begins with `*` (such as `*/2`), a day must match both fields.
  Otherwise a day must match one of the two fields.
- A step counts from the start of its range. So `*/7` in the day of month starts again with each month.
- `5/15` means `5-59/15`. If a step is larger than the range, only the first value matches. Sunday is 0 and 7.
- `?` for a day of month or a day of week is written as `*`. (Debian's cron does not know `?`; Quartz does.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo

from mainspring.clock import SystemClock
from mainspring.errors import ScheduleInvalid
from mainspring.jobs.recurrence.wall_times import YEARS, FieldInvalid, NeverOccurs, WallTimes, parse_field
from mainspring.jobs.recurrence.zones import (
    DAY,
    FIRST_YEAR,
    LAST_YEAR,
    DstFold,
    DstGap,
    OffsetPeriod,
    offset_periods,
    start_of,
    to_second,
    to_wall,
    year_of,
    zone_name,
)
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime, to_instant
from mainspring.plurals import format_count

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

# The name of each field, the values that it allows, and an example.
_FIELDS = (
    ("second", "0 to 59", "*/10"),
    ("minute", "0 to 59", "*/5"),
    ("hour", "0 to 23", "9-17"),
    ("day of month", "1 to 31, L (the last day) or LW (the last weekday)", "1,15"),
    ("month", "1 to 12 or JAN to DEC", "JAN,JUL"),
    (
        "day of week",
        "0 to 7 or SUN to SAT (0 and 7 are Sunday), 5L (the last Friday) or 5#2 (the second)",
        "MON-FRI",
    ),
)
_FIELD_COUNTS = (5, 6)
_DAY_FIELDS = (-3, -1)  # day of month and day of week

DstGapOption: TypeAlias = Literal["auto", "shift", "skip"]
DstFoldOption: TypeAlias = Literal["auto", "first", "second", "both"]
_GAPS, _FOLDS = get_args(DstGapOption), get_args(DstFoldOption)


def parse(expression: object) -> tuple[str, WallTimes, bool]:
    """Return the normalized cron expression, its wall times, and whether its minute or hour begins with `*`.

    Raises `ScheduleInvalid` if the expression is wrong or never occurs.
    """
    if not isinstance(expression, str):
        raise ScheduleInvalid(
            rule="cron",
            problem=f"the expression is {expression!r}, which is not text",
            remedy="give one such as '30 2 * * MON-FRI' or '@daily'",
        )
    text = " ".join(expression.split()).upper()
    if text.startswith("@"):
        text = text.lower()
        if text not in ALIASES:
            raise ScheduleInvalid(
                rule=f"cron {text!r}", problem="there is no such alias", remedy=f"give one of {', '.join(ALIASES)}"
            )
    fields = ALIASES.get(text, text).split()
    if len(fields) not in _FIELD_COUNTS:
        raise _explain(text, fields)
    normalized = text
    if "?" in text:
        for index in _DAY_FIELDS:
            if fields[index] == "?":
                fields[index] = "*"
        normalized = " ".join(fields)
    try:
        walls = WallTimes(fields)
    except (*FieldInvalid, NeverOccurs):
        raise _explain(text, fields) from None
    minute, hour = fields[-5], fields[-4]
    return normalized, walls, minute.startswith("*") or hour.startswith("*")


def _explain(text: str, parts: list[str]) -> ScheduleInvalid:
    """Make the error for a cron expression that cannot be parsed or never occurs; it names the wrong field."""
    rule = f"cron {text!r}"
    if len(parts) not in _FIELD_COUNTS:
        return ScheduleInvalid(
            rule=rule,
            problem=f"the expression has {format_count(len(parts), 'field')}",
            remedy="give 5 (minute, hour, day of month, month, day of week) or 6 with seconds first, "
            "such as '30 2 * * MON-FRI', or an alias such as @daily",
        )
    first = 6 - len(parts)
    for index, (part, (name, allowed, example)) in enumerate(zip(parts, _FIELDS[first:], strict=True), first):
        wrong = [term for term in part.split(",") if not _fits(index, term)]
        if wrong:
            within = "" if part == wrong[0] else f", where {wrong[0]!r} is not allowed"
            return ScheduleInvalid(
                rule=rule,
                problem=f"{name} is {part!r}{within}",
                remedy=f"give {allowed}, as *, a list (1,3), a range from low to high (1-5) or steps (*/5); "
                f"for example {example!r}",
            )
    return ScheduleInvalid(
        rule=rule,
        problem=f"the rule never occurs: no year has a day with day of month {parts[-3]!r}, month {parts[-2]!r} "
        f"and day of week {parts[-1]!r}",
        remedy="give a day that exists, such as L for the last day of a month",
    )


def _fits(index: int, term: str) -> bool:
    try:
        parse_field(index, term)
    except FieldInvalid:
        return False
    return True


_FIRST, _LAST = start_of(FIRST_YEAR), start_of(LAST_YEAR + 1) - 1
# The offsets of one zone always differ by less than this. So a clock change moves an occurrence by less than this.
_MARGIN = 2 * DAY


@dataclass(frozen=True, slots=True, init=False)
class Cron:
    """Recur when the wall clock of `tz` matches `expression`.

    An expression has five fields (minute, hour, day of month, month, day of week), or six with seconds first. It
    may use names (`MON`, `JAN`), `L` and `LW` for the last day and the last weekday of a month, `5L` for the last
    Friday, and `5#2` for the second. `?` for a day of month or day of week means `*`. The expression may also be
    an alias such as `@daily`.

    When clocks change, a wall time that does not exist is moved by the length of the gap (`dst_gap="shift"`, 02:30
    becomes 03:30) or dropped (`"skip"`). If a wall time occurs twice, the first, the second or both count
    (`dst_fold`). Two wall times that fall on one instant are one occurrence.

    The default `"auto"` does what Debian's cron does. An expression whose minute or hour begins with `*` goes on
    in real time: `"skip"` and `"both"`. A fixed wall time counts exactly once: `"shift"` and `"first"`.
    """

    expression: str
    tz: str = field(kw_only=True)
    dst_gap: DstGap = field(kw_only=True)
    """The policy for gaps, never `"auto"`."""
    dst_fold: DstFold = field(kw_only=True)
    """The policy for folds, never `"auto"`."""
    _walls: WallTimes = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        expression: str,
        *,
        tz: str | ZoneInfo = "UTC",
        dst_gap: DstGapOption = "auto",
        dst_fold: DstFoldOption = "auto",
    ) -> None:
        text, walls, follows_clock = parse(expression)
        rule = f"cron {text!r}"
        _require_one_of(dst_gap, _GAPS, "dst_gap", rule)
        _require_one_of(dst_fold, _FOLDS, "dst_fold", rule)
        keep = object.__setattr__
        keep(self, "expression", text)
        keep(self, "tz", zone_name(tz, rule))
        keep(self, "dst_gap", dst_gap if dst_gap != "auto" else "skip" if follows_clock else "shift")
        keep(self, "dst_fold", dst_fold if dst_fold != "auto" else "both" if follows_clock else "first")
        keep(self, "_walls", walls)

    def next(self, after: datetime) -> datetime | None:
        """Return the first occurrence after `after`, in the zone of the rule.

        Return None if there is no occurrence within fifty years.
        """
        instant = self.next_after(to_instant(after, "after"))
        return None if instant is None else self.local(instant)[0]

    def upcoming(self, n: int, after: datetime | None = None) -> list[datetime]:
        """Return the next `n` occurrences after `after`, or after now.

        The list is shorter if fifty years pass without an occurrence.
        """
        if type(n) is not int or n < 0:
            raise ValueError(f"n must be a whole number of occurrences, got {n!r}; give 0 or more, such as 5")
        instant: int | None = to_instant(SystemClock().now() if after is None else after, "after")
        found: list[datetime] = []
        while len(found) < n and instant is not None and (instant := self.next_after(instant)) is not None:
            found.append(self.local(instant)[0])
        return found

    def next_after(self, instant: int) -> int | None:
        """Return the first occurrence after `instant`, in microseconds; None if none is within fifty years."""
        second = max(instant // MICROSECONDS + 1, _FIRST)
        if second > _LAST:
            return None
        year = year_of(second)
        final = min(year + YEARS, LAST_YEAR)
        while year <= final:
            best: int | None = None
            for begin, end, offset in self._offset_periods(year):
                start = max(begin, second)
                if start >= end or (best is not None and start >= best):
                    continue
                wall = self._walls.first_from(start + offset)
                if wall is not None and wall < end + offset:
                    best = wall - offset if best is None else min(best, wall - offset)
                elif wall is not None and start < end - _MARGIN:
                    second = wall - DAY  # no earlier wall time matches: go on one day before it
            if best is not None:
                return best * MICROSECONDS
            year = max(year + 1, year_of(second))
        return None

    def last_until(self, instant: int, after: int) -> int | None:
        """Return the latest occurrence that is after `after` and not after `instant`.

        Return None if there is none, or none within fifty years before `instant`.
        """
        second = min(instant // MICROSECONDS, _LAST)
        lowest = max(after // MICROSECONDS + 1, _FIRST)
        if second < lowest:
            return None
        year = year_of(second)
        final = max(year - YEARS, year_of(lowest))
        while year >= final:
            best: int | None = None
            for begin, end, offset in reversed(self._offset_periods(year)):
                start = min(end - 1, second)
                if start < begin or (best is not None and start <= best):
                    continue
                wall = self._walls.last_until(start + offset)
                if wall is not None and wall >= begin + offset:
                    best = wall - offset if best is None else max(best, wall - offset)
                elif wall is not None and start > begin + _MARGIN:
                    second = wall + DAY
            if best is not None:
                return best * MICROSECONDS if best >= lowest else None
            year = min(year - 1, year_of(second))
        return None

    def count_between(self, after: int, until: int, limit: int) -> int:
        """Count the occurrences that are after `after` and not after `until`, but stop at `limit`."""
        count = 0
        while count < limit:
            found = self.next_after(after)
            if found is None or found > until:
                break
            after = found
            count += 1
        return count

    def local(self, instant: int) -> tuple[datetime, str | None]:
        """Return an occurrence in the zone of the rule, and a text for users if a clock change affects the
        occurrence.
        """
        shown = to_datetime(instant).astimezone(ZoneInfo(self.tz))
        wall = to_second(shown.replace(tzinfo=None))
        second = instant // MICROSECONDS
        moved = [
            second + offset
            for begin, end, offset in self._offset_periods(year_of(second))
            if begin <= second < end and self._walls.first_from(second + offset) == second + offset
        ]
        if moved and wall not in moved:
            return shown, f"moved by a DST gap from {_clock_face(to_wall(moved[0]), shown)}"
        other = shown.replace(fold=1 - shown.fold)
        if other.utcoffset() == shown.utcoffset():
            return shown, None
        return shown, f"{'second' if shown.fold else 'first'} of two {_clock_face(shown, shown)}"

    def describe(self) -> dict[str, object]:
        """Return plain data from which `rule_from` makes an equal rule."""
        return {
            "kind": "cron",
            "expression": self.expression,
            "tz": self.tz,
            "dst_gap": self.dst_gap,
            "dst_fold": self.dst_fold,
        }

    def _offset_periods(self, year: int) -> tuple[OffsetPeriod, ...]:
        return offset_periods(self.tz, self.dst_gap, self.dst_fold, year)


def _clock_face(wall: datetime, shown: datetime) -> str:
    time = wall.strftime("%H:%M:%S" if wall.second else "%H:%M")
    return time if wall.date() == shown.date() else f"{wall.date().isoformat()} {time}"


def _require_one_of(value: object, allowed: tuple[str, ...], name: str, rule: str) -> None:
    if value not in allowed:
        raise ScheduleInvalid(
            rule=rule,
            problem=f"{name} is {value!r}",
            remedy="give " + " or ".join(map(repr, allowed)),
        )
