"""The schedules of the naive engine."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.jobs.events import EventKind
from mainspring.jobs.records import NewJob
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    OccurrenceKind,
    Overlap,
    ScheduleRecord,
)
from tests.stress.model_commands import CommandModel

MOST_RECORDS = 100


class ScheduleModel(CommandModel):
    """Schedules by name, and their occurrences without jobs, the earliest first."""

    def __init__(self) -> None:
        super().__init__()
        self.schedules: dict[str, ScheduleRecord] = {}
        self.occurrences: dict[str, list[Occurrence]] = {}

    def put_schedule(self, record: ScheduleRecord, expected: int | None, now: int) -> bool:
        stored = self.schedules.get(record.name)
        if expected != (stored.revision if stored else None):
            return False
        if stored is None:
            self.schedules[record.name] = replace(record, revision=1, created=now)
            return True
        self.schedules[record.name] = replace(
            record,
            revision=stored.revision + 1,
            created=stored.created,
            is_paused=stored.is_paused,
            last_due=stored.last_due,
        )
        return True

    def pause_schedule(self, name: str, next_due: int | None, *, is_paused: bool) -> bool:
        stored = self.schedules.get(name)
        if stored is None or stored.is_paused is is_paused:
            return False
        due = stored.next_due if is_paused else next_due
        self.schedules[name] = replace(stored, is_paused=is_paused, next_due=due)
        return True

    def remove_schedule(self, name: str) -> bool:
        self.occurrences.pop(name, None)
        return self.schedules.pop(name, None) is not None

    def next_firing(self) -> int | None:
        coming = [record.next_due for record in self.schedules.values() if not record.is_paused]
        return min((due for due in coming if due is not None), default=None)

    def fire(self, firing: Firing, now: int, blamed: str | None) -> Fired:
        """Fire; of several jobs that have not ended, any one may be blamed for a skip."""
        stored = self.schedules.get(firing.schedule)
        if stored is None or stored.is_paused:
            return Fired(False)
        if (stored.revision, stored.next_due) != (firing.revision, firing.expected):
            return Fired(False)
        self.schedules[firing.schedule] = replace(stored, next_due=firing.next_due, last_due=firing.last_due)
        self._note(firing.schedule, *firing.records)
        known = {(job["schedule"], job["occurrence"]) for job in self.jobs.values()}
        new = [job for job in firing.jobs if (job.schedule, job.occurrence) not in known]
        earlier = [job for job in self.alive() if new and job["schedule"] == firing.schedule]
        if earlier and firing.overlap is Overlap.SKIP:
            assert blamed in [job["id"] for job in earlier]
            return self._skip(firing.schedule, new, blamed, now)
        if firing.overlap is Overlap.REPLACE:
            for job in earlier:
                self.cancel(job["id"], now)
        return Fired(True, tuple(job.id for job in new if self.submit(job, now) is None))

    def _skip(self, schedule: str, jobs: list[NewJob], blamed: str | None, now: int) -> Fired:
        note = f"job {blamed} of an earlier occurrence has not ended"
        for job in jobs:
            due = job.occurrence or 0
            self._note(schedule, Occurrence(due, due, 1, OccurrenceKind.SKIPPED, note, now))
        return Fired(True, (), blamed)

    def _note(self, schedule: str, *records: Occurrence) -> None:
        self.occurrences[schedule] = [*self.occurrences.get(schedule, []), *records][-MOST_RECORDS:]
        for _ in records:
            self.tell(EventKind.SKIPPED, schedule)
