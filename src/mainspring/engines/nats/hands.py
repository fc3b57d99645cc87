"""What this process has in its hands: jobs, with the messages that brought them.

A message stays unacknowledged until its job is over or queued again. While it is here, the server is told so
several times in each lease; if this process dies, it delivers the message to somebody else.
"""

from __future__ import annotations

from threading import Lock

from msgspec import Struct

from mainspring.engines.nats.stored import StoredJob
from mainspring.jobs.records import Lease


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
