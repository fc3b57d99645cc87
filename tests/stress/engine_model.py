"""A naive engine: plain dicts, no index, no lock, no transaction. What a real one does is compared with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from mainspring.jobs.engine import (
    MAX_CRASHES,
    STATUS_AFTER,
    Attempt,
    Cause,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
)
from mainspring.jobs.status import FINAL, JobStatus

Job: TypeAlias = dict[str, Any]

NEW = {
    "status": JobStatus.PENDING,
    "token": 0,
    "owner": None,
    "starts": 0,
    "failures": 0,
    "timeouts": 0,
    "crashes": 0,
    "interruptions": 0,
    "started": None,
    "finished": None,
    "result": None,
    "error": None,
    "stop_requested": False,
    "replayed_as": None,
    "history": (),
}
COUNTERS = {Cause.FAILURE: "failures", Cause.TIMEOUT: "timeouts"}


class Model:
    """Jobs as dicts, in the order of submission, and the numbers of the workers that live."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.workers: list[int] = []

    def counts(self) -> dict[JobStatus, int]:
        statuses = [job["status"] for job in self.jobs.values()]
        return {status: statuses.count(status) for status in JobStatus}

    # -- submitters

    def submit(self, job: NewJob, now: int) -> str | None:
        if job.id in self.jobs:
            return job.id
        given = {name: getattr(job, name) for name in job.__struct_fields__}
        self.jobs[job.id] = NEW | given | {"created": now}
        return None

    def cancel(self, job_id: str, now: int) -> tuple[bool, JobStatus | None]:
        job = self.jobs.get(job_id)
        if job is None:
            return False, None
        before = job["status"]
        if before is JobStatus.PENDING:
            job |= {"status": JobStatus.CANCELED, "owner": None, "finished": now}
            job["error"] = "canceled before it started"
        elif before is JobStatus.RUNNING:
            job["stop_requested"] = True
        return before is JobStatus.PENDING, before

    def reopen(self, job_id: str, due: int) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job["status"] is not JobStatus.FAILED or job["replayed_as"] is not None:
            return False
        job |= {"status": JobStatus.PENDING, "due": due, "finished": None, "error": None}
        job |= {"failures": 0, "timeouts": 0, "crashes": 0}
        return True

    def replay(self, job_id: str, new_id: str, due: int, now: int) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job["status"] is not JobStatus.FAILED or job["replayed_as"] is not None:
            return False
        kept = {name: job[name] for name in ("type", "queue", "priority", "payload", "codec")}
        self.jobs[new_id] = NEW | kept | {"id": new_id, "due": due, "created": now, "origin": job_id}
        job["replayed_as"] = new_id
        return True

    def delete(self, job_id: str) -> bool:
        if job_id not in self.jobs or self.jobs[job_id]["status"] not in FINAL:
            return False
        del self.jobs[job_id]
        return True

    # -- workers

    def is_busy(self, worker: int) -> bool:
        return any(job["owner"] == worker for job in self.jobs.values())

    def has_held_jobs(self) -> bool:
        return any(job["owner"] and job["status"] is JobStatus.PENDING for job in self.jobs.values())

    def claimable(self, types: Iterable[str]) -> list[Job]:
        return [
            job
            for job in self.jobs.values()
            if job["status"] is JobStatus.PENDING and job["owner"] is None and job["type"] in types
        ]

    def take(self, lease: Lease, worker: int, now: int) -> None:
        job = self.jobs[lease.id]
        job |= {"owner": worker, "token": job["token"] + 1}
        if lease.is_started:
            self._start(job, now)

    def _start(self, job: Job, now: int) -> None:
        job |= {"status": JobStatus.RUNNING, "starts": job["starts"] + 1, "started": max(now, job["due"])}

    def start(self, worker: int, lease: Lease, now: int) -> bool:
        job = self._held(worker, lease, JobStatus.PENDING)
        if job is not None:
            self._start(job, now)
        return job is not None

    def _held(self, worker: int, lease: Lease, status: JobStatus) -> Job | None:
        job = self.jobs.get(lease.id)
        if job is None or (job["owner"], job["token"], job["status"]) != (worker, lease.token, status):
            return None
        return job

    def settle(self, worker: int, outcome: Outcome, now: int) -> bool:
        is_back = outcome.kind is OutcomeKind.HANDED_BACK
        is_held = is_back and not outcome.lease.is_started
        job = self._held(worker, outcome.lease, JobStatus.PENDING if is_held else JobStatus.RUNNING)
        if job is None:
            return False
        cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
        if cause is not None:
            error = outcome.error or "interrupted by a shutdown"
            job["history"] += (Attempt(job["starts"], job["started"], now, cause, error),)
        if outcome.cause is not None:
            job[COUNTERS[outcome.cause]] += 1
        job["interruptions"] += outcome.kind is OutcomeKind.INTERRUPTED
        if is_back and not is_held:
            job["starts"] -= 1
            job["started"] = job["started"] if job["starts"] else None
        job["due"] = outcome.due or job["due"]
        self._end(job, STATUS_AFTER[outcome.kind], now)
        if outcome.kind is OutcomeKind.COMPLETED:
            job |= {"result": outcome.result, "error": None}
        else:
            job["error"] = outcome.error or job["error"]
        return True

    def _end(self, job: Job, status: JobStatus, now: int) -> None:
        """Let a job that somebody wants stopped not go back."""
        if status is JobStatus.PENDING and job["stop_requested"]:
            status = JobStatus.CANCELED
        job |= {"status": status, "owner": None, "stop_requested": False}
        job["finished"] = now if status in FINAL else None

    def bury(self, worker: int, died: dict[str, int]) -> tuple[set[str], set[str]]:
        """Take everything from a worker; return the ids of the rescued and of the quarantined."""
        self.workers.remove(worker)
        rescued, quarantined = set(), set()
        for job in self.jobs.values():
            if job["owner"] != worker:
                continue
            if job["status"] is JobStatus.PENDING:
                job["owner"] = None
                continue
            job["crashes"] += 1
            when = died[job["id"]]
            job["history"] += (Attempt(job["starts"], job["started"], when, "crash", f"its worker {worker} died"),)
            if job["stop_requested"]:
                self._end(job, JobStatus.CANCELED, when)
            elif job["crashes"] >= MAX_CRASHES:
                job["error"] = f"quarantined: {MAX_CRASHES} workers died while they ran it"
                self._end(job, JobStatus.FAILED, when)
                quarantined.add(job["id"])
            else:
                self._end(job, JobStatus.PENDING, when)
                rescued.add(job["id"])
        return rescued, quarantined
