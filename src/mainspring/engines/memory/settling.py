"""Settling: how leases end, and what workers report meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mainspring.engines.memory.intake import Intake
from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.journal import Journal
from mainspring.engines.memory.line import Line
from mainspring.jobs.engine import EventKind, JobRecord, Outcome, OutcomeKind, ProgressReport
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transitions import RUNS_LATER, is_good, settled

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

    def settle(self, worker: int, outcomes: Sequence[Outcome], now: int) -> list[bool]:
        """End leases; answer for each whether it was still good. Only then what follows them comes in."""
        answers = [self._settle(worker, outcome, now) for outcome in outcomes]
        for outcome, is_settled in zip(outcomes, answers, strict=True):
            if is_settled and outcome.kind is OutcomeKind.COMPLETED and outcome.follow_up is not None:
                self._intake.add(outcome.follow_up, now)
        return answers

    def _settle(self, worker: int, outcome: Outcome, now: int) -> bool:
        job = self._jobs.given(outcome.lease)
        if job is None or not is_good(job, outcome, worker):
            return False
        if outcome.kind is OutcomeKind.HANDED_BACK:
            self._journal.take_start_back(job)
        else:
            self._journal.tell_start(job, now, outcome.began)
        after = settled(job, outcome, now)
        self._jobs.put(after, is_placed_anew=job.steps_aside and outcome.kind in RUNS_LATER)
        self._tell(after, outcome, now)
        if after.status is JobStatus.COMPLETED and outcome.keep_result_until is not None:
            self.results.enter(after.id, outcome.keep_result_until, self._jobs.places[after.id])
        return True

    def report(self, worker: int, report: ProgressReport, now: int) -> bool:
        """Note how far a job has come; answer whether its lease was still good."""
        job = self._jobs.leased(report.lease, worker, JobStatus.RUNNING)
        if job is not None:
            self._journal.tell_start(job, now)
            if report.progress is not None:
                self._jobs.records[job.id] = replace(job, progress=report.progress)  # nothing else depends on it
                self._journal.write(EventKind.PROGRESS, job, now)
        return job is not None

    def _tell(self, job: JobRecord, outcome: Outcome, now: int) -> None:
        if job.status is JobStatus.FAILED:
            self._journal.write_failed(job, now)
        elif job.status is not JobStatus.PENDING:
            is_completed = job.status is JobStatus.COMPLETED
            self._journal.write(EventKind.COMPLETED if is_completed else EventKind.CANCELED, job, now)
        elif outcome.kind in EVENTS:
            self._journal.write(EVENTS[outcome.kind], job, now)
