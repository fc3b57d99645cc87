"""The leases of a worker, with their handlers and the slots that they occupy.

Invariants
- Every job is counted once in its slots: as `held` until its start is being committed, as `started` after that.
- While a suspect (a job with two crashes) is in the table, no other suspect is fetched. If the worker dies, only
  one of them can have caused that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

from mainspring.clock import NANOSECONDS
from mainspring.jobs.backlog import WaitingJobs
from mainspring.jobs.context import JobContext
from mainspring.jobs.engine import Demand
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.records import Lease, Outcome, is_suspect
from mainspring.jobs.redaction import mask_of_payloads
from mainspring.jobs.statistics import SlotKind, SlotStatistics
from mainspring.jobs.worker.slots import BatchSlots, ExecutionKind, LongestJob, Occupancy, Slots

if TYPE_CHECKING:
    from mainspring.jobs.worker.executors import HandlerCall

PROCESS_WINDOW = 16

Report = Callable[[Lease, float, float | None, str | None], object]


class LeaseContext(JobContext):
    """The context of a job that a worker has leased. It passes the lease to the function that stores progress."""

    __slots__ = ()

    def _tell(self, done: float, total: float | None, note: str | None) -> None:
        report = self._report
        if report is not None:
            report(self._lease, done, total, note)


class LeasedJob:
    """A leased job in this worker, and whether its handler has started or ended.

    Starting and ending a job are claims. Each claim is one atomic pop, so that the thread of a handler and a
    shutdown that hands the job back cannot both win.
    """

    __slots__ = (
        "_end",
        "_start",
        "began_ns",
        "call",
        "context",
        "counts_as_started",
        "error",
        "handler",
        "is_asked_to_stop",
        "is_starting",
        "lease",
        "ready_at",
        "ready_ns",
        "slots",
        "timed_out_after",
        "worker",
    )

    def __init__(self, lease: Lease, handler: Handler, slots: Slots, report: Report, worker: int) -> None:
        self.lease = lease
        # the worker's number at the time of the lease: the outcome is stored under the same number
        self.worker = worker
        self.handler = handler
        self.slots = slots
        self.context = LeaseContext(lease, _masking(report, handler) if handler.redacted else report)
        self.call: HandlerCall | None = None  # the call of the handler, if it has timeouts or can be stopped
        self.counts_as_started = lease.is_started
        self.is_starting = False  # the engine has not answered yet whether the job may start
        self.ready_ns: int | None = None  # when the job was ready to run, by the monotonic clock
        self.ready_at = 0  # the same instant by the engine's clock
        self.began_ns = 0  # when the handler began, by the monotonic clock; a `HandlerCall` has its own
        self.is_asked_to_stop = False  # a user asked the job to stop; a timeout does not set it
        self.timed_out_after: int | None = None  # the timeout that has passed, in microseconds
        self.error: BaseException | None = None  # the exception of the handler, until it is logged
        self._start = [None]
        self._end = [None]

    def claim_start(self) -> bool:
        """Claim the right to start the job, or to prevent its start; return False if it was claimed before."""
        try:
            self._start.pop()
        except IndexError:
            return False
        return True

    def claim_end(self) -> bool:
        """Claim the right to decide how the job ended; return False if it was claimed before."""
        try:
            self._end.pop()
        except IndexError:
            return False
        return True

    def to_engine_time(self, now_ns: int) -> int:
        """Convert an instant of the monotonic clock, in nanoseconds, to the engine's clock, in microseconds.

        The instant must not be before the one at which the job was ready to run. Return 0 if it is not ready yet.
        """
        return self.ready_at + self.waited(now_ns) // 1_000

    def waited(self, now_ns: int) -> int:
        """Return the nanoseconds since the job was ready to run; 0 if it is not ready yet."""
        return 0 if self.ready_ns is None else now_ns - self.ready_ns

    @property
    def is_waiting(self) -> bool:
        """Whether the job waits for its handler to start: the start has not been claimed."""
        return bool(self._start)

    @property
    def has_ended(self) -> bool:
        """Whether the end of the job has been claimed: its handler has ended, or the job was handed back or
        interrupted.
        """
        return not self._end

    @property
    def is_running(self) -> bool:
        """Whether the handler runs: the start has been claimed and the end has not."""
        return not self._start and bool(self._end)


def _masking(report: Report, handler: Handler) -> Report:
    """Return a function that masks redacted values in the texts of progress reports, and then reports them."""

    def report_masked(lease: Lease, done: float, total: float | None, note: str | None) -> object:
        if note is not None:
            payloads = [(lease.payload, lease.codec)]
            note = mask_of_payloads(handler.arguments, handler.redacted, payloads)(note)
        return report(lease, done, total, note)

    return report_masked


_SLOT_KINDS = {
    ExecutionKind.THREADS: SlotKind.THREADS,
    ExecutionKind.LOOP: SlotKind.COROUTINES,
    ExecutionKind.PROCESSES: SlotKind.PROCESSES,
    ExecutionKind.CALLBACKS: SlotKind.CALLBACKS,
}


class LeaseTable:
    """The leased jobs of a worker, and the slots that they occupy. Only the control layer uses it."""

    def __init__(
        self,
        registry: HandlerRegistry,
        report: Report,
        *,
        threads: int,
        coroutines: int,
        processes: int,
        queues: tuple[str, ...] | None,
    ) -> None:
        self._registry = registry
        self._report = report
        self._queues = queues
        # the key has the fencing token, because a job may be leased again
        self._jobs: dict[tuple[Hashable, int], LeasedJob] = {}
        self._threads = Slots(threads, queues)
        # All coroutines start at once, so prefetching more jobs would be of no use.
        self._loop = Slots(coroutines, queues, kind=ExecutionKind.LOOP, max_window=0)
        # Jobs in processes usually take long. A small window saves short jobs from waiting for a fetch each.
        self._processes = Slots(
            processes, queues, kind=ExecutionKind.PROCESSES, max_window=PROCESS_WINDOW * processes
        )
        self._kinds: tuple[Slots, ...] = (self._threads, self._loop, self._processes)
        self._callbacks: Slots | None = None  # made with the first handler that is a callback
        self._batches: dict[str, BatchSlots] = {}  # by the name of the handler
        self._slots: dict[Handler, Slots] = {}
        self._suspects = 0  # in the table

    def __len__(self) -> int:
        return len(self._jobs)

    def jobs(self) -> list[LeasedJob]:
        """Return all leased jobs: not started, waiting for a slot, running, and ended with an outcome that is not
        stored yet.
        """
        return list(self._jobs.values())

    def demands(self) -> list[Demand]:
        """Return how many jobs the worker should fetch now: a demand for each set of types that share slots."""
        names: dict[Slots, list[str]] = {}
        at_most_once: dict[Slots, list[str]] = {}
        for name in self._registry.local_names():
            handler = self._registry.get(name)
            slots = self._slots_for(handler)
            names.setdefault(slots, []).append(name)
            if handler.options.at_most_once:
                at_most_once.setdefault(slots, []).append(name)
        self._count_batch_slots()
        return [
            slots.demand(
                tuple(types), suspects=self._suspects == 0, at_most_once=tuple(at_most_once.get(slots, ()))
            )
            for slots, types in names.items()
        ]

    def add(self, lease: Lease, worker: int) -> LeasedJob:
        """Add a lease that the engine gave to the worker with the number `worker`; return the leased job.

        Count it in the slots that its handler uses: as started, or as held if the job was leased before it is due.
        """
        handler = self._registry.get(lease.type)
        slots = self._slots.get(handler) or self._slots_for(handler)
        job = LeasedJob(lease, handler, slots, self._report, worker)
        self._jobs[lease.ref, lease.token] = job
        if lease.is_started:
            slots.started += 1
            slots.started_at_most_once += lease.at_most_once
        else:
            slots.held += 1
        self._suspects += is_suspect(lease)
        return job

    def count_as_started(self, job: LeasedJob) -> None:
        """Count a job that was leased before its due time as started: it now occupies a slot."""
        job.counts_as_started = True
        slots = job.slots
        slots.held -= 1
        slots.started += 1
        slots.started_at_most_once += job.lease.at_most_once

    def drop(self, job: LeasedJob) -> None:
        """Remove a job from the table and from the counts of its slots.

        A job that is not in the table is ignored.
        """
        self._drop(job.lease)

    def _drop(self, lease: Lease) -> None:
        job = self._jobs.pop((lease.ref, lease.token), None)
        if job is None:
            return
        slots = job.slots
        if job.counts_as_started:
            slots.started -= 1
            slots.started_at_most_once -= job.lease.at_most_once
        else:
            slots.held -= 1
        self._suspects -= is_suspect(job.lease)

    def drop_settled(self, outcomes: Iterable[Outcome]) -> bool:
        """Remove the jobs whose outcomes the engine has accepted or refused.

        Return whether one of them had two crashes (a suspect). Outcomes of jobs that are not in the table are
        ignored.
        """
        before = self._suspects
        for outcome in outcomes:
            self._drop(outcome.lease)
        return self._suspects < before

    def is_crowded(self) -> bool:
        """Return whether some kind of slots has more started jobs than slots, so that some must wait."""
        if self._batches:
            self._count_batch_slots()
        return any(slots.started + slots.used_by_batches > slots.size for slots in self._kinds)

    def adapt(self, *, is_more: bool) -> None:
        """Adapt how many jobs each kind of slots prefetches to how long fetched jobs had to wait.

        `is_more` says whether more jobs are due than were fetched.
        """
        for slots in self._kinds:
            slots.adapt(is_more=is_more)

    def kind_of(self, waiting: WaitingJobs) -> ExecutionKind | None:
        """Return how this worker would run these waiting jobs; None if it does not serve their queue or type."""
        is_served = waiting.type in self._registry and (self._queues is None or waiting.queue in self._queues)
        if not is_served or self._registry.get(waiting.type).is_remote:
            return None
        return self._slots_for(self._registry.get(waiting.type)).kind

    def occupancy(self, type_: str, now_ns: int) -> Occupancy:
        """Return how busy the slots for a job type are, for the text of a stall report."""
        slots = self._slots_for(self._registry.get(type_))
        is_batch = slots.batch is not None and slots.started > 0
        if not is_batch:
            slots = next(kind for kind in self._kinds if kind.kind is slots.kind)
        self._count_batch_slots()
        running = [job for job in self._jobs.values() if job.is_running]
        here = [job for job in running if (job.slots is slots if is_batch else job.slots.kind is slots.kind)]
        times = [LongestJob(job.waited(now_ns) / NANOSECONDS, job.lease.id, job.lease.type) for job in here]
        longest = max(times, default=None)
        if is_batch:
            return Occupancy(slots.kind, 1, 1, longest, is_batch=True)
        return Occupancy(slots.kind, min(slots.occupied, slots.size), slots.size, longest)

    def slot_statistics(self) -> tuple[SlotStatistics, ...]:
        """Return how many slots of each kind there are, and how many are busy."""
        self._count_batch_slots()
        return tuple(
            SlotStatistics(kind=_SLOT_KINDS[slots.kind], slots=slots.size, busy=min(slots.occupied, slots.size))
            for slots in self._kinds
        )

    def _slots_for(self, handler: Handler) -> Slots:
        slots = self._processes if handler.is_process else self._loop if handler.is_async else self._threads
        if handler.is_callback:
            slots = self._callback_slots(handler)
        if handler.options.batch is not None:
            slots = self._batch_slots(handler, slots)
        self._slots[handler] = slots
        return slots

    def _callback_slots(self, handler: Handler) -> Slots:
        if self._callbacks is None:
            size = handler.requests_at_once
            self._callbacks = Slots(size, self._queues, kind=ExecutionKind.CALLBACKS, max_window=0)
            self._kinds += (self._callbacks,)
        return self._callbacks

    def _batch_slots(self, handler: Handler, kind: Slots) -> BatchSlots:
        slots = self._batches.get(handler.name)
        # the handler was registered again, so it is a new object
        if slots is None or slots.batch != handler.options.batch:
            slots = self._batches[handler.name] = BatchSlots(handler.options.batch or 1, self._queues, kind)
        return slots

    def _count_batch_slots(self) -> None:
        """Store in each kind of slots how many of them the running calls of batch handlers occupy."""
        for slots in self._kinds:
            slots.used_by_batches = sum(
                1 for batch in self._batches.values() if batch.started and batch.kind is slots.kind
            )
