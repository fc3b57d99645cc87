"""A calendar of a schedule: its occurrences by day and hour, and how they ended.

Days and hours are those of a time zone. An hour that a change of clocks repeats has one cell for both.

Invariant: a cell whose time the history does not cover, or the rule was not computed for, is unknown, not empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo

from mainspring.jobs.recurrence.schedule_history import HistoryEntry

DAYS_BEFORE = 9
DAYS_AFTER = 4
HOURS = 24
LEVELS = 4
"""The number of shades of cells, by the number of their occurrences."""

_OUTCOMES = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "canceled",
    "RUNNING": "running",
    "PENDING": "pending",
}
_WORST_FIRST = ("failed", "left-out", "canceled", "running", "pending", "completed", "planned")


def outcome_of(entry: HistoryEntry) -> str:
    """Return how an entry of a history ended: the status of its job in lower case, or `left-out` without a job."""
    return "left-out" if entry.status is None else _OUTCOMES.get(entry.status, "pending")


@dataclass(slots=True)
class CalendarCell:
    """One hour of one day in the calendar of a schedule, with its occurrences."""

    start: datetime
    """The begin of the hour, in the time zone of the calendar."""
    is_known: bool
    """False if neither the history nor the computed occurrences cover the hour."""
    counts: dict[str, int] = field(default_factory=dict)
    """Occurrences by outcome: see `outcome_of`; those to come are `planned`."""
    level: int = 0
    """The shade: 0 without occurrences, up to `LEVELS` for the hour with the most occurrences of the calendar."""

    @property
    def total(self) -> int:
        """How many occurrences the hour has."""
        return sum(self.counts.values())

    @property
    def outcome(self) -> str:
        """The worst outcome in the hour; `none` if it has no occurrences, `unknown` if it is not covered."""
        found = next((name for name in _WORST_FIRST if self.counts.get(name)), None)
        return found or ("none" if self.is_known else "unknown")

    @property
    def text(self) -> str:
        """The occurrences of the hour in words, the worst outcome first: `1 failed, 3 completed`.

        It is `nothing` if there are none, and `not read` if the calendar does not cover the hour.
        """
        words = [f"{self.counts[name]:,} {_WORDS[name]}" for name in _WORST_FIRST if self.counts.get(name)]
        return ", ".join(words) or ("nothing" if self.is_known else "not read")


_WORDS = {name: name.replace("-", " ") for name in _WORST_FIRST}


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """One day of the calendar, with a cell for each hour."""

    day: date
    cells: Sequence[CalendarCell]
    clock_change: str | None
    """How clocks change on this day: `clocks go forward 1 h`; None if they do not."""


def calendar_of(
    entries: Iterable[HistoryEntry],
    planned: Iterable[datetime],
    *,
    zone: tzinfo,
    now: datetime,
    known_since: datetime | None,
    known_until: datetime | None,
) -> list[CalendarDay]:
    """Return the calendar of a schedule: nine days before today, today, and four days after it.

    - `entries`: the history of the schedule
    - `planned`: the occurrences to come
    - `known_since`: the earliest instant that the history covers; None if it is complete
    - `known_until`: the last occurrence that was computed; None if there are no more
    """
    today = now.astimezone(zone).date()
    cells = {
        (day, hour): CalendarCell(
            start := datetime(day.year, day.month, day.day, hour, tzinfo=zone),
            is_known=_covers(start, known_since, known_until),
        )
        for day in _days(today)
        for hour in range(HOURS)
    }
    for entry in entries:
        _add(cells, entry.at.astimezone(zone), outcome_of(entry), entry.count)
    for instant in planned:
        _add(cells, instant.astimezone(zone), "planned", 1)
    most = max(cell.total for cell in cells.values())
    for cell in cells.values():
        cell.level = 0 if cell.total == 0 else max(1, round(LEVELS * cell.total / most))
    return [
        CalendarDay(day, [cells[day, hour] for hour in range(HOURS)], clock_change(day, zone))
        for day in _days(today)
    ]


def _days(today: date) -> Iterator[date]:
    for offset in range(-DAYS_BEFORE, DAYS_AFTER + 1):
        yield today + timedelta(days=offset)


def _covers(start: datetime, since: datetime | None, until: datetime | None) -> bool:
    end = start + timedelta(hours=1)
    return (since is None or end > since) and (until is None or start <= until)


def _add(cells: dict[tuple[date, int], CalendarCell], local: datetime, outcome: str, count: int) -> None:
    cell = cells.get((local.date(), local.hour))
    if cell is not None:
        cell.counts[outcome] = cell.counts.get(outcome, 0) + count


def clock_change(day: date, zone: tzinfo) -> str | None:
    """Return how the clocks of a time zone change on a day, such as `clocks go forward 1 h`; None if not."""
    start = datetime(day.year, day.month, day.day, tzinfo=zone)
    following = day + timedelta(days=1)
    end = datetime(following.year, following.month, following.day, tzinfo=zone)
    return describe_shift(start.utcoffset(), end.utcoffset())


def describe_shift(before: timedelta | None, after: timedelta | None) -> str | None:
    """Return the difference of two offsets from UTC as text, such as `clocks go back 1 h`; None if equal."""
    shift = (after or timedelta()) - (before or timedelta())
    if not shift:
        return None
    minutes = abs(shift) // timedelta(minutes=1)
    length = f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
    return f"clocks go {'forward' if shift > timedelta() else 'back'} {length}"
