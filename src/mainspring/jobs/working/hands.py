"""What a worker has in its hands: its leases, and the slots that they occupy.

Invariants
- Every job counts in exactly one place of its slots: `held` until its start is being committed, `started` after.
- A suspect, a job that has crashed two workers, counts as long as it is here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from mainspring.clock import NANOSECONDS
from mainspring.jobs.engine import Demand, is_suspect
from mainspring.jobs.handlers import Handler, Registry
from mainspring.jobs.records import Lease, Outcome
from mainspring.jobs.waiting import Waiting
from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.occupancy import Longest, Occupancy
from mainspring.jobs.working.progress import Reporting
from mainspring.jobs.working.slots import BatchSlots, Kind, Slots

PROCESS_WINDOW = 16


class Hands:
    """The jobs of a worker. Belongs to the control sequence."""

    def __init__(
        self,
        registry: Registry,
        reporting: Reporting,
        *,
        threads: int,
        coroutines: int,
        processes: int,
        queues: tuple[str, ...] | None,
    ) -> None:
        self._registry = registry
        self._report = reporting.report
        self._queues = queues
        self._jobs: dict[tuple[Hashable, int], ActiveJob] = {}  # by ref and token: a job may come again
        self._threads = Slots(threads, queues)
        # Coroutines all start at once, so there is nothing to queue up behind them.
        self._loop = Slots(coroutines, queues, kind=Kind.LOOP, max_window=0)
        # Jobs for processes are long as a rule; a few may wait, so that short ones need not be fetched one by one.
        self._processes = Slots(processes, queues, kind=Kind.PROCESSES, max_window=PROCESS_WINDOW * processes)
        self._kinds = (self._threads, self._loop, self._processes)
        self._batches: dict[str, BatchSlots] = {}  # by the name of the handler
        self._slots: dict[Handler, Slots] = {}  # what has been looked up

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: ActiveJob) -> bool:
        return (job.lease.ref, job.lease.token) in self._jobs

    def jobs(self) -> list[ActiveJob]:
        """Return all of them."""
        return list(self._jobs.values())

    def demands(self) -> list[Demand]:
        """Say what there is room for."""
        names: dict[Slots, list[str]] = {}
        for name in self._registry.names(_any_handler):
            names.setdefault(self._slots_for(self._registry.get(name)), []).append(name)
        self._count_lent()
        return [slots.demand(tuple(types)) for slots, types in names.items()]

    def accept(self, lease: Lease) -> ActiveJob:
        """Take a job into the hands."""
        handler = self._registry.get(lease.type)
        slots = self._slots.get(handler) or self._slots_for(handler)
        job = ActiveJob(lease, handler, slots, self._report)
        self._jobs[lease.ref, lease.token] = job
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
        slots = job.slots
        slots.held -= 1
        slots.started += 1

    def take_back(self, jobs: Iterable[ActiveJob]) -> None:
        """Count jobs as held again: their start was not stored."""
        for job in jobs:
            job.counts_as_started = False
            slots = job.slots
            slots.held += 1
            slots.started -= 1

    def drop(self, job: ActiveJob) -> None:
        """Let go of a job."""
        if self._jobs.pop((job.lease.ref, job.lease.token), None) is None:
            return
        slots = job.slots
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
        if self._batches:
            self._count_lent()
        return any(slots.places > slots.size for slots in self._kinds)

    def adapt(self, *, is_more: bool) -> None:
        """Let the slots learn from how long jobs had to wait."""
        for slots in self._kinds:
            slots.adapt(is_more=is_more)

    def kind_of(self, waiting: Waiting) -> Kind | None:
        """Say where jobs would run that wait; None if they are not for this worker."""
        is_ours = waiting.type in self._registry and (self._queues is None or waiting.queue in self._queues)
        return self._slots_for(self._registry.get(waiting.type)).kind if is_ours else None

    def occupancy(self, type_: str, now_ns: int) -> Occupancy:
        """Say how busy the places for a handler are."""
        slots = self._slots_for(self._registry.get(type_))
        is_batch = slots.batch is not None and slots.started > 0
        if not is_batch:
            slots = next(kind for kind in self._kinds if kind.kind is slots.kind)
        self._count_lent()
        running = [job for job in self._jobs.values() if job.is_running]
        here = [job for job in running if (job.slots is slots if is_batch else job.slots.kind is slots.kind)]
        times = [Longest(job.waited(now_ns) / NANOSECONDS, job.lease.id, job.lease.type) for job in here]
        longest = max(times, default=None)
        if is_batch:
            return Occupancy(slots.kind, 1, 1, longest, is_batch=True)
        return Occupancy(slots.kind, min(slots.places, slots.size), slots.size, longest)

    def _slots_for(self, handler: Handler) -> Slots:
        slots = self._processes if handler.is_process else self._loop if handler.is_async else self._threads
        if handler.options.batch is not None:
            slots = self._batch_slots(handler, slots)
        self._slots[handler] = slots
        return slots

    def _batch_slots(self, handler: Handler, kind: Slots) -> BatchSlots:
        slots = self._batches.get(handler.name)
        if slots is None or slots.batch != handler.options.batch:  # or it was registered anew
            slots = self._batches[handler.name] = BatchSlots(handler.options.batch or 1, self._queues, kind)
        return slots

    def _count_lent(self) -> None:
        """Count the places that calls of batch handlers use."""
        for slots in self._kinds:
            slots.lent = sum(1 for batch in self._batches.values() if batch.started and batch.kind is slots.kind)


def _any_handler(_handler: Handler) -> bool:
    return True
