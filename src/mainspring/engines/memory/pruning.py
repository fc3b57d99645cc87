"""Pruning: jobs whose time is over are forgotten, a few at a time, and results that were kept for a time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile

from msgspec.structs import replace

from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.line import Line
from mainspring.jobs.engine import JobRecord, Pruned, Retention
from mainspring.jobs.status import JobStatus

MOST_AT_ONCE = 500
COUNTED = (JobStatus.COMPLETED, JobStatus.CANCELED)


def prune(jobs: Jobs, results: Line, retention: Retention, now: int) -> Pruned:
    """Forget some jobs and results."""
    ages = {
        JobStatus.COMPLETED: retention.completed,
        JobStatus.CANCELED: retention.canceled,
        JobStatus.FAILED: retention.failed,
    }
    deleted = 0
    for status, age in ages.items():
        if age is not None:
            deleted += _delete_older(jobs, status, now - age, MOST_AT_ONCE - deleted)
    if retention.most is not None:
        excess = sum(len(jobs.ended[status]) for status in COUNTED) - retention.most
        deleted += _delete_oldest(jobs, max(0, min(excess, MOST_AT_ONCE - deleted)))
    forgotten = _forget_results(jobs, results, now)
    return Pruned(deleted, is_more=MOST_AT_ONCE in (deleted, forgotten))


def _delete_older(jobs: Jobs, status: JobStatus, until: int, limit: int) -> int:
    ended = (jobs.records[job_id] for job_id in jobs.ended[status])
    return _delete(jobs, takewhile(lambda job: (job.finished or 0) <= until, ended), limit)


def _delete_oldest(jobs: Jobs, limit: int) -> int:
    submitted = (jobs.records[job_id] for job_id in jobs.by_place.values())
    return _delete(jobs, (job for job in submitted if job.status in COUNTED), limit)


def _delete(jobs: Jobs, found: Iterable[JobRecord], limit: int) -> int:
    doomed = list(islice(found, limit))
    for job in doomed:
        jobs.remove(job)
    return len(doomed)


def _forget_results(jobs: Jobs, results: Line, now: int) -> int:
    forgotten = 0
    while forgotten < MOST_AT_ONCE and (first := results.first_until(now)) is not None:
        (_, place), job_id = first
        results.leave(job_id)
        forgotten += 1
        if jobs.places.get(job_id) == place:  # another job may have got its id
            jobs.records[job_id] = replace(jobs.records[job_id], result=None)  # nothing else depends on it
    return forgotten
