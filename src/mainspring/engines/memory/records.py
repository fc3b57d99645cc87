"""Records and leases, made."""

from __future__ import annotations

from mainspring.jobs.engine import JobRecord, Lease, NewJob
from mainspring.jobs.status import JobStatus


def new_record(job: NewJob, now: int) -> JobRecord:
    """Make the record of a job that has just been submitted."""
    return JobRecord(
        id=job.id,
        type=job.type,
        queue=job.queue,
        priority=job.priority,
        status=JobStatus.PENDING,
        due=job.due,
        created=now,
        payload=job.payload,
        codec=job.codec,
        token=0,
        owner=None,
        starts=0,
        failures=0,
        timeouts=0,
        crashes=0,
        interruptions=0,
        started=None,
        finished=None,
        result=None,
        error=None,
        stop_requested=False,
        origin=job.origin,
        replayed_as=None,
        history=(),
    )


def lease_of(job: JobRecord, place: int, *, is_started: bool) -> Lease:
    """Make the lease of a job that was just taken."""
    return Lease(
        ref=place,
        id=job.id,
        type=job.type,
        queue=job.queue,
        due=job.due,
        payload=job.payload,
        codec=job.codec,
        token=job.token,
        is_started=is_started,
        failures=job.failures,
        timeouts=job.timeouts,
        crashes=job.crashes,
        interruptions=job.interruptions,
        priority=job.priority,
    )
