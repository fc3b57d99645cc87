"""All jobs in memory, and what else is known of them.

Records are replaced, not changed. Whoever replaces one does it by `put`, which keeps everything in step: the
backlog, the buckets of limits, the keys, the times at which jobs expire and those at which they ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.engines.memory.backlog import Backlog
from mainspring.engines.memory.buckets import Buckets
from mainspring.engines.memory.keys import Keys
from mainspring.engines.memory.line import Line
from mainspring.jobs.engine import JobRecord, Lease
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.jobs.transitions import is_leased


class Jobs:
    """The records by id and by place, which is the order of submission."""

    def __init__(self) -> None:
        self.records: dict[str, JobRecord] = {}
        self.places: dict[str, int] = {}
        self.by_place: dict[int, str] = {}
        self.buckets = Buckets()
        self.backlog = Backlog(self.records, self.places, self.buckets)
        self.keys = Keys()
        self.expiring = Line()
        """PENDING jobs that expire."""
        self.ended: dict[JobStatus, dict[str, None]] = {status: {} for status in FINAL}
        """Jobs in the order in which they ended."""
        self.stops: set[str] = set()
        """Jobs that are to stop."""
        self.must_wake = False
        """Whether something can be taken, or somebody is to be told, that was not so before."""
        self._owned: set[str] = set()
        self._last_place = 0

    def at(self, place: int) -> JobRecord:
        """Return the job at a place."""
        return self.records[self.by_place[place]]

    def of(self, workers: set[int]) -> list[JobRecord]:
        """Return the jobs in the hands of workers."""
        return [job for job in self.in_hands() if job.owner in workers]

    def in_hands(self) -> Iterator[JobRecord]:
        """Go over the jobs in anybody's hands."""
        return iter([self.records[job_id] for job_id in self._owned])

    def leased(self, lease: Lease, worker: int, status: JobStatus) -> JobRecord | None:
        """Return the job of a lease, if the worker still has it."""
        job = self.given(lease)
        return job if job is not None and is_leased(job, lease, worker, status) else None

    def given(self, lease: Lease) -> JobRecord | None:
        """Return the job that a lease was given for: a later one of the same id is another."""
        return self.records[lease.id] if self.places.get(lease.id) == lease.ref else None

    def add(self, job: JobRecord) -> None:
        """Keep a new job."""
        self._last_place += 1
        self.places[job.id] = self._last_place
        self.by_place[self._last_place] = job.id
        self.put(job)

    def put(self, job: JobRecord, *, is_placed_anew: bool = False) -> None:
        """Keep a job as it is now; one that is placed anew goes to the stand of its due time in its sequence."""
        before = self.records.get(job.id)
        self.records[job.id] = job
        if job.limits:
            self._count(before, job)
        self.backlog.update(before, job, is_placed_anew=is_placed_anew)
        if job.unique_key is not None or job.schedule is not None:
            self.keys.update(before, job, self.places[job.id])
        if job.expires is not None or (before is not None and before.expires is not None):
            self._watch(job)
        if before is not None and before.finished != job.finished:
            self._note_end(before, job)
        if job.owner is None:
            self._owned.discard(job.id)
            if job.status is JobStatus.PENDING or job.sequence is not None or job.limits:
                self.must_wake = True
        else:
            self._owned.add(job.id)
        if job.stop_requested:
            self.stops.add(job.id)
        else:
            self.stops.discard(job.id)

    def remove(self, job: JobRecord) -> None:
        """Forget a job that has ended."""
        place = self.places.pop(job.id)
        del self.by_place[place]
        del self.records[job.id]
        del self.ended[job.status][job.id]
        self.keys.remove(job, place)

    def _count(self, before: JobRecord | None, job: JobRecord) -> None:
        was_running = before is not None and before.status is JobStatus.RUNNING
        is_running = job.status is JobStatus.RUNNING
        if is_running and not was_running:
            self.buckets.enter(job.limits, job.id)
        elif was_running and not is_running:
            self.buckets.leave(job.limits, job.id)
            self.backlog.parking.mark(job.limits)

    def _watch(self, job: JobRecord) -> None:
        if job.expires is not None and job.status is JobStatus.PENDING:
            self.expiring.enter(job.id, job.expires, self.places[job.id])
        else:
            self.expiring.leave(job.id)

    def _note_end(self, before: JobRecord, job: JobRecord) -> None:
        if before.finished is not None:
            del self.ended[before.status][job.id]
        if job.finished is not None:
            self.ended[job.status][job.id] = None
