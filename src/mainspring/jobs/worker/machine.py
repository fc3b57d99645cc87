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
from mainspring.jobs.context import fields_of_jobs
from mainspring.jobs.engine import Demand, Taken
from mainspring.jobs.records import Outcome, OutcomeKind
from mainspring.jobs.worker.failure_log import FailureLog
from mainspring.jobs.worker.lease_table import LeasedJob, LeaseTable
from mainspring.plurals import format_count

LEAD = 1_000_000  # how many microseconds before its due time a job is fetched at the earliest
MIN_PAUSE = 1_000  # microseconds until the next fetch if its time has already passed
RETRY_NS = NANOSECONDS  # nanoseconds until the next fetch after an error of the engine
PATIENCE_NS = 100_000_000  # how long a due job waits for a slot before it is handed back

logger = logging.getLogger("mainspring.worker")


class ClockReading(NamedTuple):
    """The time of an event by the engine's clock and by the monotonic clock, and the start lead at that time."""

    engine: int
    """The time by the engine's clock, in microseconds. This clock may jump."""
    monotonic: int
    """The time by the monotonic clock, in nanoseconds."""
    start_lead: int
    """How many microseconds before its due time the start of a leased job is committed, as the engine says now."""


class Fetch(Struct, frozen=True):
    """Asks the driver (`Worker`) to lease jobs for this worker."""

    worker: int
    demands: list[Demand]
    lead: int
    start_lead: int


class CommitStarts(Struct, frozen=True):
    """Asks the driver (`Worker`) to store the start of jobs that the worker has leased and that are due soon."""

    worker: int
    jobs: list[LeasedJob]


class Run(Struct, frozen=True):
    """Asks the driver (`Worker`) to run the handlers of jobs, as soon as there are free slots."""

    jobs: list[LeasedJob]


class EndLeases(Struct, frozen=True):
    """Asks the driver (`Worker`) to store that jobs are handed back or interrupted.

    The machine has claimed their ends.
    """

    jobs: list[LeasedJob]
    kind: OutcomeKind


class AnnounceShutdown(Struct, frozen=True):
    """Asks the driver (`Worker`) to tell the handlers of all leased jobs that the worker shuts down."""

    jobs: list[LeasedJob]


class StopHandlers(Struct, frozen=True):
    """Asks the driver (`Worker`) to stop the handlers of jobs; coroutines and child processes, by force.

    A handler call for several jobs of a batch is stopped by force only with `also_batches`.
    """

    jobs: list[LeasedJob]
    also_batches: bool = False


class ExpectFiring(Struct, frozen=True):
    """Asks the driver (`Worker`) to tell the schedule firer when the next occurrence of any schedule is."""

    instant: int


class Enroll(Struct, frozen=True):
    """Asks the driver (`Worker`) to register this worker again, because it was declared dead."""


class Leave(Struct, frozen=True):
    """Asks the driver (`Worker`) to remove an old number of this worker.

    The worker was declared dead under the old number and has a new one.
    """

    worker: int


Decision: TypeAlias = (
    Fetch | CommitStarts | Run | EndLeases | AnnounceShutdown | StopHandlers | ExpectFiring | Enroll | Leave
)


