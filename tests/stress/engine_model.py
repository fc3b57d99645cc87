"""A naive engine of plain dicts, without index, lock or transaction. Tests compare real engines with it."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.events import EventKind
from mainspring.jobs.records import STATUS_AFTER, Attempt, Cause, Lease, Outcome, OutcomeKind, ProgressReport
from mainspring.jobs.status import FINAL, JobStatus
from tests.stress.model_claims import ClaimModel
from tests.stress.model_jobs import Job
from tests.stress.model_schedules import ScheduleModel

COUNTERS = {Cause.FAILURE: "failures", Cause.TIMEOUT: "timeouts", Cause.CRASH: "crashes"}
TOLD = {
    OutcomeKind.COMPLETED: EventKind.COMPLETED,
    OutcomeKind.FAILED: EventKind.FAILED,
    OutcomeKind.CANCELED: EventKind.CANCELED,
    OutcomeKind.RETRY: EventKind.RETRIED,
    OutcomeKind.SNOOZED: EventKind.SNOOZED,
    OutcomeKind.INTERRUPTED: EventKind.INTERRUPTED,
}


class EngineModel(ClaimModel, ScheduleModel):
    """The naive engine: commands, limits and schedules, and the calls of workers."""

    def is_busy(self, worker: int) -> bool:
        return any(job["owner"] == worker for job in self.jobs.values())

    def has_held_jobs(self) -> bool:
        return any(job["owner"] and job["status"] is JobStatus.PENDING for job in self.jobs.values())

    # -- starting

    def take(self, lease: Lease, worker: int, now: int) -> None:
        job = self.jobs[lease.id]
        job |= {"owner": worker, "lease": lease, "token": job["token"] + 1}
        if lease.is_started:
            self._start(job, now)

    def _start(self, job: Job, now: int) -> None:
        self.use_up(job, now)
        job |= {"status": JobStatus.RUNNING, "starts": job["starts"] + 1, "started": max(now, job["due"])}
        self.untold.add(job["id"])

    def start(self, worker: int, lease: Lease, now: int) -> bool:
        job = self.leased(worker, lease, JobStatus.PENDING)
        if job is not None:
            self._start(job, now)
        return job is not None

    def leased(self, worker: int, lease: Lease, status: JobStatus) -> Job | None:
        """Return the job of the very lease that was given last, if the worker still has it."""
        job = self.jobs.get(lease.id)
        is_current = (
            job is not None and job["lease"] is lease and (job["owner"], job["status"]) == (worker, status)
        )
        return job if is_current else None

    def report(self, worker: int, report: ProgressReport) -> bool:
        job = self.leased(worker, report.lease, JobStatus.RUNNING)
        if job is not None:
            self.tell_start(job["id"])
            if report.progress is not None:
                job["progress"] = report.progress
                self.tell(EventKind.PROGRESS, job["id"])
        return job is not None

    # -- ending

    def settle(self, worker: int, outcomes: Sequence[Outcome], now: int) -> list[bool]:
        """End leases, and only then submit what follows them: unique keys of those that end together are free."""
        answers = [self._settle(worker, outcome, now) for outcome in outcomes]
        for outcome, is_settled in zip(outcomes, answers, strict=True):
            if is_settled and outcome.follow_up is not None:
                self.submit(outcome.follow_up, now)
        return answers

    def _settle(self, worker: int, outcome: Outcome, now: int) -> bool:
        is_back = outcome.kind is OutcomeKind.HANDED_BACK
        is_held = is_back and not outcome.lease.is_started
        job = self.leased(worker, outcome.lease, JobStatus.PENDING if is_held else JobStatus.RUNNING)
        if job is None:
            return False
        if is_back:
            self.untold.discard(job["id"])
        else:
            self.tell_start(job["id"])
        self._charge(job, outcome, now)
        if is_back and not is_held:
            job["starts"] -= 1
            job["started"] = job["started"] if job["starts"] else None
        if outcome.due is not None:
            job["due"] = outcome.due
            job["turn"] = outcome.due if job["steps_aside"] else job["turn"]
        is_stopped = job["stop_requested"] and STATUS_AFTER[outcome.kind] is JobStatus.PENDING
        self._end(job, STATUS_AFTER[outcome.kind], now)
        if is_stopped:
            self.tell(EventKind.CANCELED, job["id"])
        elif not is_back:
            self.tell(TOLD[outcome.kind], job["id"])
        if outcome.kind is not OutcomeKind.COMPLETED:
            job["error"] = outcome.error or job["error"]
            return True
        job |= {"result": outcome.result, "error": outcome.error, "keep_result_until": outcome.keep_result_until}
        return True

    def _charge(self, job: Job, outcome: Outcome, now: int) -> None:
        cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
        if cause is not None:
            error = outcome.error or "interrupted by a shutdown"
            job["history"] += (Attempt(job["starts"], job["started"], now, cause, error),)
        if outcome.cause is not None:
            job[COUNTERS[outcome.cause]] += 1
        job["interruptions"] += outcome.kind is OutcomeKind.INTERRUPTED

    def _end(self, job: Job, status: JobStatus, now: int) -> None:
        """Set the final state, or PENDING; a job that was asked to stop is canceled instead."""
        if status is JobStatus.PENDING and job["stop_requested"]:
            status = JobStatus.CANCELED
        job |= {"status": status, "owner": None, "stop_requested": False}
        job["finished"] = now if status in FINAL else None

    def declare_dead(self, worker: int, died: dict[str, int]) -> tuple[set[str], set[str]]:
        """Take all jobs from a worker; return the ids of the rescued and of the quarantined jobs."""
        self.workers.remove(worker)
        rescued, quarantined = set(), set()
        for job in self.jobs.values():
            if job["owner"] != worker:
                continue
            if job["status"] is JobStatus.PENDING:
                job["owner"] = None
                continue
            self.tell_start(job["id"])
            job["crashes"] += 1
            when = died[job["id"]]
            job["history"] += (Attempt(job["starts"], job["started"], when, "crash", f"its worker {worker} died"),)
            if job["stop_requested"]:
                self._end(job, JobStatus.CANCELED, when)
                self.tell(EventKind.CANCELED, job["id"])
            elif job["crashes"] >= MAX_CRASHES:
                job["error"] = f"quarantined: {job['crashes']} workers died while they ran it"
                self._end(job, JobStatus.FAILED, when)
                quarantined.add(job["id"])
                self.tell(EventKind.FAILED, job["id"])
            else:
                self._end(job, JobStatus.PENDING, when)
                rescued.add(job["id"])
                self.tell(EventKind.RESCUED, job["id"])
        return rescued, quarantined
