"""Settling: how leases end, and what workers report meanwhile."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.engines.memory.intake import Intake
from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.journal import Journal
from mainspring.engines.memory.line import Line
from mainspring.jobs.engine import (
    STATUS_AFTER,
    Attempt,
    Cause,
    EventKind,
    JobRecord,
    Outcome,
    OutcomeKind,
    ProgressReport,
)
from mainspring.jobs.status import JobStatus

EVENTS = {
    OutcomeKind.RETRY: EventKind.RETRIED,
    OutcomeKind.SNOOZED: EventKind.SNOOZED,
    OutcomeKind.INTERRUPTED: EventKind.INTERRUPTED,
}


class Settling:
    """Takes jobs back from workers."""

    def __init__(self, jobs: Jobs, intake: Intake, journal: Journal) -> None:
        self._jobs = jobs
        self._intake = intake
        self._journal = journal
        self.results = Line()
        """Results that are to be forgotten, by the instant."""

    def settle(self, worker: int, outcome: Outcome, now: int) -> bool:
        """End a lease; answer whether it was still good."""
        is_handed_back = outcome.kind is OutcomeKind.HANDED_BACK
        is_held = is_handed_back and not outcome.lease.is_started
        job = self._jobs.leased(outcome.lease, worker, JobStatus.PENDING if is_held else JobStatus.RUNNING)
        if job is None:
            return False
        is_taken_back = is_handed_back and not is_held
        status = STATUS_AFTER[outcome.kind]
        if status is JobStatus.PENDING and job.stop_requested:
            status = JobStatus.CANCELED
        is_completed = status is JobStatus.COMPLETED
        settled = replace(
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
            history=job.history + attempts_of(job, outcome, now),
        )
        is_later = outcome.kind in (OutcomeKind.RETRY, OutcomeKind.SNOOZED)
        self._jobs.put(settled, is_placed_anew=job.steps_aside and is_later)
        self._tell(settled, outcome, now)
        if is_completed:
            self._complete(settled, outcome, now)
        return True

    def report(self, worker: int, report: ProgressReport, now: int) -> bool:
        """Note how far a job has come; answer whether its lease was still good."""
        job = self._jobs.leased(report.lease, worker, JobStatus.RUNNING)
        if job is not None:
            self._jobs.records[job.id] = replace(job, progress=report.progress)  # nothing else depends on it
            self._journal.write(EventKind.PROGRESS, job, now)
        return job is not None

    def _complete(self, job: JobRecord, outcome: Outcome, now: int) -> None:
        if outcome.keep_result_until is not None:
            self.results.enter(job.id, outcome.keep_result_until, self._jobs.places[job.id])
        if outcome.follow_up is not None:
            self._intake.add(outcome.follow_up, now)

    def _tell(self, job: JobRecord, outcome: Outcome, now: int) -> None:
        if job.status is JobStatus.FAILED:
            self._journal.write_failed(job, now)
        elif job.status is not JobStatus.PENDING:
            is_completed = job.status is JobStatus.COMPLETED
            self._journal.write(EventKind.COMPLETED if is_completed else EventKind.CANCELED, job, now)
        elif outcome.kind in EVENTS:
            self._journal.write(EVENTS[outcome.kind], job, now)


def attempts_of(job: JobRecord, outcome: Outcome, now: int) -> tuple[Attempt, ...]:
    """Return what a job remembers of an attempt: nothing if it ended well."""
    cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
    if cause is None:
        return ()
    error = outcome.error or "interrupted by a shutdown"
    return (Attempt(job.starts, outcome.began or job.started, now, cause.value, error),)
