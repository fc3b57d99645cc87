"""The records of schedules as they are stored on the server.

The record of a schedule has the ids of its jobs that are not known to have ended. A firing reads these jobs, and a
reopened job is added again. The record of a removed schedule keeps the ids, for a later schedule of the same name.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.job_records import StoredJob
from mainspring.engines.nats.transaction import Transaction
from mainspring.jobs.recurrence.schedule_records import Occurrence, ScheduleRecord

KEPT_JOBS = 100
"""How many job ids a schedule's record keeps: those of its newest jobs, as many as one transaction can cancel."""
KEPT_OCCURRENCES = 100
REMOVED_KEPT_SECONDS = 604_800
"""How many seconds the record of a removed schedule is kept, so that other processes see the removal.

A record that lists jobs which are not known to have ended is kept without end.
"""


class StoredSchedule(Struct, frozen=True, array_like=True):
    """A schedule as it is stored on the server."""

    record: ScheduleRecord | None
    """The schedule; None if it was removed."""
    jobs: tuple[str, ...] = ()
    """The ids of the schedule's jobs that are not known to have ended, the oldest first."""
    nonce: str = ""
    """A value that identifies the last change. It shows that a change was stored although its reply was lost."""


class SkippedOccurrences(Struct, frozen=True, array_like=True):
    """The latest occurrences of a schedule for which no job was made, the latest last."""

    occurrences: tuple[Occurrence, ...] = ()


NO_SCHEDULE = StoredSchedule(None)


def read_schedule(transaction: Transaction, name: str) -> StoredSchedule:
    """Return a schedule as a transaction reads it; `NO_SCHEDULE` if there is no record."""
    return transaction.get_struct(transaction.names.schedule(name), StoredSchedule) or NO_SCHEDULE


def add_job(transaction: Transaction, job: StoredJob) -> None:
    """Add a reopened job to the unfinished jobs in the record of its schedule, if it has one with a record."""
    if job.schedule is None:
        return
    stored = read_schedule(transaction, job.schedule)
    if stored is not NO_SCHEDULE and job.id not in stored.jobs:
        jobs = (*stored.jobs, job.id)[-KEPT_JOBS:]
        transaction.put_struct(transaction.names.schedule(job.schedule), replace(stored, jobs=jobs))


def add_skipped(transaction: Transaction, schedule: str, occurrences: list[Occurrence]) -> None:
    """Store occurrences for which no job was made. Only the latest are kept."""
    if occurrences:
        subject = transaction.names.skipped(schedule)
        before = transaction.get_struct(subject, SkippedOccurrences) or SkippedOccurrences()
        kept = (*before.occurrences, *occurrences)[-KEPT_OCCURRENCES:]
        transaction.put_struct(subject, SkippedOccurrences(kept))
