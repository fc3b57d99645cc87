"""The last outcomes of schedules as strips, and their coming dates in two time zones.

Invariants
- The strips of a page of schedules cost one bounded scan for each job type, however many jobs the store has.
- A date is marked if a change of clocks moves it, or if clocks change between the date before and this one, in the
  zone of the schedule or in that of the viewer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.recurrence.schedule_history import HistoryEntry, merge_history
from mainspring.jobs.recurrence.schedule_info import to_occurrence_info
from mainspring.jobs.timestamps import to_datetime
from mainspring.security.permissions import Permissions
from mainspring.web.dashboard.bounded_scan import BoundedScan
from mainspring.web.dashboard.firing_calendar import describe_shift

STRIP = 20
"""The largest number of outcomes in the strip of a schedule."""
SCANNED_JOBS = 400
"""The largest number of jobs of one type that are read for the strips of a page."""
SCANNED_IN_ALL = 4_000
"""The largest number of jobs of all types that are read for the strips of a page."""
SCANNED_HISTORY = 2_000
"""The largest number of jobs of its type that are read for the history of one schedule."""
HISTORY = 500
"""The largest number of entries in the history of one schedule."""
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,99}", re.ASCII)


class NamedSchedule(Protocol):
    """A schedule with its name and job type, as the library or the API shows it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...


class PossibleDate(Protocol):
    """A date of a preview, as the library or the API shows it."""

    @property
    def local(self) -> datetime: ...
    @property
    def note(self) -> str | None: ...
    @property
    def is_skipped(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOutcomes:
    """The history of a schedule, the latest entry first, and the time from which on it is complete."""

    entries: list[HistoryEntry]
    known_since: datetime | None
    """The history has all entries from this instant on; None if it has all entries ever."""


def outcome_strips(
    manager: JobManager, schedules: Sequence[NamedSchedule], permissions: Permissions
) -> dict[str, ScheduleOutcomes]:
    """Return the last outcomes of each schedule, at most 20, by the name of the schedule.

    The outcomes come from the newest jobs of the schedule's job type, up to a bound. Jobs that the caller may not
    read are left out.
    """
    found: dict[str, ScheduleOutcomes] = {}
    rest = SCANNED_IN_ALL
    by_type: dict[str, list[NamedSchedule]] = {}
    for schedule in schedules:
        by_type.setdefault(schedule.type, []).append(schedule)
    for type_, own in by_type.items():
        limit = min(SCANNED_JOBS, rest)
        jobs, since, scanned = _read_jobs(manager, type_, {schedule.name for schedule in own}, limit, permissions)
        rest = max(1, rest - scanned)
        for schedule in own:
            found[schedule.name] = _outcomes(manager, schedule, jobs[schedule.name], since, STRIP)
    return found


def outcomes_of(manager: JobManager, schedule: NamedSchedule, permissions: Permissions) -> ScheduleOutcomes:
    """Return the history of one schedule, at most 500 entries, without jobs that the caller may not read.

    The entries come from the newest jobs of the schedule's job type, up to a bound.
    """
    jobs, since, _ = _read_jobs(manager, schedule.type, {schedule.name}, SCANNED_HISTORY, permissions)
    return _outcomes(manager, schedule, jobs[schedule.name], since, HISTORY)


def _read_jobs(
    manager: JobManager, type_: str, names: set[str], limit: int, permissions: Permissions
) -> tuple[dict[str, list[JobRecord]], int | None, int]:
    """Read the newest jobs of a type, and return those of each of these schedules.

    Also return since when they are complete, in microseconds (None: always), and how many jobs were read.
    """
    found: dict[str, list[JobRecord]] = {name: [] for name in names}
    query = Query(
        type=type_,
        types=None if permissions.types is None else tuple(sorted(permissions.types)),
        queues=None if permissions.queues is None else tuple(sorted(permissions.queues)),
        newest_first=True,
    )
    scan = BoundedScan(manager.engine.find, query, limit)
    reached: int | None = None
    for record in scan:
        reached = record.created
        if record.schedule in found:
            found[record.schedule].append(record)
    return found, None if scan.is_complete else reached, scan.scanned


def _outcomes(
    manager: JobManager, schedule: NamedSchedule, jobs: list[JobRecord], since: int | None, limit: int
) -> ScheduleOutcomes:
    shown = jobs[:limit]
    left_out = [to_occurrence_info(each) for each in manager.engine.occurrences(schedule.name, limit)]
    merged = merge_history(manager.infos(shown), left_out, limit)
    if len(merged) >= limit and merged:
        return ScheduleOutcomes(entries=merged, known_since=merged[-1].at)
    return ScheduleOutcomes(entries=merged, known_since=None if since is None else to_datetime(since))


# -- coming dates


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingDate:
    """A coming occurrence in the time zone of the schedule and in that of the viewer."""

    at: datetime
    """The instant, in the time zone of the schedule."""
    here: datetime
    """The same instant in the time zone of the viewer."""
    marks: tuple[str, ...]
    """Texts about changes of clocks that affect the date; empty if none does."""
    is_skipped: bool
    """Whether the schedule does not fire at this date, because clocks are set forward."""


def coming_dates(dates: Iterable[PossibleDate], viewer: tzinfo) -> list[ComingDate]:
    """Return the dates of a preview in the time zones of schedule and viewer, with the changes of clocks that
    affect them.
    """
    found: list[ComingDate] = []
    before: ComingDate | None = None
    for date in dates:
        here = date.local.astimezone(viewer)
        marks = [] if date.note is None else [date.note]
        if before is not None:
            shift = describe_shift(before.at.utcoffset(), date.local.utcoffset())
            shift_here = describe_shift(before.here.utcoffset(), here.utcoffset())
            marks += [] if shift is None else [f"{shift} before this date"]
            if shift_here is not None and shift_here != shift:
                marks.append(f"{shift_here} in your time zone before this date")
        before = ComingDate(at=date.local, here=here, marks=tuple(marks), is_skipped=date.is_skipped)
        found.append(before)
    return found


def find_zone(name: str | None) -> ZoneInfo | None:
    """Return the time zone with this name; None if there is none. The name may be any text, from a cookie."""
    if name is None or not _ZONE.fullmatch(name):
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, no key at all, or a folder
        return None
