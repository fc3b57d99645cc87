"""Unique keys: which jobs hold a key, and which job an occurrence of a schedule has.

The record of a key names the jobs that were submitted with it, the newest first. Each submit with the key writes
the record, so of two concurrent submits one sees the other. A job that ends does not change it: its own record
shows that it has ended.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.stored import StoredJob, encode
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.records import Conflict, NewJob, UniqueKey, conflict_of
from mainspring.jobs.status import JobStatus

MOST_HOLDERS = 16
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)


class Holders(Struct, frozen=True, array_like=True):
    """The jobs of a key, the newest first; if there are many, the oldest are dropped."""

    ids: tuple[str, ...]


def find_conflict(workspace: Workspace, job: NewJob) -> Conflict | None:
    """Return the conflict that keeps a new job from being stored: with its occurrence or its unique key."""
    return conflict_of(
        job,
        same_id=False,
        same_occurrence=find_occurrence(workspace, job),
        holder=None if job.unique is None else _find_holder(workspace, job.unique),
    )


def find_occurrence(workspace: Workspace, job: NewJob) -> str | None:
    """Return the job that was stored for the same occurrence of a schedule."""
    if job.schedule is None or job.occurrence is None:
        return None
    subject = workspace.names.occurrence(job.schedule, job.occurrence)
    return next((existing.id for existing in _jobs_of(workspace, subject)), None)


def _find_holder(workspace: Workspace, unique: UniqueKey) -> str | None:
    for job in _jobs_of(workspace, workspace.names.key(unique.key)):
        if job.unique_key == unique.key and unique.is_held_by(job.status, job.created, workspace.now):
            return job.id
    return None


def _jobs_of(workspace: Workspace, subject: str) -> list[StoredJob]:
    holders = workspace.get_struct(subject, Holders)
    ids = holders.ids if holders else ()
    workspace.prefetch_jobs(ids)
    return [job for job_id in ids if (job := workspace.job(job_id)) is not None]


def claim(workspace: Workspace, job: StoredJob) -> None:
    """Make a new job the holder of its unique key and its occurrence."""
    if job.unique_key is not None:
        _add(workspace, workspace.names.key(job.unique_key), job.id)
    if job.schedule is not None and job.occurrence is not None:
        _add(workspace, workspace.names.occurrence(job.schedule, job.occurrence), job.id)


def _add(workspace: Workspace, subject: str, job_id: str) -> None:
    """Put a job first, and drop jobs that were deleted."""
    holders = workspace.get_struct(subject, Holders)
    others = [other for other in (holders.ids if holders else ()) if other != job_id]
    workspace.prefetch_jobs(others)
    known = [other for other in others if workspace.job(other) is not None]
    workspace.put_struct(subject, Holders((job_id, *known[: MOST_HOLDERS - 1])))


def find_alive_holder(workspace: Workspace, job: StoredJob) -> str | None:
    """Return another job with the same unique key that has not ended; None if there is none."""
    if job.unique_key is None:
        return None
    others = _jobs_of(workspace, workspace.names.key(job.unique_key))
    return next((other.id for other in others if other.id != job.id and other.status in ALIVE), None)


def release(workspace: Workspace, job: StoredJob) -> None:
    """Delete the keys of a deleted job, if no other job has them."""
    for subject in _keys_of(workspace, job):
        holders = workspace.get_struct(subject, Holders)
        if holders is not None and holders.ids == (job.id,):
            workspace.forget(subject)


def release_later(workspace: Workspace, job: StoredJob, seconds: int) -> None:
    """Make the keys of a job expire a little after the job itself, if no other job has them."""
    for subject in _keys_of(workspace, job):
        others = [other for other in _jobs_of(workspace, subject) if other.id != job.id]
        if not others:
            workspace.put(subject, encode(Holders((job.id,))), {"Nats-TTL": f"{seconds + 60}s"})


def _keys_of(workspace: Workspace, job: StoredJob) -> list[str]:
    subjects = []
    if job.unique_key is not None:
        subjects.append(workspace.names.key(job.unique_key))
    if job.schedule is not None and job.occurrence is not None:
        subjects.append(workspace.names.occurrence(job.schedule, job.occurrence))
    return subjects
