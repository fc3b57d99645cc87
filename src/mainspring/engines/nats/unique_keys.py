"""Unique keys: the jobs that hold a key, and the job of each occurrence of a schedule.

The record of a key has the ids of the last jobs that were submitted with it, the newest first. A submit that
stores a job with the key writes the record, so of two concurrent submits one sees the other. A job that ends does
not change this list: readers find the end in the record of the job.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.job_records import StoredJob, encode
from mainspring.engines.nats.transaction import Transaction
from mainspring.jobs.records import Conflict, NewJob, UniqueKey, conflict_of
from mainspring.jobs.status import JobStatus

MAX_HOLDERS = 16
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)


class KeyHolders(Struct, frozen=True, array_like=True):
    """The ids of the jobs with a unique key, or of an occurrence, the newest first. Only the newest are kept."""

    ids: tuple[str, ...]


def find_conflict(transaction: Transaction, job: NewJob) -> Conflict | None:
    """Return the conflict with a stored job of the same occurrence, or that holds the unique key; None if there is
    none. Jobs with the same id are not looked for.
    """
    return conflict_of(
        job,
        same_id=False,
        same_occurrence=find_occurrence(transaction, job),
        holder=None if job.unique is None else _find_holder(transaction, job.unique),
    )


def find_occurrence(transaction: Transaction, job: NewJob) -> str | None:
    """Return the id of the job that was stored for the same occurrence of a schedule; None if there is none."""
    if job.schedule is None or job.occurrence is None:
        return None
    subject = transaction.names.occurrence(job.schedule, job.occurrence)
    return next((existing.id for existing in _jobs_of(transaction, subject)), None)


def _find_holder(transaction: Transaction, unique: UniqueKey) -> str | None:
    for job in _jobs_of(transaction, transaction.names.key(unique.key)):
        if job.unique_key == unique.key and unique.is_held_by(
            job.status, job.created, transaction.now, has_started=job.starts > 0
        ):
            return job.id
    return None


def _jobs_of(transaction: Transaction, subject: str) -> list[StoredJob]:
    holders = transaction.get_struct(subject, KeyHolders)
    ids = holders.ids if holders else ()
    transaction.prefetch_jobs(ids)
    return [job for job_id in ids if (job := transaction.job(job_id)) is not None]


def claim(transaction: Transaction, job: StoredJob) -> None:
    """Record a new or reopened job as the holder of its unique key and of its occurrence, if it has them."""
    if job.unique_key is not None:
        _add(transaction, transaction.names.key(job.unique_key), job.id)
    if job.schedule is not None and job.occurrence is not None:
        _add(transaction, transaction.names.occurrence(job.schedule, job.occurrence), job.id)


def _add(transaction: Transaction, subject: str, job_id: str) -> None:
    """Put a job before the others into the record of its unique key or occurrence.

    The record keeps at most `MAX_HOLDERS` jobs, the newest, also those that have ended, but not deleted ones.
    """
    holders = transaction.get_struct(subject, KeyHolders)
    others = [other for other in (holders.ids if holders else ()) if other != job_id]
    transaction.prefetch_jobs(others)
    known = [other for other in others if transaction.job(other) is not None]
    transaction.put_struct(subject, KeyHolders((job_id, *known[: MAX_HOLDERS - 1])))


def find_alive_holder(transaction: Transaction, job: StoredJob) -> str | None:
    """Return the id of another job with the same unique key that has not ended; None if there is none."""
    if job.unique_key is None:
        return None
    others = _jobs_of(transaction, transaction.names.key(job.unique_key))
    return next((other.id for other in others if other.id != job.id and other.status in ALIVE), None)


def release(transaction: Transaction, job: StoredJob) -> None:
    """Delete the records of the unique key and the occurrence of a deleted job, unless they name another job."""
    for subject in _keys_of(transaction, job):
        holders = transaction.get_struct(subject, KeyHolders)
        if holders is not None and holders.ids == (job.id,):
            transaction.delete(subject)


def release_later(transaction: Transaction, job: StoredJob, seconds: int) -> None:
    """Make the records of the unique key and of the occurrence of an ended job expire a minute after the job.

    A record that names another stored job is left alone. The job expires in `seconds`.
    """
    for subject in _keys_of(transaction, job):
        others = [other for other in _jobs_of(transaction, subject) if other.id != job.id]
        if not others:
            transaction.put(subject, encode(KeyHolders((job.id,))), {"Nats-TTL": f"{seconds + 60}s"})


def _keys_of(transaction: Transaction, job: StoredJob) -> list[str]:
    subjects = []
    if job.unique_key is not None:
        subjects.append(transaction.names.key(job.unique_key))
    if job.schedule is not None and job.occurrence is not None:
        subjects.append(transaction.names.occurrence(job.schedule, job.occurrence))
    return subjects
