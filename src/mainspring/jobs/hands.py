"""What a worker has in its hands: its leases, and the slots that they occupy.

Invariants
- Every job counts in exactly one place of its slots: `held` until its start is being committed, `started` after.
- A suspect, a job that has crashed two workers, counts as long as it is here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from mainspring.jobs.active import ActiveJob
from mainspring.jobs.engine import SUSPECT_CRASHES, Demand, Lease, Outcome
from mainspring.jobs.handlers import Registry
from mainspring.jobs.slots import Slots


class Hands:
    """The jobs of a worker. Belongs to the control sequence."""

    def __init__(
        self, registry: Registry, *, threads: int, coroutines: int, queues: tuple[str, ...] | None
    ) -> None:
        self._registry = registry
        self._jobs: dict[tuple[Hashable, int], ActiveJob] = {}  # by ref and token: a job may come again
        self.thread_slots = Slots(threads, lambda: registry.names(is_async=False), queues)
        # Coroutines all start at once, so there is nothing to queue up behind them.
        self.loop_slots = Slots(coroutines, lambda: registry.names(is_async=True), queues, max_window=0)
        self._slots = (self.thread_slots, self.loop_slots)

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: ActiveJob) -> bool:
        return (job.lease.ref, job.lease.token) in self._jobs

    def jobs(self) -> list[ActiveJob]:
        """Return all of them."""
        return list(self._jobs.values())

    def demands(self) -> list[Demand]:
        """Say what there is room for."""
        return [demand for slots in self._slots if (demand := slots.demand()).types]

    def accept(self, lease: Lease) -> ActiveJob:
        """Take a job into the hands."""
        job = ActiveJob(lease, self._registry.get(lease.type))
        self._jobs[lease.ref, lease.token] = job
        slots = self.slots_of(job)
        if lease.is_started:
            slots.started += 1
        else:
            slots.held += 1
        if is_suspect(lease):
            slots.suspects += 1
        return job

    def begin(self, job: ActiveJob) -> None:
        """Count a job that was held as started."""
        job.counts_as_started = True
        slots = self.slots_of(job)
        slots.held -= 1
        slots.started += 1

    def take_back(self, jobs: Iterable[ActiveJob]) -> None:
        """Count jobs as held again: their start was not stored."""
        for job in jobs:
            job.counts_as_started = False
            slots = self.slots_of(job)
            slots.held += 1
            slots.started -= 1

    def drop(self, job: ActiveJob) -> None:
        """Let go of a job."""
        if self._jobs.pop((job.lease.ref, job.lease.token), None) is None:
            return
        slots = self.slots_of(job)
        if job.counts_as_started:
            slots.started -= 1
        else:
            slots.held -= 1
        if is_suspect(job.lease):
            slots.suspects -= 1

    def drop_settled(self, outcomes: Iterable[Outcome]) -> bool:
        """Let go of jobs that are settled; True if there was a suspect among them."""
        had_suspect = False
        for outcome in outcomes:
            job = self._jobs.get((outcome.lease.ref, outcome.lease.token))
            if job is not None:
                self.drop(job)
                had_suspect |= is_suspect(job.lease)
        return had_suspect

    def is_crowded(self) -> bool:
        """Answer whether there are more jobs than slots, so that some have to wait."""
        return any(slots.started > slots.size for slots in self._slots)

    def adapt(self, *, is_more: bool) -> None:
        """Let the slots learn from how long jobs had to wait."""
        for slots in self._slots:
            slots.adapt(is_more=is_more)

    def slots_of(self, job: ActiveJob) -> Slots:
        """Return the slots that a job occupies."""
        return self.loop_slots if job.handler.is_async else self.thread_slots


def is_suspect(lease: Lease) -> bool:
    """Answer whether a job may be one that kills its workers."""
    return lease.crashes >= SUSPECT_CRASHES
