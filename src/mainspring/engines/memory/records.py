"""Records and leases, made."""

from __future__ import annotations

from mainspring.jobs.engine import JobRecord, Lease, NewJob, Replay
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
        sequence=job.sequence,
        steps_aside=job.steps_aside,
        limits=job.limits,
        unique_key=None if job.unique is None else job.unique.key,
        expires=job.expires,
        schedule=job.schedule,
        occurrence=job.occurrence,
        headers=job.headers,
        follow_up=job.follow_up,
    )


def copy_of(job: JobRecord, replay: Replay) -> NewJob:
    """Make the job as which a dead letter is replayed: no key, schedule or expiry of the letter is in its way."""
    return NewJob(
        id=replay.new_id,
        type=job.type,
        queue=job.queue,
        priority=job.priority,
        due=replay.due,
        payload=replay.payload or job.payload,
        codec=replay.codec or job.codec,
        origin=job.id,
        sequence=job.sequence,
        steps_aside=job.steps_aside,
        limits=job.limits,
        headers=job.headers,
        follow_up=job.follow_up,
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
        sequence=job.sequence,
        limits=job.limits,
        headers=job.headers,
        follow_up=job.follow_up,
    )
