"""The worker as a state machine, without threads and without I/O.

The driver (`worker.py`) reports an event by calling a method, with the current time by both clocks. Then it
performs the decisions that `take_decisions` returns. The life of a lease:

    fetched ── due ────────────────────────────────────────▶ ready ─▶ handler ─▶ outcome ─▶ settled
       └────── not due yet ─▶ held ─▶ (start lead) starting ──▶ (due) ─┘

Executors claim the start and the end of a job on their own threads (`LeasedJob.claim_start`, `claim_end`), and the
machine claims them when it hands a job back or interrupts it. A handler's outcome goes from its executor straight
to the store; the machine learns of it by `settled`.

Invariants
- A handler runs only after the store has accepted the start of its job.
- No job starts before it is due by the engine's clock.
- Every lease is settled, handed back, or known to belong to another worker.
- At most one fetch and one commit of starts are in flight.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mainspring.clock import NANOSECONDS
from mainspring.jobs.engine import Demand, Taken
from mainspring.jobs.records import Outcome, OutcomeKind
from mainspring.jobs.worker.lease_table import LeasedJob, LeaseTable

LEAD = 1_000_000  # microseconds before its due time that a job is fetched
MIN_PAUSE = 1_000  # microseconds until a fetch whose time has passed already
RETRY_NS = NANOSECONDS  # until the next fetch after an error of the engine
PATIENCE_NS = 100_000_000  # how long a due job waits for a slot before it is handed back

logger = logging.getLogger("mainspring.worker")


class ClockReading(NamedTuple):
    """The time of an event, by both clocks."""

    engine: int
    """Microseconds of the engine's clock, which may jump."""
    monotonic: int
    """Nanoseconds of the monotonic clock."""
    start_lead: int
    """How many microseconds before a job is due its start is committed, as the engine says now."""


class Fetch(Struct, frozen=True):
    """Lease jobs for this worker."""

    worker: int
    demands: list[Demand]
    lead: int
    start_lead: int


class CommitStarts(Struct, frozen=True):
    """Asks the driver to mark held jobs (leased before their due time) as started in the store."""

    worker: int
    jobs: list[LeasedJob]


class Run(Struct, frozen=True):
    """Run handlers as soon as there are free slots, unless the start of a job is claimed before."""

    jobs: list[LeasedJob]


class EndLeases(Struct, frozen=True):
    """Store that jobs are handed back or interrupted. Their ends are claimed."""

    jobs: list[LeasedJob]
    kind: OutcomeKind


class AnnounceShutdown(Struct, frozen=True):
    """Tell handlers that the worker shuts down."""

    jobs: list[LeasedJob]


class StopHandlers(Struct, frozen=True):
    """Ask handlers to stop. With `also_batches`, end the calls of whole batches, too."""

    jobs: list[LeasedJob]
    also_batches: bool = False


class ExpectFiring(Struct, frozen=True):
    """Tell the part that fires schedules when the next occurrence is."""

    instant: int


class Enroll(Struct, frozen=True):
    """Register this worker again, because it was declared dead."""


class Leave(Struct, frozen=True):
    """Remove a former registration of this worker."""

    worker: int


Decision: TypeAlias = (
    Fetch | CommitStarts | Run | EndLeases | AnnounceShutdown | StopHandlers | ExpectFiring | Enroll | Leave
)


