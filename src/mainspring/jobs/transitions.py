"""What becomes of a job: its record before and after each step of its life, for every engine that keeps records.

Pure: nothing here knows where records are kept. Engines that do the same in another language (SQL) are held to it
by the conformance suite.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

from msgspec.structs import replace

from mainspring.jobs.commands import Replay
from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.records import STATUS_AFTER, Attempt, Cause, JobRecord, Lease, NewJob, Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus

R = TypeVar("R", bound=JobRecord)

RUNS_LATER = (OutcomeKind.RETRY, OutcomeKind.SNOOZED)
EXPIRED = "expired: it did not start within its time"


def submitted(kind: type[R], job: NewJob, now: int, **own: Any) -> R:
    """A job is stored, with what this kind of record has of its own."""
    return kind(
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
        **own,
    )


def held(job: R, worker: int) -> R:
    """A worker holds a job that will be due soon."""
    return replace(job, owner=worker, token=job.token + 1)


def started(job: R, worker: int, now: int, *, is_held: bool) -> R:
    """A worker starts a job; one that it holds keeps its token."""
    return started_by_holder(job if is_held else held(job, worker), now)


def started_by_holder(job: R, now: int) -> R:
    """The worker that holds a job starts it."""
    return replace(job, status=JobStatus.RUNNING, starts=job.starts + 1, started=max(now, job.due))


def taken_back(job: R) -> R:
    """A PENDING job is taken from the worker that holds it: its start is refused then."""
    return job if job.owner is None else replace(job, owner=None, token=job.token + 1)


def is_leased(job: JobRecord, lease: Lease, worker: int, status: JobStatus) -> bool:
    """Answer whether a worker still has a job in this state."""
    return (job.token, job.owner, job.status) == (lease.token, worker, status)


def is_good(job: JobRecord, outcome: Outcome, worker: int) -> bool:
    """Answer whether a worker may still say how this ends."""
    is_held = outcome.kind is OutcomeKind.HANDED_BACK and not outcome.lease.is_started
    return is_leased(job, outcome.lease, worker, JobStatus.PENDING if is_held else JobStatus.RUNNING)


def settled(job: R, outcome: Outcome, now: int) -> R:
    """An attempt has ended, or there was none."""
    is_taken_back = outcome.kind is OutcomeKind.HANDED_BACK and outcome.lease.is_started
    status = STATUS_AFTER[outcome.kind]
    if status is JobStatus.PENDING and job.stop_requested:
        status = JobStatus.CANCELED
    is_completed = status is JobStatus.COMPLETED
    return replace(
        job,
        status=status,
        finished=None if status is JobStatus.PENDING else now,
        owner=None,
        stop_requested=False,
        due=job.due if outcome.due is None else outcome.due,
        started=None if is_taken_back and job.starts == 1 else outcome.began or job.started,
        result=outcome.result if is_completed else job.result,
        error=None if is_completed else outcome.error or job.error,
        failures=job.failures + (outcome.cause is Cause.FAILURE),
        timeouts=job.timeouts + (outcome.cause is Cause.TIMEOUT),
        crashes=job.crashes + (outcome.cause is Cause.CRASH),
        interruptions=job.interruptions + (outcome.kind is OutcomeKind.INTERRUPTED),
        starts=job.starts - is_taken_back,
        history=job.history + _attempts_of(job, outcome, now),
    )


def _attempts_of(job: JobRecord, outcome: Outcome, now: int) -> tuple[Attempt, ...]:
    cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
    if cause is None:
        return ()  # it ended well
    error = outcome.error or "interrupted by a shutdown"
    return (Attempt(job.starts, outcome.began or job.started, now, cause.value, error),)


def rescued(job: R, now: int, max_crashes: int = MAX_CRASHES) -> R:
    """The worker of a job died: one that was held is free again, one that ran is charged with a crash."""
    if job.status is JobStatus.PENDING:
        return replace(job, owner=None)
    crashes = job.crashes + 1
    attempt = Attempt(job.starts, job.started, now, Cause.CRASH, f"its worker {job.owner} died")
    charged = replace(job, crashes=crashes, owner=None, stop_requested=False, history=(*job.history, attempt))
    if job.stop_requested:
        return replace(charged, status=JobStatus.CANCELED, finished=now)
    if crashes >= max_crashes:
        error = f"quarantined: {crashes} workers died while they ran it"
        return replace(charged, status=JobStatus.FAILED, finished=now, error=error)
    return replace(charged, status=JobStatus.PENDING)


def canceled(job: R, now: int) -> R:
    """A PENDING job is called off."""
    error = "canceled before it started"
    return replace(job, status=JobStatus.CANCELED, owner=None, finished=now, error=error)


def expired(job: R, now: int) -> R:
    """A PENDING job has not started within its time."""
    return replace(job, status=JobStatus.FAILED, finished=now, error=EXPIRED)


def reopened(job: R, due: int) -> R:
    """A dead letter runs again, with its attempts forgotten."""
    return replace(
        job,
        status=JobStatus.PENDING,
        due=due,
        expires=None,  # its time was over, or would be before long
        finished=None,
        error=None,
        failures=0,
        timeouts=0,
        crashes=0,
    )


def replaced(job: R, new: NewJob) -> R:
    """A job takes over the arguments and times of another with the same unique key."""
    return replace(
        taken_back(job),
        payload=new.payload,
        codec=new.codec,
        due=new.due,
        headers=new.headers,
        expires=new.expires,
        limits=new.limits,  # they follow from the arguments
    )


def copy_of(job: JobRecord, replay: Replay) -> NewJob:
    """Make the job as which a dead letter is replayed: no key, schedule or expiry of the letter is in its way."""
    return NewJob(
        id=replay.new_id,
        type=job.type,
        queue=job.queue,
        priority=job.priority,
        due=replay.due,
        payload=job.payload if replay.payload is None else replay.payload,
        codec=job.codec if replay.codec is None else replay.codec,
        origin=job.id,
        sequence=job.sequence,
        steps_aside=job.steps_aside,
        limits=job.limits,
        headers=job.headers,
        follow_up=job.follow_up,
    )


def lease_of(job: JobRecord, ref: Hashable, *, is_started: bool) -> Lease:
    """Make the lease of a job that was just taken."""
    return Lease(
        ref=ref,
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
