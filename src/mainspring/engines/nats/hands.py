"""The jobs that this process has leased, with the messages that brought them, and requests to stop them.

A message stays unacknowledged until its job is over or queued again. The server is told several times in each
lease that the message is still needed; if this process dies, the server delivers it to another worker. A request
to stop a job comes as a note, at once or never, so the records of running jobs are also read every few seconds.
"""

from __future__ import annotations

from threading import Lock

from msgspec import Struct

from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.workspace import Workshop
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.records import Lease
from mainspring.jobs.status import JobStatus


class Hand(Struct):
    """A job in our hands."""

    worker: int
    job: StoredJob
    revision: int
    """Of its record."""
    reply: str
    """Where its message is acknowledged."""

    def is_of(self, lease: Lease, worker: int) -> bool:
        """Answer whether this is what a worker was given: this job, not another with its id, and this time."""
        return (self.worker, self.job.place, self.job.token) == (worker, lease.ref, lease.token)


class Hands:
    """All of them, by job. Messages are kept alive from another thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_job: dict[str, Hand] = {}

    def __len__(self) -> int:
        return len(self._by_job)

    def get(self, job_id: str) -> Hand | None:
        """Return a job that we have."""
        return self._by_job.get(job_id)

    def put(self, hand: Hand) -> None:
        """Take a job."""
        with self._lock:
            self._by_job[hand.job.id] = hand

    def drop(self, job_id: str) -> Hand | None:
        """Give a job away."""
        with self._lock:
            return self._by_job.pop(job_id, None)

    def of(self, worker: int) -> list[Hand]:
        """Return what one worker has."""
        with self._lock:
            return [hand for hand in self._by_job.values() if hand.worker == worker]

    def all(self) -> list[Hand]:
        """Return everything."""
        with self._lock:
            return list(self._by_job.values())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._by_job.clear()


LOOK_EVERY = 5 * MICROSECONDS


class Stops:
    """What is to stop. Notes come on another thread."""

    def __init__(self, workshop: Workshop, hands: Hands) -> None:
        self._workshop = workshop
        self._hands = hands
        self._lock = Lock()
        self._wanted: set[str] = set()
        self._looked = 0

    def add(self, job_id: str) -> None:
        """Somebody wants a job stopped; it may be in other hands."""
        if self._hands.get(job_id) is not None:
            with self._lock:
                self._wanted.add(job_id)

    def take(self, worker: int) -> list[str]:
        """Return the jobs of a worker that are to stop, each once."""
        with self._lock:
            hers = [job_id for job_id in self._wanted if self._is_hers(job_id, worker)]
            self._wanted = {job_id for job_id in self._wanted if self._hands.get(job_id)}.difference(hers)
            return hers

    def _is_hers(self, job_id: str, worker: int) -> bool:
        hand = self._hands.get(job_id)
        return hand is not None and hand.worker == worker

    def look(self) -> bool:
        """Look at the records of what runs here, once in a while; answer whether any of it is to stop."""
        now = self._workshop.link.monotonic()
        running = [hand for hand in self._hands.all() if hand.job.status is JobStatus.RUNNING]
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
