"""Schedules in memory: their records, the agenda of what is next, and the firing of occurrences."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile

from msgspec.structs import replace

from mainspring.engines.memory.commands import Commands
from mainspring.engines.memory.intake import Intake
from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.journal import Journal
from mainspring.jobs.engine import (
    Fired,
    Firing,
    NewJob,
    Occurrence,
    OccurrenceKind,
    Overlap,
    PauseSchedule,
    PutSchedule,
    ScheduleRecord,
)

KEPT_OCCURRENCES = 100


class Schedules:
    """Schedules by name, and those that are not paused by their next occurrence."""

    def __init__(self) -> None:
        self._records: dict[str, ScheduleRecord] = {}
        self._agenda: list[tuple[int, str]] = []
        self._occurrences: dict[str, deque[Occurrence]] = {}

    def get(self, name: str) -> ScheduleRecord | None:
        """Return a schedule."""
        return self._records.get(name)

    def put(self, order: PutSchedule, now: int) -> bool:
        """Store a schedule, if its author has seen the one that is there."""
        stored = self._records.get(order.record.name)
        if order.expected != (None if stored is None else stored.revision):
            return False
        if stored is None:
            self.replace(replace(order.record, revision=1, created=now))
            return True
        self.replace(
            replace(
                order.record,
                revision=stored.revision + 1,
                created=stored.created,
                is_paused=stored.is_paused,
                last_due=stored.last_due,
            )
        )
        return True

    def pause(self, order: PauseSchedule) -> bool:
        """Let a schedule rest, or wake it up."""
        stored = self._records.get(order.name)
        if stored is None or stored.is_paused is order.is_paused:
            return False
        if order.expected not in (None, stored.revision):
            return False
        next_due = stored.next_due if order.is_paused else order.next_due
        self.replace(replace(stored, is_paused=order.is_paused, next_due=next_due))
        return True

    def remove(self, name: str) -> bool:
        """Forget a schedule and its occurrences."""
        stored = self._records.pop(name, None)
        self._occurrences.pop(name, None)
        if stored is not None:
            self._strike(stored)
        return stored is not None

    def replace(self, record: ScheduleRecord) -> None:
        """Keep a schedule as it is now."""
        before = self._records.get(record.name)
        if before is not None:
            self._strike(before)
        self._records[record.name] = record
        if record.next_due is not None and not record.is_paused:
            insort(self._agenda, (record.next_due, record.name))

    def note(self, name: str, occurrences: Sequence[Occurrence]) -> None:
        """Remember occurrences for which no job was made."""
        self._occurrences.setdefault(name, deque(maxlen=KEPT_OCCURRENCES)).extend(occurrences)

    def occurrences(self, name: str, limit: int) -> list[Occurrence]:
        """Return what was noted, the latest first."""
        return list(islice(reversed(self._occurrences.get(name, ())), limit))

    def next_firing(self) -> int | None:
        """Return the first occurrence of all."""
        return self._agenda[0][0] if self._agenda else None

    def find(self, names: Sequence[str] | None, due_until: int | None, limit: int | None) -> list[ScheduleRecord]:
        """List schedules by name; or those that are due by then, the earliest first."""
        if due_until is None:
            found = sorted(self._records if names is None else self._records.keys() & set(names))
            return [self._records[name] for name in found[:limit]]
        wanted = None if names is None else set(names)
        due = takewhile(lambda entry: entry[0] <= due_until, self._agenda)
        records = (self._records[name] for _, name in due if wanted is None or name in wanted)
        return list(islice(records, limit))

    def _strike(self, record: ScheduleRecord) -> None:
        if record.next_due is not None and not record.is_paused:
            del self._agenda[bisect_left(self._agenda, (record.next_due, record.name))]


class Firings:
    """Carries out decisions about occurrences."""

    def __init__(
        self, schedules: Schedules, jobs: Jobs, intake: Intake, commands: Commands, journal: Journal
    ) -> None:
        self._schedules = schedules
        self._jobs = jobs
        self._intake = intake
        self._commands = commands
        self._journal = journal

    def fire(self, firing: Firing, now: int) -> Fired:
        """Move a schedule on and store the jobs of its occurrences, if nobody was quicker."""
        stored = self._schedules.get(firing.schedule)
        if stored is None or stored.is_paused:
            return Fired(False)
        if (stored.revision, stored.next_due) != (firing.revision, firing.expected):
            return Fired(False)
        self._schedules.replace(replace(stored, next_due=firing.next_due, last_due=firing.last_due))
        self._note(stored, firing.records, now)
        alive = [self._jobs.at(place) for place in self._jobs.keys.alive_of(firing.schedule)]
        known = self._jobs.keys.with_occurrence
        jobs = [job for job in firing.jobs if known(firing.schedule, job.occurrence) is None]
        if firing.overlap is Overlap.SKIP and alive and jobs:
            self._note(stored, [_skipped(job, alive[0].id, now) for job in jobs], now)
            return Fired(True, (), alive[0].id)
        if firing.overlap is Overlap.REPLACE and jobs:
            for earlier in alive:
                self._commands.cancel(earlier, now)
        return Fired(True, tuple(job.id for job in jobs if self._intake.add(job, now) is None))

    def _note(self, schedule: ScheduleRecord, occurrences: Sequence[Occurrence], now: int) -> None:
        self._schedules.note(schedule.name, occurrences)
        for occurrence in occurrences:
            note = f"{occurrence.kind}: {occurrence.note}"
            self._journal.write_skipped(schedule.name, schedule.type, schedule.queue, note, now)


def _skipped(job: NewJob, earlier: str, now: int) -> Occurrence:
    due = job.due if job.occurrence is None else job.occurrence
    note = f"job {earlier} of an earlier occurrence has not ended"
    return Occurrence(due, due, 1, OccurrenceKind.SKIPPED, note, now)