class WorkerMachine:
    """Decides what a worker does. Belongs to the control sequence."""

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self.number = 0
        """The number under which the engine knows this worker; 0 before it is enrolled."""
        self.fetch_error: Exception | None = None
        """The error of the last fetch, if it failed."""
        self.interrupted: int | None = None
        """How many running handlers a shutdown interrupted; None before it did."""
        self.is_stopping = False
        self._decisions: list[Decision] = []
        self._is_enrolling = False
        # fetching
        self._is_fetching = False
        self._must_fetch = False  # again, after the fetch in flight
        self._fetch_at: int | None = None  # by the engine's clock
        self._retry_ns: int | None = None
        self._had_room = True  # when the last fetch was made
        self._has_new_room = False  # slots became free since then
        self._is_more = False  # due jobs may wait for room
        self._is_more_ahead = False  # jobs that are due soon may wait for room
        self._is_left = False  # the last fetch left jobs for lack of room
        # held jobs: heaps by the engine's clock, with a number that keeps the order of equal instants
        self._order = count()
        self._starts: list[tuple[int, int, LeasedJob]] = []  # jobs to start, shortly before they are due
        self._releases: list[tuple[int, int, list[LeasedJob]]] = []  # started jobs that are not due yet
        self._is_committing = False
        self._to_commit: list[LeasedJob] = []  # their starts wait for the commit in flight
        self._patience: deque[tuple[int, list[LeasedJob]]] = deque()  # ready jobs, by when they are handed back

    # -- what the driver asks

    def take_decisions(self) -> list[Decision]:
        """Return the decisions that the driver has not performed yet, in order."""
        decisions, self._decisions = self._decisions, []
        return decisions

    def next_wakeup(self, now: ClockReading) -> int | None:
        """Return the monotonic instant at which `time_passed` is needed next."""
        instant = self._fetch_at
        if self._starts and (instant is None or self._starts[0][0] < instant):
            instant = self._starts[0][0]
        if self._releases and (instant is None or self._releases[0][0] < instant):
            instant = self._releases[0][0]
        wakeup = None if instant is None else now.monotonic + (instant - now.engine) * 1_000
        if self._patience and (wakeup is None or self._patience[0][0] < wakeup):
            wakeup = self._patience[0][0]
        if self._retry_ns is not None and (wakeup is None or self._retry_ns < wakeup):
            wakeup = self._retry_ns
        return wakeup

    @property
    def awaits_leases(self) -> bool:
        """Whether an answer of the engine may bring leases, or says whether they may start."""
        return self._is_fetching or self._is_enrolling or self._is_committing

    @property
    def is_settled(self) -> bool:
        """Whether nothing is in flight and no fetch is wanted."""
        return not (self.awaits_leases or self._must_fetch)

    # -- events: fetching

    def enrolled(self, now: ClockReading, number: int) -> None:
        """The engine has registered this worker under a number."""
        before, self.number = self.number, number
        self._is_enrolling = False
        if before:
            # Jobs are handed back, and running handlers go on. The engine accepts that, and their outcomes, for
            # the jobs that no other worker has claimed by then.
            self._hand_back(self.table.jobs())
            self._forget_held()
            self._decisions.append(Leave(before))
        self._fetch(now)

    def enroll_failed(self, now: ClockReading, error: Exception) -> None:
        """The engine could not register this worker again."""
        self._is_enrolling = False
        self._retry_later(now, error)

    def declared_dead(self, _now: ClockReading, number: int) -> None:
        """Another worker declared the worker with this number dead, and takes over its jobs."""
        if number == self.number:
            self._enroll_again()

    def _enroll_again(self) -> None:
        if self._is_enrolling or self.is_stopping:
            return
        logger.error("worker %d was declared dead while it was stopped; it registers again", self.number)
        self._is_enrolling = True
        self._decisions.append(Enroll())

    def woken(self, now: ClockReading) -> None:
        """Jobs may have become available."""
        self._fetch(now)

    def _fetch(self, now: ClockReading) -> None:
        if self.is_stopping or self.number == 0:
            return
        if self._is_fetching or self._is_enrolling:
            self._must_fetch = True
            return
        self._is_fetching, self._must_fetch, self._has_new_room = True, False, False
        demands = self.table.demands()
        self._had_room = any(demand.starts for demand in demands)
        self._decisions.append(Fetch(self.number, demands, LEAD, now.start_lead))

    def fetch_failed(self, now: ClockReading, error: Exception) -> None:
        """The engine could not lease jobs."""
        self._is_fetching = False
        self._retry_later(now, error)

    def _retry_later(self, now: ClockReading, error: Exception) -> None:
        self.fetch_error = error
        self._must_fetch = False
        if not self.is_stopping:
            logger.error("jobs cannot be fetched, trying again in a second: %s", error)
            self._retry_ns = now.monotonic + RETRY_NS

    def fetched(self, now: ClockReading, worker: int, taken: Taken) -> None:
        """The engine has leased jobs, or none, to this worker under a number."""
        self._is_fetching, self.fetch_error = False, None
        if worker != self.number:  # the fetch was made under a former number: the engine takes its leases back
            self._fetch(now)
            return
        if not taken.is_alive:
            self._enroll_again()
            return
        jobs = [self.table.add(lease, worker) for lease in taken.leases]
        if self.is_stopping:
            self._hand_back(jobs)
            return
        self._is_more = taken.is_more
        self._is_left = taken.is_more or (taken.next_due is not None and not self._had_room)
        self._must_fetch |= self._is_left and self._has_new_room
        for job in jobs:
            if not job.lease.is_started:
                heappush(self._starts, (job.lease.due - now.start_lead, next(self._order), job))
        self._release(now, [job for job in jobs if job.lease.is_started])
        self._request_stops(taken.stops)
        self._plan_fetch(now, taken)
        if taken.next_firing is not None:
            self._decisions.append(ExpectFiring(taken.next_firing))

    def _request_stops(self, ids: Sequence[str]) -> None:
        if ids:
            jobs = [job for job in self.table.jobs() if job.lease.id in ids and not job.is_asked_to_stop]
            for job in jobs:
                job.is_asked_to_stop = True
            self._decisions.append(StopHandlers(jobs))

    def _plan_fetch(self, now: ClockReading, taken: Taken) -> None:
        if taken.next_due is not None and self._had_room:
            # A job due within the lead was left for lack of room: fetch it when there is some, or when it is due.
            self._is_more_ahead = taken.next_due <= now.engine + LEAD
            self._fetch_not_after(taken.next_due - (now.start_lead if self._is_more_ahead else LEAD))
        if taken.next_look is not None:
            self._fetch_not_after(taken.next_look if taken.next_look > now.engine else now.engine + MIN_PAUSE)
        if self._must_fetch:
            self._fetch(now)

    def _fetch_not_after(self, instant: int) -> None:
        if self._fetch_at is None or instant < self._fetch_at:
            self._fetch_at = instant

    def clock_jumped(self, now: ClockReading) -> None:
        """The wall clock was set: hand held jobs back, and fetch them again in time."""
        self._hand_back([job for job in self.table.jobs() if job.ready_ns is None])
        self._forget_held()
        self._fetch_at = None
        self._fetch(now)

    # -- events: time

    def time_passed(self, now: ClockReading) -> None:
        """Do everything whose time has come."""
        while self._starts and self._starts[0][0] <= now.engine:
            self._start(now, heappop(self._starts)[2])
        self._commit_starts()
        while self._releases and self._releases[0][0] <= now.engine:
            self._make_ready(now, heappop(self._releases)[2])
        if self._fetch_at is not None and self._fetch_at <= now.engine:
            self._fetch_at = None
            self._fetch(now)
        if self._retry_ns is not None and self._retry_ns <= now.monotonic:
            self._retry_ns = None
            self._fetch(now)
        while self._patience and self._patience[0][0] <= now.monotonic:
            self._hand_back_late(self._patience.popleft()[1])

    # -- events: starting

    def _start(self, now: ClockReading, job: LeasedJob) -> None:
        self.table.count_as_started(job)
        job.is_starting = True
        self._to_commit.append(job)
        if self._is_more_ahead and job.slots.wants_ahead:
            self._is_more_ahead = False
            self._fetch(now)

    def _commit_starts(self) -> None:
        if self._to_commit and not self._is_committing:
            jobs, self._to_commit = self._to_commit, []
            self._is_committing = True
            self._decisions.append(CommitStarts(self.number, jobs))

    def starts_answered(self, now: ClockReading, jobs: Sequence[LeasedJob], answers: Sequence[bool]) -> None:
        """The engine has accepted or refused the starts of jobs."""
        self._is_committing = False
        self._commit_starts()
        accepted = []
        for job, is_accepted in zip(jobs, answers, strict=True):
            job.lease = replace(job.lease, is_started=True)
            job.is_starting = False
            if is_accepted:
                accepted.append(job)
            else:  # canceled, or taken over by another worker
                self.table.drop(job)
        if self.is_stopping:
            self._hand_back(accepted)
            return
        self._release(now, accepted)
        if len(accepted) < len(jobs):
            self._use_new_room(now)

    def starts_failed(self, _now: ClockReading, jobs: Sequence[LeasedJob], error: Exception) -> None:
        """The engine could not store the starts of jobs."""
        logger.error("the start of %d jobs could not be stored, so they are handed back: %s", len(jobs), error)
        self._is_committing = False
        self._commit_starts()
        for job in jobs:
            job.is_starting = False
        self._hand_back(jobs)

    def _release(self, now: ClockReading, jobs: list[LeasedJob]) -> None:
        """Make started jobs ready when they are due, those of the same instant together."""
        early: dict[int, list[LeasedJob]] = {}
        for job in jobs:
            if job.lease.due > now.engine:
                early.setdefault(job.lease.due, []).append(job)
        for due, group in early.items():
            heappush(self._releases, (due, next(self._order), group))
        self._make_ready(now, [job for job in jobs if job.lease.due <= now.engine] if early else jobs)

    def _make_ready(self, now: ClockReading, jobs: list[LeasedJob]) -> None:
        if not jobs:
            return
        for job in jobs:
            job.ready_ns, job.ready_at = now.monotonic, now.engine
        self._decisions.append(Run(jobs))
        if self.table.is_crowded():
            self._patience.append((now.monotonic + PATIENCE_NS, jobs))

    def _hand_back_late(self, jobs: list[LeasedJob]) -> None:
        late = [job for job in jobs if job.is_waiting and job.claim_start()]
        for job in late:
            job.slots.close_window()
        self._end(late, OutcomeKind.HANDED_BACK)

    # -- events: ending

    def settled(self, now: ClockReading, outcomes: Iterable[Outcome]) -> None:
        """The engine has accepted or refused the outcomes of jobs."""
        had_suspect = self.table.drop_settled(outcomes)
        self._is_more |= had_suspect  # suspects are leased one at a time: there may be another
        self.table.adapt(is_more=self._is_more)
        self._use_new_room(now)

    def _use_new_room(self, now: ClockReading) -> None:
        """Fetch jobs that were left for lack of room, because slots became free."""
        if self._is_left or self._is_more:
            self._fetch(now)
        else:
            self._has_new_room = True

    def _hand_back(self, jobs: Iterable[LeasedJob]) -> None:
        """Hand back jobs that have not started. Those that are starting follow when the engine has answered."""
        self._end([job for job in jobs if not job.is_starting and job.claim_start()], OutcomeKind.HANDED_BACK)

    def _end(self, jobs: list[LeasedJob], kind: OutcomeKind) -> None:
        claimed = [job for job in jobs if job.claim_end()]
        if claimed:
            self._decisions.append(EndLeases(claimed, kind))

    def _forget_held(self) -> None:
        """Forget when to start held jobs, which were handed back or dropped just now."""
        self._starts.clear()
        self._releases.clear()

    # -- events: shutdown

    def stop_requested(self, _now: ClockReading) -> None:
        """Fetch no more jobs, and hand back those that have not started."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self._fetch_at = self._retry_ns = None
        self._must_fetch = False
        self._decisions.append(AnnounceShutdown(self.table.jobs()))
        self._hand_back(self.table.jobs())
        self._forget_held()
        self._patience.clear()

    def interrupt_requested(self, _now: ClockReading) -> None:
        """Give up the handlers that still run: their jobs run again on another worker."""
        running = [job for job in self.table.jobs() if job.is_running]
        self.interrupted = len(running)
        self._end(running, OutcomeKind.INTERRUPTED)  # claimed first: an error that the stop causes does not count
        self._decisions.append(StopHandlers(running, also_batches=True))
