"""Schedules as they stand on the server, and the jobs of theirs that have not ended.

The record of a schedule names the jobs that it made, as far as nobody knows that they have ended: whoever fires it
reads those, and whoever reopens one of them names it again. A schedule that was removed leaves these names behind:
another of the same name finds them.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.recurrence.schedule_records import Occurrence, ScheduleRecord

KEPT_JOBS = 100
"""How many jobs are remembered, the newest of them: as many as one draft can call off."""
KEPT_OCCURRENCES = 100
REMOVED_KEPT_SECONDS = 604_800
"""How long others have time to notice that a schedule is gone."""


class StoredSchedule(Struct, frozen=True, array_like=True):
    """A schedule as the server has it."""

    record: ScheduleRecord | None
    """None: it was removed."""
    jobs: tuple[str, ...] = ()
    """What it made and what is not known to have ended, the oldest first."""
    nonce: str = ""
    """Who wrote it: tells whether a change whose answer was lost was stored."""


class Skipped(Struct, frozen=True, array_like=True):
    """The occurrences for which no job was made, the latest last."""

    occurrences: tuple[Occurrence, ...] = ()


GONE = StoredSchedule(None)


def read_schedule(workspace: Workspace, name: str) -> StoredSchedule:
    """Return a schedule."""
    return workspace.get_struct(workspace.names.schedule(name), StoredSchedule) or GONE


def remember_job(workspace: Workspace, job: StoredJob) -> None:
    """Name a job that is alive again in the record of the schedule that made it."""
    if job.schedule is None:
        return
    stored = read_schedule(workspace, job.schedule)
    if stored is not GONE and job.id not in stored.jobs:
        jobs = (*stored.jobs, job.id)[-KEPT_JOBS:]
        workspace.put_struct(workspace.names.schedule(job.schedule), replace(stored, jobs=jobs))


def remember_skipped(workspace: Workspace, schedule: str, occurrences: list[Occurrence]) -> None:
    """Keep occurrences for which no job was made, the latest of them."""
    if occurrences:
        subject = workspace.names.skipped(schedule)
        before = workspace.get_struct(subject, Skipped) or Skipped()
        kept = (*before.occurrences, *occurrences)[-KEPT_OCCURRENCES:]
        workspace.put_struct(subject, Skipped(kept))
