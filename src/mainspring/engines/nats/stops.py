"""Stops: jobs in our hands that somebody wants stopped.

Whoever asks sends a note, which comes at once, or never. So the records of what runs here are looked at as well,
every few seconds.
"""

from __future__ import annotations

from threading import Lock

from mainspring.engines.nats.hands import Hands
from mainspring.engines.nats.workspace import Workshop
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.status import JobStatus

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
