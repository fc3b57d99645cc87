"""Who holds a unique key, and which job an occurrence of a schedule has.

The record of a key names the jobs that were submitted under it, the newest first. Whoever stores another one
writes it, so of two who come at the same moment one sees the other. Jobs that end need not tell: their own records
do.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.stored import StoredJob, encode
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.records import NewJob, UniqueKey
from mainspring.jobs.status import JobStatus

MOST_HOLDERS = 16
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)


class Holders(Struct, frozen=True, array_like=True):
    """The jobs of a key, the newest first; the last ones are forgotten when there are many."""

    ids: tuple[str, ...]


def find_in_the_way(workspace: Workspace, job: NewJob) -> StoredJob | None:
    """Return the job that keeps a new one from being stored."""
    if job.schedule is not None and job.occurrence is not None:
        subject = workspace.names.occurrence(job.schedule, job.occurrence)
        for existing in _jobs_of(workspace, subject):
            return existing
    return None if job.unique is None else _find_holder(workspace, job.unique)


def _find_holder(workspace: Workspace, unique: UniqueKey) -> StoredJob | None:
    for job in _jobs_of(workspace, workspace.names.key(unique.key)):
        is_young = unique.window is None or workspace.now - job.created < unique.window
        if job.unique_key == unique.key and job.status in unique.states and is_young:
            return job
    return None


def _jobs_of(workspace: Workspace, subject: str) -> list[StoredJob]:
    holders = workspace.get_struct(subject, Holders)
    ids = holders.ids if holders else ()
    workspace.prefetch_jobs(ids)
    return [job for job_id in ids if (job := workspace.job(job_id)) is not None]


def claim(workspace: Workspace, job: StoredJob) -> None:
    """Let a new job hold its keys."""
    if job.unique_key is not None:
        _add(workspace, workspace.names.key(job.unique_key), job.id)
    if job.schedule is not None and job.occurrence is not None:
        _add(workspace, workspace.names.occurrence(job.schedule, job.occurrence), job.id)


def _add(workspace: Workspace, subject: str, job_id: str) -> None:
    """Put a job first. Those that have ended and were forgotten go."""
    holders = workspace.get_struct(subject, Holders)
    others = [other for other in (holders.ids if holders else ()) if other != job_id]
    workspace.prefetch_jobs(others)
    known = [other for other in others if workspace.job(other) is not None]
    workspace.put_struct(subject, Holders((job_id, *known[: MOST_HOLDERS - 1])))


def find_alive_holder(workspace: Workspace, job: StoredJob) -> str | None:
    """Return another job that has not ended, with the same unique key."""
    if job.unique_key is None:
        return None
    others = _jobs_of(workspace, workspace.names.key(job.unique_key))
    return next((other.id for other in others if other.id != job.id and other.status in ALIVE), None)


def release(workspace: Workspace, job: StoredJob) -> None:
    """A job is forgotten: its keys with it, if it was the only one to have them."""
    for subject in _keys_of(workspace, job):
        holders = workspace.get_struct(subject, Holders)
        if holders is not None and holders.ids == (job.id,):
            workspace.forget(subject)


def release_later(workspace: Workspace, job: StoredJob, seconds: int) -> None:
    """The server will forget a job: let it forget its keys a little later, if nobody else has them by then."""
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
