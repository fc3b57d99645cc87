"""The naive engine: which jobs can be claimed, with sequences, limits, pauses and expiry."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.jobs.events import EventKind
from mainspring.jobs.limits import Limit, family_of
from mainspring.jobs.records import SUSPECT_CRASHES
from mainspring.jobs.status import JobStatus
from tests.stress.model_jobs import Job, JobModel


class ClaimModel(JobModel):
    """Decides which jobs can start, by checking all jobs each time."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, Limit] = {}
        self.full_at: dict[str, int] = {}
        self.paused: set[str] = set()

    # -- arrangements

    def put_limit(self, family: str, limit: Limit) -> bool:
        is_new = self.limits.get(family) != limit
        self.limits[family] = limit
        return is_new

    def drop_limit(self, family: str) -> bool:
        return self.limits.pop(family, None) is not None

    def pause_queue(self, queue: str, *, is_paused: bool) -> bool:
        if (queue in self.paused) is is_paused:
            return False
        self.paused ^= {queue}
        for job in self.jobs.values():
            if is_paused and job["queue"] == queue and job["status"] is JobStatus.PENDING:
                self.take_away(job)
        return True

    # -- queries

    def available(self, types: Iterable[str]) -> list[Job]:
        """Return the jobs that could be taken as soon as they are due and there is room."""
        return [
            job
            for job in self.jobs.values()
            if job["status"] is JobStatus.PENDING and job["owner"] is None and job["type"] in types
            if job["queue"] not in self.paused and self.is_first(job)
        ]

    def startable(self, types: Iterable[str], until: int, now: int) -> list[Job]:
        """Return the jobs that may start now."""
        return [job for job in self.available(types) if job["due"] <= until and self.admits(job, now)]

    def is_first(self, job: Job) -> bool:
        """Answer whether no other job of its sequence runs or comes before it."""
        others = [other for other in self.alive() if other["sequence"] == job["sequence"] and other is not job]
        return job["sequence"] is None or not any(
            other["owner"] is not None or (other["turn"], other["place"]) < (job["turn"], job["place"])
            for other in others
        )

    def admits(self, job: Job, now: int) -> bool:
        return all(self._has_room(bucket, now) for bucket in job["limits"])

    def _has_room(self, bucket: str, now: int) -> bool:
        limit = self.limits.get(family_of(bucket))
        if limit is None:
            return True
        if limit.per is not None:
            return self._free_at(bucket, limit) <= now
        running = [job for job in self.jobs.values() if job["status"] is JobStatus.RUNNING]
        return sum(bucket in job["limits"] for job in running) < limit.most

    def _free_at(self, bucket: str, limit: Limit) -> int:
        return self.full_at.get(bucket, 0) - limit.interval * (limit.most - 1)

    def use_up(self, job: Job, now: int) -> None:
        """Take a token from each rate."""
        for bucket in job["limits"]:
            limit = self.limits.get(family_of(bucket))
            if limit is not None and limit.per is not None:
                self.full_at[bucket] = max(now, self.full_at.get(bucket, 0)) + limit.interval

    def looks(self, types: Iterable[str], until: int, now: int) -> list[int]:
        """Return when something happens that wakes no worker."""
        due = [job for job in self.available(types) if job["due"] <= until and job["crashes"] < SUSPECT_CRASHES]
        waiting = [job for job in self.jobs.values() if job["status"] is JobStatus.PENDING and not job["owner"]]
        instants = [self._rate_admits_at(job, now) for job in due] + [job["expires"] for job in waiting]
        return [instant for instant in instants if instant is not None]

    def dues(self, types: Iterable[str], until: int, now: int) -> list[int]:
        """Return when those that are not due may start. A job that waits for the end of another will be woken."""
        available = self.available(types)
        due_groups = [group(job) for job in available if job["due"] <= until and job["limits"]]
        instants = []
        for job in available:
            tokens_at = self._rate_admits_at(job, now)
            is_first_of_group = job["due"] > until and group(job) not in due_groups
            if is_first_of_group and (tokens_at is not None or self.admits(job, now)):
                instants.append(max(job["due"], tokens_at or 0))
        return instants

    def _rate_admits_at(self, job: Job, now: int) -> int | None:
        """Return when a job may start, if it waits for nothing but tokens."""
        full = [bucket for bucket in job["limits"] if not self._has_room(bucket, now)]
        limits = {bucket: self.limits[family_of(bucket)] for bucket in full}
        if not full or any(limit.per is None for limit in limits.values()):
            return None
        return max(self._free_at(bucket, limit) for bucket, limit in limits.items())

    # -- too late

    def expire(self, now: int) -> None:
        for job in self.jobs.values():
            is_waiting = job["status"] is JobStatus.PENDING and job["owner"] is None
            if is_waiting and job["expires"] is not None and job["expires"] <= now:
                job |= {"status": JobStatus.FAILED, "finished": now}
                job["error"] = "expired: it did not start within its time"
                self.tell(EventKind.FAILED, job["id"])


def group(job: Job) -> tuple[object, ...]:
    """Name what is equal for jobs that wait for the same room."""
    return tuple(job[name] for name in ("type", "queue", "priority", "limits"))
