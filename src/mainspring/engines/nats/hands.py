"""The leases of this process: its jobs, the messages that delivered them, and requests to stop them.

A message stays unacknowledged until its job is over or queued again. The heartbeat tells the server several times
in each lease that the message is in progress; if this process dies, the server delivers it to another worker. A
request to stop a job is a note that may be lost, so the records of running jobs are also read every few seconds.
"""

from __future__ import annotations

from threading import Lock

from msgspec import Struct

from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.workspace import Workshop
from mainspring.jobs.records import Lease
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS


class Hand(Struct):
    """A job that a worker of this process has leased."""

    worker: int
    job: StoredJob
    revision: int
    """The revision of its record."""
    reply: str
    """The subject that acknowledges its message."""

    def is_of(self, lease: Lease, worker: int) -> bool:
        """Return whether this is that lease of the worker: this job, not another with its id, and this token."""
        return (self.worker, self.job.place, self.job.token) == (worker, lease.ref, lease.token)


class Hands:
    """All leases, by job. The heartbeat reads them on another thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_job: dict[str, Hand] = {}

    def __len__(self) -> int:
        return len(self._by_job)

    def get(self, job_id: str) -> Hand | None:
        """Return the lease of a job; None if this process has none."""
        return self._by_job.get(job_id)

    def put(self, hand: Hand) -> None:
        """Add a lease."""
        with self._lock:
            self._by_job[hand.job.id] = hand

    def drop(self, job_id: str) -> Hand | None:
        """Remove the lease of a job, and return it."""
        with self._lock:
            return self._by_job.pop(job_id, None)

    def of(self, worker: int) -> list[Hand]:
        """Return the leases of one worker."""
        with self._lock:
            return [hand for hand in self._by_job.values() if hand.worker == worker]

    def all(self) -> list[Hand]:
        """Return all leases."""
        with self._lock:
            return list(self._by_job.values())

    def clear(self) -> None:
        """Remove all leases."""
        with self._lock:
            self._by_job.clear()


LOOK_EVERY = 5 * MICROSECONDS


class Stops:
    """Requests to stop jobs. Notes arrive on another thread."""

    def __init__(self, workshop: Workshop, hands: Hands) -> None:
        self._workshop = workshop
        self.hands = hands
        self._lock = Lock()
        self._wanted: set[str] = set()
        self._looked = 0

    def add(self, job_id: str) -> None:
        """Record a request to stop a job, if this process has its lease."""
        if self.hands.get(job_id) is not None:
            with self._lock:
                self._wanted.add(job_id)

    def take(self, worker: int) -> list[str]:
        """Return the jobs of a worker that are to stop, each once."""
        with self._lock:
            hers = [job_id for job_id in self._wanted if self._is_hers(job_id, worker)]
            self._wanted = {job_id for job_id in self._wanted if self.hands.get(job_id)}.difference(hers)
            return hers

    def _is_hers(self, job_id: str, worker: int) -> bool:
        hand = self.hands.get(job_id)
        return hand is not None and hand.worker == worker

    def look(self) -> bool:
        """Read the records of running jobs, every few seconds; return whether any of them is to stop."""
        now = self._workshop.link.monotonic()
        running = [hand for hand in self.hands.all() if hand.job.status is JobStatus.RUNNING]
        if not running or now - self._looked < LOOK_EVERY:
            return False
        self._looked = now
        workspace = self._workshop.open()
        workspace.prefetch_jobs(hand.job.id for hand in running)
        jobs = (workspace.job(hand.job.id) for hand in running)
        wanted = [job.id for job in jobs if job is not None and job.stop_requested]
        with self._lock:
            self._wanted.update(wanted)
        return bool(wanted)
