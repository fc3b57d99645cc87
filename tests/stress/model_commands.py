"""The naive engine: commands on single jobs, and pruning."""

from __future__ import annotations

from mainspring.jobs.engine import Retention
from mainspring.jobs.events import EventKind
from mainspring.jobs.status import FINAL, JobStatus
from tests.stress.model_jobs import Job, JobModel

COPIED = (
    "type",
    "queue",
    "priority",
    "payload",
    "codec",
    "sequence",
    "steps_aside",
    "limits",
    "headers",
    "follow_up",
)
NOT_COPIED = {"unique_key": None, "expires": None, "schedule": None, "occurrence": None}


class CommandModel(JobModel):
    """Commands and pruning."""

    def cancel(self, job_id: str, now: int) -> tuple[bool, JobStatus | None]:
        job = self.jobs.get(job_id)
        if job is None:
            return False, None
        before = job["status"]
        if before is JobStatus.PENDING:
            job |= {"status": JobStatus.CANCELED, "owner": None, "finished": now}
            job["error"] = "canceled before it started"
            self.tell(EventKind.CANCELED, job_id)
        elif before is JobStatus.RUNNING:
            job["stop_requested"] = True
        return before is JobStatus.PENDING, before

    def reopen(self, job_id: str, due: int) -> bool:
        job = self._letter(job_id)
        if job is None or self._unique_holder(job) is not None:
            return False
        job |= {"status": JobStatus.PENDING, "due": due, "turn": due, "finished": None, "error": None}
        job |= {"failures": 0, "timeouts": 0, "crashes": 0, "expires": None}
        self.tell(EventKind.REOPENED, job_id)
        return True

    def replay(self, job_id: str, new_id: str, due: int, now: int) -> bool:
        job = self._letter(job_id)
        if job is None:
            return False
        kept = {name: job[name] for name in COPIED}
        self.store(kept | NOT_COPIED | {"id": new_id, "due": due, "origin": job_id}, now)
        job["replayed_as"] = new_id
        return True

    def _letter(self, job_id: str) -> Job | None:
        job = self.jobs.get(job_id)
        if job is None or job["status"] is not JobStatus.FAILED or job["replayed_as"] is not None:
            return None
        return job

    def _unique_holder(self, job: Job) -> Job | None:
        if job["unique_key"] is None:
            return None
        return next((other for other in self.alive() if other["unique_key"] == job["unique_key"]), None)

    def reschedule(self, job_id: str, due: int) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job["status"] is not JobStatus.PENDING:
            return False
        self.move(job, due)
        return True

    def change_limits(self, job_id: str, limits: tuple[str, ...]) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job["status"] is not JobStatus.PENDING:
            return False
        job["limits"] = limits
        self.take_away(job)
        return True

    def delete(self, job_id: str) -> bool:
        if job_id not in self.jobs or self.jobs[job_id]["status"] not in FINAL:
            return False
        del self.jobs[job_id]
        return True

    def prune(self, retention: Retention, now: int) -> int:
        """Delete all jobs that are older than the retention allows."""
        ages = {
            JobStatus.COMPLETED: retention.completed,
            JobStatus.CANCELED: retention.canceled,
            JobStatus.FAILED: retention.failed,
        }
        over = [
            job["id"]
            for job in self.jobs.values()
            if (age := ages.get(job["status"])) is not None and job["finished"] + age <= now
        ]
        for job_id in over:
            del self.jobs[job_id]
        counted = [
            job["id"] for job in self.jobs.values() if job["status"] in (JobStatus.COMPLETED, JobStatus.CANCELED)
        ]
        beyond = [] if retention.most is None else counted[: max(0, len(counted) - retention.most)]
        for job_id in beyond:
            del self.jobs[job_id]
        for job in self.jobs.values():
            if job["keep_result_until"] is not None and job["keep_result_until"] <= now:
                job["result"] = None
        return len(over) + len(beyond)
