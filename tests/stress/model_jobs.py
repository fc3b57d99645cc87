"""The naive engine: jobs as dicts, and conflicts with new jobs."""

from __future__ import annotations

from typing import Any, TypeAlias

from mainspring.jobs.events import EventKind
from mainspring.jobs.records import Conflict, ConflictKind, NewJob
from mainspring.jobs.status import FINAL, JobStatus

Job: TypeAlias = dict[str, Any]

NEW = {
    "status": JobStatus.PENDING,
    "token": 0,
    "owner": None,
    "lease": None,
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
    "progress": None,
    "keep_result_until": None,
}


class JobModel:
    """Jobs in the order of submission, the numbers of live workers, and events."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.workers: list[int] = []
        self.told: list[tuple[EventKind, str]] = []
        self.untold: set[str] = set()  # jobs that were started, and whose handlers have not begun
        self._places = 0

    def tell(self, kind: EventKind, job_id: str) -> None:
        self.told.append((kind, job_id))

    def tell_start(self, job_id: str) -> None:
        """Write the `started` event, once for each start."""
        if job_id in self.untold:
            self.untold.remove(job_id)
            self.tell(EventKind.STARTED, job_id)

    def counts(self) -> dict[JobStatus, int]:
        counted = [job for job in self.jobs.values() if not _is_replayed_letter(job)]
        statuses = [job["status"] for job in counted]
        return {status: statuses.count(status) for status in JobStatus}

    def submit(self, job: NewJob, now: int) -> Conflict | None:
        if job.id in self.jobs:
            return Conflict(job.id, ConflictKind.ID)
        found = self._conflicting(job, now)
        if found is None:
            given = {name: getattr(job, name) for name in job.__struct_fields__ if name != "unique"}
            self.store(given | {"unique_key": job.unique.key if job.unique else None}, now)
            return None
        if job.unique is None or not job.unique.replaces:
            self.tell(EventKind.DEDUPLICATED, found["id"])
            return Conflict(found["id"], ConflictKind.UNIQUE)
        found |= {name: getattr(job, name) for name in ("payload", "codec", "headers", "expires", "limits")}
        self.move(found, job.due)
        return Conflict(found["id"], ConflictKind.REPLACED)

    def _conflicting(self, job: NewJob, now: int) -> Job | None:
        for other in reversed(self.jobs.values()):
            if job.schedule is not None and (other["schedule"], other["occurrence"]) == (
                job.schedule,
                job.occurrence,
            ):
                return other
            if job.unique is None or other["unique_key"] != job.unique.key:
                continue
            is_young = job.unique.window is None or now - other["created"] < job.unique.window
            if other["status"] in job.unique.states and is_young:
                return other
        return None

    def store(self, job: Job, now: int) -> None:
        self._places += 1
        self.jobs[job["id"]] = NEW | job | {"created": now, "turn": job["due"], "place": self._places}
        self.tell(EventKind.SUBMITTED, job["id"])

    def move(self, job: Job, due: int) -> None:
        """Change the due time of a job, and its place in its sequence; its lease ends."""
        job |= {"due": due, "turn": due}
        self.take_away(job)
        self.tell(EventKind.RESCHEDULED, job["id"])

    def take_away(self, job: Job) -> None:
        if job["owner"] is not None:
            job |= {"owner": None, "token": job["token"] + 1}

    def alive(self) -> list[Job]:
        return [job for job in self.jobs.values() if job["status"] not in FINAL]


def _is_replayed_letter(job: Job) -> bool:
    return job["status"] is JobStatus.FAILED and job["replayed_as"] is not None