class WorkerMachine:
    """Decides what a worker does: events go in, decisions come out. Only the control layer uses it."""

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self.number = 0
        """The number under which the engine knows this worker; 0 before it is enrolled."""
        self.fetch_error: Exception | None = None
        """The error of the last fetch, or of registering again; None if the last fetch succeeded."""
        self._failures = FailureLog()
        self.interrupted: int | None = None
        """How many running jobs a shutdown has interrupted; None before the end of its grace period."""
        self.is_stopping = False
        self._decisions: list[Decision] = []
        self._is_enrolling = False
        # fetching
        self._is_fetching = False
        self._must_fetch = False  # fetch again after the fetch in flight
        self._fetch_at: int | None = None  # by the engine's clock
        self._retry_ns: int | None = None
        self._had_room = True  # whether slots were free when the last fetch was made
        self._has_new_room = False  # whether slots became free since the last fetch began
        self._is_more = False  # whether due jobs may wait for free slots
        self._is_more_ahead = False  # whether the last fetch left jobs that are due within the lead
        self._is_left = False  # whether the last fetch left jobs because no slots were free
        # held jobs: heaps by the engine's clock, with a number that keeps the order of equal instants
        self._order = count()
        self._starts: list[tuple[int, int, LeasedJob]] = []  # jobs to start, shortly before they are due
        self._releases: list[tuple[int, int, list[LeasedJob]]] = []  # started jobs that are not due yet
        self._is_committing = False
        self._to_commit: list[LeasedJob] = []  # jobs whose starts wait for the commit in flight
        self._patience: deque[tuple[int, list[LeasedJob]]] = deque()  # ready jobs, and when they are handed back

    # -- what the driver reads

    def take_decisions(self) -> list[Decision]:
        """Remove and return the decisions that the driver has not performed yet, in order."""
        decisions, self._decisions = self._decisions, []
        return decisions

    def next_wakeup(self, now: ClockReading) -> int | None:
        """Return the monotonic time, in nanoseconds, at which the driver must call `time_passed`; None: never."""
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
        """Whether the engine still has to answer a fetch, a registration or a commit of starts."""
        return self._is_fetching or self._is_enrolling or self._is_committing

    @property
    def is_settled(self) -> bool:
        """Whether the engine has answered all fetches, registrations and starts, and no fetch is wanted."""
        return not (self.awaits_leases or self._must_fetch)

    # -- events: fetching

    def enrolled(self, now: ClockReading, number: int) -> None:
        """Handle the event that the engine has registered this worker under a number: fetch.

        If the worker had another number before, first hand back the jobs whose handlers have not begun, and give
        the old number up.
        """
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
        """Handle the event that the engine could not register this worker: try again in a second.

        During a shutdown, do not try again.
        """
        self._is_enrolling = False
        self._retry_later(now, error, "register again")

    def declared_dead(self, _now: ClockReading, number: int) -> None:
        """Handle the event that other workers declared the worker with this number dead: register again.

        An old number is ignored, and so is the event during a registration or a shutdown.
        """
        if number == self.number:
            self._enroll_again()

    def _enroll_again(self) -> None:
        if self._is_enrolling or self.is_stopping:
            return
        logger.error(
            "worker %d counts as dead, because the store got no heartbeat of it in time, and registers again; was "
            "its process suspended or cut off from the store, or did the store refuse changes?",
            self.number,
        )
        self._is_enrolling = True
        self._decisions.append(Enroll())

    def woken(self, now: ClockReading) -> None:
        """Handle the event that jobs may have become available: fetch, after the fetch in flight if there is one.

        A worker that shuts down does not fetch.
        """
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
        """Handle the event that the engine could not lease jobs: try again in a second, except in a shutdown."""
        self._is_fetching = False
        self._retry_later(now, error, "fetch jobs")

    def _retry_later(self, now: ClockReading, error: Exception, action: str) -> None:
        self.fetch_error = error
        self._must_fetch = False
        if not self.is_stopping:
            self._log_trouble(now, action, error)
            self._retry_ns = now.monotonic + RETRY_NS

    def _log_trouble(self, now: ClockReading, action: str, error: Exception) -> None:
        seconds = self._failures.failed(now.monotonic)
        if seconds:
            logger.error(
                "the worker could not %s for %.0f s and tries again every second: %s", action, seconds, error
            )
        elif seconds is not None:
            logger.error("the worker could not %s and tries again in a second: %s", action, error)

    def fetched(self, now: ClockReading, worker: int, taken: Taken) -> None:
        """Handle the answer to a fetch: run the jobs that the engine leased under the number `worker`, now or when
        they are due.

        During a shutdown, hand the jobs back. Ignore leases under an old number, which the engine takes back.
        Register again if the engine counts this worker as dead.
        """
        self._is_fetching, self.fetch_error = False, None
        self._failures.succeeded()
        if worker != self.number:  # the fetch was made under a former number: the engine takes these leases back
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
            # A job that is due within the lead was not leased: the worker holds as many jobs as it may, or this
            # one is never held (it is in a sequence or under a limit). Fetch it when fewer jobs are held, or when
            # it is due.
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
        """Handle a jump of the wall clock: hand back the jobs that are not ready to run yet, and fetch again.

        Jobs whose start is being committed are not handed back.
        """
        self._hand_back([job for job in self.table.jobs() if job.ready_ns is None])
        self._forget_held()
        self._fetch_at = None
        self._fetch(now)

    # -- events: time

    def time_passed(self, now: ClockReading) -> None:
        """Handle the event that time has passed: do what is due by now.

        Commit the starts of leased jobs that are due in a moment, run started jobs whose due time has come, fetch,
        and hand back jobs that waited too long for a slot.
        """
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
        """Handle the answers of the engine to a commit of starts: drop refused jobs, run accepted ones when due.

        During a shutdown, hand the accepted jobs back.
        """
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
        """Handle the event that the engine could not store the starts of jobs: hand the jobs back."""
        what = format_count(len(jobs), "job")
        logger.error(
            "the worker could not store the start of %s and hands the leases back: %s",
            what,
            error,
            extra=fields_of_jobs([job.context for job in jobs]),
        )
        self._is_committing = False
        self._commit_starts()
        for job in jobs:
            job.is_starting = False
        self._hand_back(jobs)

    def _release(self, now: ClockReading, jobs: list[LeasedJob]) -> None:
        """Make started jobs ready to run at their due time, those with the same due time together."""
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
        """Handle the answer of the engine to outcomes, accepted or refused: remove the jobs from the lease table.

        If the last fetch left jobs, fetch for the slots that are free now.
        """
        had_suspect = self.table.drop_settled(outcomes)
        self._is_more |= had_suspect  # a worker leases one suspect at a time: another one may wait
        self.table.adapt(is_more=self._is_more)
        self._use_new_room(now)

    def _use_new_room(self, now: ClockReading) -> None:
        """Fetch jobs for slots that became free, if the last fetch left jobs; else remember these slots."""
        if self._is_left or self._is_more:
            self._fetch(now)
        else:
            self._has_new_room = True

    def _hand_back(self, jobs: Iterable[LeasedJob]) -> None:
        """Hand back those of the jobs whose handler has not begun.

        Jobs whose start is being committed are left out; a shutdown hands them back after the engine's answer.
        """
        self._end([job for job in jobs if not job.is_starting and job.claim_start()], OutcomeKind.HANDED_BACK)

    def _end(self, jobs: list[LeasedJob], kind: OutcomeKind) -> None:
        claimed = [job for job in jobs if job.claim_end()]
        if claimed:
            self._decisions.append(EndLeases(claimed, kind))

    def _forget_held(self) -> None:
        """Forget when to commit the starts of jobs that were handed back or dropped before they started."""
        self._starts.clear()
        self._releases.clear()

    # -- events: shutdown

    def stop_requested(self, _now: ClockReading) -> None:
        """Handle a shutdown: tell the handlers, fetch no more jobs, hand back those whose handler has not begun.

        A second call does nothing.
        """
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
        """Handle the end of the grace period: interrupt the running handlers, and end the leases of their jobs."""
        running = [job for job in self.table.jobs() if job.is_running]
        self.interrupted = len(running)
        # claimed first, so that an error that the stop causes has no effect
        self._end(running, OutcomeKind.INTERRUPTED)
        self._decisions.append(StopHandlers(running, also_batches=True))
