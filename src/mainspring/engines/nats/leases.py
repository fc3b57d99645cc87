"""The active leases of this process, and the requests to stop their jobs.

The message of a leased job stays unacknowledged until the job has ended or is queued again. The heartbeat thread
tells the server several times in each lease that the message is in progress. If this process dies, the server
delivers the message to another worker. The notification that asks to stop a job may be lost, so this process also
reads the records of running jobs every few seconds.
"""

from __future__ import annotations

from threading import Lock

from msgspec import Struct

from mainspring.engines.nats.job_records import StoredJob
from mainspring.engines.nats.transaction import TransactionManager
from mainspring.jobs.records import Lease
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS


class ActiveLease(Struct):
    """The lease of one job by a worker of this process."""

    worker: int
    job: StoredJob
    revision: int
    """The revision of the job's record."""
    reply: str
    """The reply subject of the job's message. This process sends the acknowledgement to this subject."""

    def is_of(self, lease: Lease, worker: int) -> bool:
        """Return whether this lease belongs to a worker and is the given lease.

        The places in the order of submission are compared, because another job may have had the same id; so are
        the fencing tokens.
        """
        return (self.worker, self.job.place, self.job.token) == (worker, lease.ref, lease.token)


class ActiveLeases:
    """All leases of this process, by job id. The heartbeat thread reads them, too."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_job: dict[str, ActiveLease] = {}

    def __len__(self) -> int:
        return len(self._by_job)

    def get(self, job_id: str) -> ActiveLease | None:
        """Return the lease of a job; None if this process has no lease of the job."""
        return self._by_job.get(job_id)

    def put(self, active: ActiveLease) -> None:
        """Add a lease, or replace that of the same job."""
        with self._lock:
            self._by_job[active.job.id] = active

    def drop(self, job_id: str) -> ActiveLease | None:
        """Remove the lease of a job, and return the lease; return None if this process has no lease of the job."""
        with self._lock:
            return self._by_job.pop(job_id, None)

    def of(self, worker: int) -> list[ActiveLease]:
        """Return the leases of one worker."""
        with self._lock:
            return [active for active in self._by_job.values() if active.worker == worker]

    def all(self) -> list[ActiveLease]:
        """Return all leases."""
        with self._lock:
            return list(self._by_job.values())

    def clear(self) -> None:
        """Remove all leases."""
        with self._lock:
            self._by_job.clear()


READ_INTERVAL = 5 * MICROSECONDS


class StopRequests:
    """The ids of running jobs of this process that were asked to stop.

    The thread of the connection calls `add` when a notification arrives. `read` finds requests whose notification
    was lost. `take` returns them, once, to the worker that runs the job.
    """

    def __init__(self, transactions: TransactionManager, leases: ActiveLeases) -> None:
        self._transactions = transactions
        self.leases = leases
        self._lock = Lock()
        self._requested: set[str] = set()
        self._last_read = 0

    def add(self, job_id: str) -> None:
        """Record a request to stop a job, if this process has its lease."""
        if self.leases.get(job_id) is not None:
            with self._lock:
                self._requested.add(job_id)

    def take(self, worker: int) -> list[str]:
        """Take the ids of the jobs of a worker that are to stop: each request is returned once."""
        with self._lock:
            own = [job_id for job_id in self._requested if self._belongs_to(job_id, worker)]
            self._requested = {job_id for job_id in self._requested if self.leases.get(job_id)}.difference(own)
            return own

    def _belongs_to(self, job_id: str, worker: int) -> bool:
        active = self.leases.get(job_id)
        return active is not None and active.worker == worker

    def read(self) -> bool:
        """Read the records of running jobs, and record which of them are asked to stop; return whether any is.

        Do nothing and return False if no job runs, or if the last read was less than `READ_INTERVAL` ago.
        """
        now = self._transactions.jetstream.monotonic()
        running = [active for active in self.leases.all() if active.job.status is JobStatus.RUNNING]
        if not running or now - self._last_read < READ_INTERVAL:
            return False
        self._last_read = now
        transaction = self._transactions.begin()
        transaction.prefetch_jobs(active.job.id for active in running)
        jobs = (transaction.job(active.job.id) for active in running)
        requested = [job.id for job in jobs if job is not None and job.stop_requested]
        with self._lock:
            self._requested.update(requested)
        return bool(requested)
