"""How jobs come in: what is in their way, and what is done about it."""

from __future__ import annotations

from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.journal import Journal
from mainspring.jobs.engine import Conflict, ConflictKind, EventKind, JobRecord, NewJob, UniqueKey
from mainspring.jobs.transitions import replaced, submitted


class Intake:
    """Stores new jobs."""

    def __init__(self, jobs: Jobs, journal: Journal) -> None:
        self._jobs = jobs
        self._journal = journal

    def add(self, job: NewJob, now: int) -> Conflict | None:
        """Store a job, or say what was in its way."""
        if job.id in self._jobs.records:
            return Conflict(job.id, ConflictKind.ID)
        if job.unique is not None or job.schedule is not None:
            existing = self._in_the_way(job, now)
            if existing is not None:
                return self._give_way(job, existing, now)
        record = submitted(JobRecord, job, now)
        self._jobs.add(record)
        self._journal.write(EventKind.SUBMITTED, record, now)
        return None

    def _in_the_way(self, job: NewJob, now: int) -> JobRecord | None:
        if job.schedule is not None:
            existing = self._jobs.keys.with_occurrence(job.schedule, job.occurrence)
            if existing is not None:
                return self._jobs.records[existing]
        return None if job.unique is None else self._holder_of(job.unique, now)

    def _holder_of(self, unique: UniqueKey, now: int) -> JobRecord | None:
        holders = (self._jobs.at(place) for place in self._jobs.keys.newest(unique.key, unique.states))
        return next((job for job in holders if unique.window is None or now - job.created < unique.window), None)

    def _give_way(self, job: NewJob, existing: JobRecord, now: int) -> Conflict:
        if job.unique is None or not job.unique.replaces or existing.unique_key != job.unique.key:
            self._journal.write(EventKind.DEDUPLICATED, existing, now)
            return Conflict(existing.id, ConflictKind.UNIQUE)
        self._jobs.put(replaced(existing, job), is_placed_anew=True)
        self._journal.write(EventKind.RESCHEDULED, existing, now)
        return Conflict(existing.id, ConflictKind.REPLACED)
