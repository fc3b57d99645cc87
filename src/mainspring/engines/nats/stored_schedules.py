"""The schedule record as it is stored on the server, with the jobs of the schedule that may not have ended.

The record of a schedule names its jobs that are not known to have ended. A firing reads them, and a reopen adds
its job again. The record of a removed schedule keeps these names: another schedule of the same name finds them.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.recurrence.schedule_records import Occurrence, ScheduleRecord

KEPT_JOBS = 100
"""How many jobs the record names, the newest ones: as many as one transaction can cancel."""
KEPT_OCCURRENCES = 100
REMOVED_KEPT_SECONDS = 604_800
"""How long other processes can notice that a schedule was removed."""


class StoredSchedule(Struct, frozen=True, array_like=True):
    """A schedule as it is stored on the server."""

    record: ScheduleRecord | None
    """None: it was removed."""
    jobs: tuple[str, ...] = ()
    """Its jobs that are not known to have ended, the oldest first."""
    nonce: str = ""
    """Names the change that wrote it: tells whether one whose answer was lost was stored."""


class Skipped(Struct, frozen=True, array_like=True):
    """The occurrences for which no job was made, the latest last."""

    occurrences: tuple[Occurrence, ...] = ()


GONE = StoredSchedule(None)


def read_schedule(workspace: Workspace, name: str) -> StoredSchedule:
    """Return a schedule; `GONE` if there is no record."""
    return workspace.get_struct(workspace.names.schedule(name), StoredSchedule) or GONE


def remember_job(workspace: Workspace, job: StoredJob) -> None:
    """Add a reopened job to the record of its schedule."""
    if job.schedule is None:
        return
    stored = read_schedule(workspace, job.schedule)
    if stored is not GONE and job.id not in stored.jobs:
        jobs = (*stored.jobs, job.id)[-KEPT_JOBS:]
        workspace.put_struct(workspace.names.schedule(job.schedule), replace(stored, jobs=jobs))


def remember_skipped(workspace: Workspace, schedule: str, occurrences: list[Occurrence]) -> None:
    """Store occurrences for which no job was made; only the latest are kept."""
    if occurrences:
        subject = workspace.names.skipped(schedule)
        before = workspace.get_struct(subject, Skipped) or Skipped()
        kept = (*before.occurrences, *occurrences)[-KEPT_OCCURRENCES:]
        workspace.put_struct(subject, Skipped(kept))
