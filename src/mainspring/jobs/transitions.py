"""State transitions of job records: each function returns the record after one step in the life of a job.

The functions are pure and independent of how an engine stores records. The conformance suite checks that engines
with transitions in another language (SQL) behave the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from msgspec.structs import replace

from mainspring.jobs.commands import Replay
from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.records import (
    STATUS_AFTER,
    Attempt,
    Cause,
    JobRecord,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    kind_of,
)
from mainspring.jobs.status import JobStatus, require_transition

R = TypeVar("R", bound=JobRecord)

RUNS_LATER = (OutcomeKind.RETRY, OutcomeKind.SNOOZED)
EXPIRED = "expired: it did not start within its time"


def submitted(kind: type[R], job: NewJob, now: int, **own: Any) -> R:
    """Return the PENDING record of a new job.

    `kind` is the class of the record, `own` has its additional fields.
    """
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


def _move(job: R, status: JobStatus, **changes: Any) -> R:
    return replace(job, status=require_transition(job.status, status), **changes)


def held(job: R, worker: int) -> R:
    """Return the job as leased to a worker before its due time, not started, with a new fencing token."""
    return replace(job, owner=worker, token=job.token + 1)


def started(job: R, worker: int, now: int, *, is_held: bool) -> R:
    """Return the job as started by a worker. A job that the worker has leased before keeps its fencing token."""
    return started_by_holder(job if is_held else held(job, worker), now)


def started_by_holder(job: R, now: int) -> R:
    """Return the job as started by the worker that has leased it before its due time."""
    return _move(job, JobStatus.RUNNING, starts=job.starts + 1, started=max(now, job.due))


def lease_revoked(job: R) -> R:
    """Return a PENDING job without its lease, so that the engine refuses a start by the former holder."""
    return job if job.owner is None else replace(job, owner=None, token=job.token + 1)


def is_leased(job: JobRecord, lease: Lease, worker: int, status: JobStatus) -> bool:
    """Return whether the job has this status, and this worker as owner with the fencing token of this lease."""
    return (job.token, job.owner, job.status) == (lease.token, worker, status)


def can_settle(job: JobRecord, outcome: Outcome, worker: int) -> bool:
    """Return whether the engine accepts this outcome, because the worker still has the lease of the job."""
    is_held = outcome.kind is OutcomeKind.HANDED_BACK and not outcome.lease.is_started
    return is_leased(job, outcome.lease, worker, JobStatus.PENDING if is_held else JobStatus.RUNNING)


def settled(job: R, outcome: Outcome, now: int, *, worker_name: Callable[[int], str] = str) -> R:
    """Return the job after an outcome: its attempt has ended, or it was handed back.

    If a stop was requested, a job that would run again is CANCELED instead. A job that has started, and runs
    again, has no expiry any more.

    - `worker_name`: returns the name of a worker by its number; it is called for attempts with a history entry
    """
    is_taken_back = outcome.kind is OutcomeKind.HANDED_BACK and outcome.lease.is_started
    status = STATUS_AFTER[outcome.kind]
    if status is JobStatus.PENDING and job.stop_requested:
        status = JobStatus.CANCELED
    is_completed = status is JobStatus.COMPLETED
    starts = job.starts - is_taken_back
    if status is not job.status:  # a held job that is handed back keeps the status PENDING
        require_transition(job.status, status)
    return replace(
        job,
        status=status,
        finished=None if status is JobStatus.PENDING else now,
        owner=None,
        stop_requested=False,
        due=job.due if outcome.due is None else outcome.due,
        started=None if is_taken_back and job.starts == 1 else outcome.began or job.started,
        result=outcome.result if is_completed else job.result,
        error=outcome.error if is_completed else outcome.error or job.error,
        failures=job.failures + (outcome.cause is Cause.FAILURE),
        timeouts=job.timeouts + (outcome.cause is Cause.TIMEOUT),
        crashes=job.crashes + (outcome.cause is Cause.CRASH),
        interruptions=job.interruptions + is_interruption(outcome),
        starts=starts,
        expires=None if status is JobStatus.PENDING and starts else job.expires,
        history=job.history + _attempts_of(job, outcome, now, worker_name),
        headers=job.headers if outcome.headers is None else outcome.headers,
    )


def is_interruption(outcome: Outcome) -> bool:
    """Return whether a shutdown has interrupted the attempt: the job runs again, or failed with the cause
    DEPLOY.
    """
    return outcome.kind is OutcomeKind.INTERRUPTED or outcome.cause is Cause.DEPLOY


def _attempts_of(
    job: JobRecord, outcome: Outcome, now: int, worker_name: Callable[[int], str]
) -> tuple[Attempt, ...]:
    cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
    if cause is None:
        return ()  # an outcome without a cause is no failure
    error = outcome.error or "interrupted by a shutdown"
    worker = None if job.owner is None else worker_name(job.owner)
    return (Attempt(job.starts, outcome.began or job.started, now, cause.value, error, worker),)


def rescued(
    job: R,
    now: int,
    max_crashes: int = MAX_CRASHES,
    *,
    at_most_once: bool = False,
    removed: str | None = None,
    worker_name: Callable[[int], str] = str,
) -> R:
    """Return the job after the death of its worker, or after the removal of its remote worker.

    A job that was leased but not started can be claimed again. A running job is charged with a crash and runs
    again, unless a stop was requested, which cancels it. It becomes a dead letter if this crash is the last one
    allowed, or if it must not start again (`at_most_once`). If its worker was removed, the job is charged with an
    interruption instead, and never becomes a dead letter for the number of its crashes.

    - `removed`: why the worker was removed, see `RemoveWorker.reason`; None if it has died
    - `worker_name`: returns the name of a worker by its number, for the history
    """
    if job.status is JobStatus.PENDING:
        return replace(job, owner=None)
    crashes = job.crashes + (removed is None)
    end = f"its worker {job.owner} {removed or 'died'}"
    worker = None if job.owner is None else worker_name(job.owner)
    cause = Cause.CRASH if removed is None else Cause.DEPLOY
    charged = replace(
        job,
        crashes=crashes,
        interruptions=job.interruptions + (removed is not None),
        owner=None,
        stop_requested=False,
        history=(*job.history, Attempt(job.starts, job.started, now, cause, end, worker)),
    )
    if job.stop_requested:
        return _move(charged, JobStatus.CANCELED, finished=now)
    if at_most_once:
        text = f"{end} after it had started" if removed is None else f"it had started, and {end}"
        return _move(charged, JobStatus.FAILED, finished=now, error=f"at most once: {text}")
    if removed is None and crashes >= max_crashes:
        error = f"quarantined: {crashes} workers died while they ran it"
        return _move(charged, JobStatus.FAILED, finished=now, error=error)
    return _move(charged, JobStatus.PENDING, expires=None)


def canceled(job: R, now: int) -> R:
    """Return a PENDING job as CANCELED."""
    error = "canceled before it started"
    return _move(job, JobStatus.CANCELED, owner=None, finished=now, error=error)


def has_expired(job: JobRecord, now: int) -> bool:
    """Return whether a PENDING job has not started before its expiry. Earlier versions have left the expiry in
    records of jobs that had started.
    """
    return job.expires is not None and job.starts == 0 and job.expires <= now


def keeps_turn(job: JobRecord) -> bool:
    """Return whether a job keeps its place in its sequence when it gets another due time: it has started, and does
    not step aside.
    """
    return job.sequence is not None and job.starts > 0 and not job.steps_aside


def expired(job: R, now: int) -> R:
    """Return a PENDING job as FAILED, because it did not start before its expiry."""
    return _move(job, JobStatus.FAILED, finished=now, error=EXPIRED)


def reopened(job: R, due: int) -> R:
    """Return a dead letter as PENDING again, with its counters of failed attempts set to zero.

    Its error and its expiry are removed. Its counter of interruptions stays.
    """
    return _move(
        job,
        JobStatus.PENDING,
        due=due,
        expires=None,  # the expiry has passed, or would pass soon
        finished=None,
        error=None,
        failures=0,
        timeouts=0,
        crashes=0,
    )


def replaced(job: R, new: NewJob) -> R:
    """Return a PENDING job with the arguments, due time, expiry, headers and limits of a new job.

    The new job has the same unique key, and is not stored itself. A lease of the PENDING job is revoked.
    """
    return replace(
        lease_revoked(job),
        payload=new.payload,
        codec=new.codec,
        due=new.due,
        headers=new.headers,
        expires=new.expires,
        limits=new.limits,  # limits by key depend on the arguments
    )


def copy_of(job: JobRecord, replay: Replay) -> NewJob:
    """Return the new job of a replay: a copy of the dead letter without its unique key, schedule and expiry.

    If the replay has arguments or headers, the copy gets these.
    """
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
        headers=job.headers if replay.headers is None else replay.headers,
        follow_up=job.follow_up,
    )


def lease_of(job: JobRecord, ref: Hashable, *, is_started: bool, at_most_once: bool = False) -> Lease:
    """Return the lease of a job that was just claimed. `ref` is the engine's own reference to the job."""
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
        at_most_once=at_most_once,
        kind=kind_of(due=job.due, created=job.created, schedule=job.schedule),
    )
