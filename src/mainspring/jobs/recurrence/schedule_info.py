"""Snapshots of schedules for users, with aware datetimes, decoded arguments, the rule and upcoming occurrences."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mainspring.jobs.policies import CatchUp
from mainspring.jobs.recurrence.planning import first_due
from mainspring.jobs.recurrence.rules import Rule, rule_of
from mainspring.jobs.recurrence.schedule_definition import Misfire
from mainspring.jobs.recurrence.schedule_records import Occurrence, OccurrenceKind, Overlap, ScheduleRecord
from mainspring.jobs.serializers import BUILT_IN, Serializers
from mainspring.jobs.timestamps import to_datetime
from mainspring.runners.task import Priority
from mainspring.runners.validation import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A snapshot of a schedule for users, as it was when it was read."""

    name: str
    type: str
    queue: str
    priority: Priority
    rule: Rule | None
    """A `Cron` or an `Every`; None if a newer version of Mainspring wrote a rule that this version cannot read."""
    arguments: Any
    misfire: Misfire
    overlap: Overlap
    jitter: timedelta
    start: datetime | None
    end: datetime | None
    next_due: datetime | None
    """The next occurrence; None if the schedule has ended."""
    last_due: datetime | None
    """The last occurrence that was handled: it got a job, or was left out, which the history then shows."""
    is_paused: bool
    is_declared: bool | None
    """True if a decorator in the code declared the schedule, False if `put` stored it, None if it is not known.

    Version 0.1 did not store it.
    """
    created: datetime
    record: ScheduleRecord = field(repr=False, compare=False)
    """The stored record of the schedule; its payload is empty if the handler redacts parameters."""

    def upcoming(self, count: int = 5) -> list[datetime]:
        """Return the next `count` occurrences, in the time zone of the rule; fewer if the schedule ends before.

        The list is empty while the schedule is paused, and if this version cannot read the rule.
        """
        require_positive(count, "count", "occurrences")
        instant, rule = self.record.next_due, self.rule
        found: list[datetime] = []
        while instant is not None and rule is not None and not self.is_paused and len(found) < count:
            found.append(rule.local(instant)[0])
            instant = first_due(rule, self.record.start, self.record.end, instant)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OccurrenceInfo:
    """One or more successive occurrences of a schedule for which no job was made."""

    first: datetime
    last: datetime
    count: int
    """The number of occurrences; at most 10,000 are counted."""
    kind: OccurrenceKind
    """Why no job was made: `skipped`, `coalesced` (one later job ran for all of them) or `missed`."""
    note: str
    decided: datetime


def to_schedule_info(record: ScheduleRecord, serializers: Serializers = BUILT_IN) -> ScheduleInfo:
    """Make a snapshot of a stored schedule."""
    return ScheduleInfo(
        name=record.name,
        type=record.type,
        queue=record.queue,
        priority=Priority(record.priority),
        rule=rule_of(record),
        arguments=serializers.decode_any(record.payload, record.codec),
        misfire=CatchUp(record.catch_up) if record.misfire == "all" else record.misfire,  # type: ignore[arg-type]
        overlap=record.overlap,
        jitter=timedelta(microseconds=record.jitter),
        start=_optional(record.start),
        end=_optional(record.end),
        next_due=_optional(record.next_due),
        last_due=_optional(record.last_due),
        is_paused=record.is_paused,
        is_declared=record.is_declared,
        created=to_datetime(record.created),
        record=record,
    )


def to_occurrence_info(occurrence: Occurrence) -> OccurrenceInfo:
    """Make a snapshot of a stored record of one or more occurrences that got no job."""
    return OccurrenceInfo(
        first=to_datetime(occurrence.due),
        last=to_datetime(occurrence.until),
        count=occurrence.count,
        kind=occurrence.kind,
        note=occurrence.note,
        decided=to_datetime(occurrence.decided),
    )


def _optional(instant: int | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
