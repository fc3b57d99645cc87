"""Why a job is where it is, read off what the engine knows of it."""

from __future__ import annotations

from mainspring.engines.memory.commands import unique_holder
from mainspring.engines.memory.jobs import Jobs
from mainspring.jobs.engine import JobRecord, Situation
from mainspring.jobs.status import JobStatus

MOST_HOLDERS = 10


def situation_of(job: JobRecord, jobs: Jobs, now: int) -> Situation:
    """Say what is in the way of a job: what holds a PENDING one back is looked up as of now."""
    is_pending = job.status is JobStatus.PENDING
    backlog = jobs.backlog
    refusal = jobs.buckets.look(job.limits, now) if is_pending else None
    is_full = refusal is not None and refusal.until is None
    behind = None
    if is_pending and job.sequence is not None:
        behind = backlog.sequences.in_front_of(job.sequence, job.id)
    return Situation(
        record=job,
        is_queue_paused=job.queue in backlog.claims.paused,
        behind=behind,
        full_bucket=None if refusal is None else refusal.bucket,
        limited_until=None if refusal is None else refusal.until,
        bucket_holders=jobs.buckets.holders(refusal.bucket)[:MOST_HOLDERS] if refusal and is_full else (),
        unique_holder=unique_holder(jobs, job),
    )
