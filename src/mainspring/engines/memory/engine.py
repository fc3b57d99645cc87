"""The engine that keeps jobs in memory: for tests, for trying out, and as the plainest reading of the protocol.

What is in it dies with the process. Everything happens under one lock, on records that are replaced, not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import RLock

from msgspec.structs import replace

from mainspring.clock import Clock, SystemClock
from mainspring.engines.memory.claims import Claims
from mainspring.engines.memory.reading import count, page_of, to_place
from mainspring.engines.memory.records import lease_of, new_record
from mainspring.errors import EngineUnavailable
from mainspring.jobs.engine import (
    FRESH,
    HEAD_START,
    MAX_CRASHES,
    STATUS_AFTER,
    Attempt,
    Cancel,
    Capability,
    Cause,
    Changed,
    Command,
    Delete,
    Demand,
    Edit,
    FreshShare,
    JobRecord,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    Page,
    Query,
    Reopen,
    Replay,
    Swept,
    Taken,
    WorkerInfo,
)
from mainspring.jobs.instants import to_instant
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.jobs.vigil import Vigil


class MemoryEngine:
    """Jobs in this process."""

    start_lead = 10_000
    capabilities = frozenset({Capability.ATOMIC_UNIT, Capability.ATOMIC_BATCH, Capability.VIRTUAL_TIME})
    description = "memory of this process (jobs are lost when it ends)"

    def __init__(self, *, clock: Clock | None = None, max_crashes: int = MAX_CRASHES) -> None:
        self._clock = clock or SystemClock()
        self._max_crashes = max_crashes
        self._lock = RLock()  # guards everything below
        self._jobs: dict[str, JobRecord] = {}
        self._places: dict[str, int] = {}  # order of submission
        self._by_place: dict[int, str] = {}
        self._last_place = 0
        self._claims = Claims()
        self._fresh = FreshShare()
        self._vigil = Vigil(self._clock)
        self._owned: set[str] = set()
        self._stops: set[str] = set()
        self._heartbeats: dict[int, int] = {}
        self._last_worker = 0
        self._wake: Callable[[], None] = lambda: None
        self._must_wake = False
        self._depth = 0  # units inside of units

    def now(self) -> int:
        return to_instant(self._clock.now(), "now")

    def open(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def close(self) -> None:
        """Keep everything: an application may be opened again."""

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        """Hold the lock. Verbs check before they change, so there is nothing to roll back."""
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            must_wake = self._must_wake and not self._depth
            self._must_wake &= not must_wake
        if must_wake:
            self._wake()

    # -- submitters

    def submit(self, jobs: Sequence[NewJob]) -> list[str | None]:
        with self.unit(durable=True):
            return [self._add(job) for job in jobs]

    def _add(self, job: NewJob) -> str | None:
        if job.id in self._jobs:
            return job.id
        self._last_place += 1
        self._places[job.id] = self._last_place
        self._by_place[self._last_place] = job.id
        self._put(new_record(job, self.now()))
        return None

    def _put(self, job: JobRecord) -> None:
        """Keep a job, and keep what is known about it elsewhere in step."""
        self._jobs[job.id] = job
        self._claims.withdraw(job.id)
        if job.status is JobStatus.PENDING and job.owner is None:
            self._claims.add(job, self._places[job.id])
            self._must_wake = True
        if job.owner is None:
            self._owned.discard(job.id)
        else:
            self._owned.add(job.id)
        if job.stop_requested:
            self._stops.add(job.id)
        else:
            self._stops.discard(job.id)

    def change(self, commands: Sequence[Command]) -> list[Changed]:
        with self.unit(durable=True):
            self._must_wake = True
            return [self._carry_out(command) for command in commands]

    def _carry_out(self, command: Command) -> Changed:
        job = self._jobs.get(command.id)
        if job is None:
            return Changed(False, None)
        match command:
            case Cancel():
                return self._cancel(job)
            case Reopen() | Replay() if job.status is JobStatus.FAILED and job.replayed_as is not None:
                return Changed(False, job.status, job.replayed_as)  # its work goes on elsewhere
            case Reopen() if job.status is JobStatus.FAILED:
                self._put(
                    replace(
                        job,
                        status=JobStatus.PENDING,
                        due=command.due,
                        finished=None,
                        error=None,
                        failures=0,
                        timeouts=0,
                        crashes=0,
                    )
                )
            case Replay() if job.status is JobStatus.FAILED:
                self._replay(job, command)
            case Edit() if job.status is JobStatus.FAILED:
                self._jobs[job.id] = replace(job, payload=command.payload, codec=command.codec)
            case Delete() if job.status in FINAL and command.status in (None, job.status):
                del self._jobs[job.id]
                del self._by_place[self._places.pop(job.id)]
            case _:
                return Changed(False, job.status)
        return Changed(True, job.status)

    def _cancel(self, job: JobRecord) -> Changed:
        if job.status is JobStatus.PENDING:
            finished = {"finished": self.now(), "error": "canceled before it started"}
            self._put(replace(job, status=JobStatus.CANCELED, owner=None, **finished))
        elif job.status is JobStatus.RUNNING:
            self._put(replace(job, stop_requested=True))
        return Changed(job.status is JobStatus.PENDING, job.status)

    def _replay(self, job: JobRecord, command: Replay) -> None:
        self._add(
            NewJob(
                id=command.new_id,
                type=job.type,
                queue=job.queue,
                priority=job.priority,
                due=command.due,
                payload=command.payload or job.payload,
                codec=command.codec or job.codec,
                origin=job.id,
            )
        )
        self._jobs[job.id] = replace(job, replayed_as=command.new_id)

    # -- workers

    def enroll(self, worker: WorkerInfo) -> int:
        with self.unit(durable=True):
            self._last_worker += 1
            self._heartbeats[self._last_worker] = self.now()
            return self._last_worker

    def renew(self, worker: int) -> bool:
        with self.unit(durable=False):
            if worker not in self._heartbeats:
                return False
            self._heartbeats[worker] = self.now()
            return True

    def leave(self, worker: int) -> None:
        with self.unit(durable=False):
            for job in self._jobs_of({worker}):
                if job.status is JobStatus.PENDING:
                    self._put(replace(job, owner=None))
            if self._jobs_of({worker}):  # it left jobs behind: dead from now on
                self._heartbeats[worker] = 0
            else:
                self._heartbeats.pop(worker, None)

    def _jobs_of(self, workers: set[int]) -> list[JobRecord]:
        return [job for job in (self._jobs[job_id] for job_id in self._owned) if job.owner in workers]

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        now = self.now()
        leases: list[Lease] = []
        dues: list[int] = []
        is_more = False
        with self.unit(durable=False):
            if worker not in self._heartbeats:
                return Taken([], None, is_more=False, stops=[], is_alive=False)
            for demand in demands:
                due = self._pick_due(demand, now, now + start_lead)
                if demand.suspects:
                    due += self._claims.pick(demand, 1, -inf, now + start_lead, suspects=True)
                    due = sorted(due, key=self._rank)[: demand.starts]
                is_more |= len(due) >= demand.starts
                leases += [self._lease(job_id, worker, is_started=True) for job_id in due]
                ahead = self._claims.pick(demand, demand.ahead, now + start_lead, now + lead)
                leases += [self._lease(job_id, worker, is_started=False) for job_id in ahead]
                next_due = self._claims.next_due(demand, now + start_lead)
                if next_due is not None:
                    dues.append(next_due)
            stops = [job_id for job_id in self._stops if self._jobs[job_id].owner == worker]
        return Taken(leases, min(dues, default=None), is_more, stops)

    def _pick_due(self, demand: Demand, now: int, until: int) -> list[str]:
        due = self._claims.pick(demand, demand.starts, -inf, until)
        oldest = self._jobs[due[0]].due if due and len(due) == demand.starts else now
        share = self._fresh.share(demand.starts, oldest, now)
        fresh = self._claims.pick(demand, share, now - FRESH, until)
        return [job_id for job_id in due if job_id not in fresh][: demand.starts - len(fresh)] + fresh

    def _rank(self, job_id: str) -> tuple[int, int]:
        job = self._jobs[job_id]
        return job.due - HEAD_START * job.priority, self._places[job_id]

    def _lease(self, job_id: str, worker: int, *, is_started: bool) -> Lease:
        job = self._jobs[job_id]
        taken = replace(job, owner=worker, token=job.token + 1)
        self._put(self._started(taken) if is_started else taken)
        return lease_of(taken, self._places[job_id], is_started=is_started)

    def _started(self, job: JobRecord) -> JobRecord:
        return replace(job, status=JobStatus.RUNNING, starts=job.starts + 1, started=max(self.now(), job.due))

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        with self.unit(durable=False):
            answers = []
            for lease in leases:
                job = self._leased(lease, worker, JobStatus.PENDING)
                answers.append(job is not None)
                if job is not None:
                    self._put(self._started(job))
            return answers

    def _leased(self, lease: Lease, worker: int, status: JobStatus) -> JobRecord | None:
        job = self._jobs.get(lease.id)
        is_current = job is not None and (job.token, job.owner, job.status) == (lease.token, worker, status)
        return job if is_current else None

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        with self.unit(durable=True):
            return [self._settle(worker, outcome) for outcome in outcomes]

    def _settle(self, worker: int, outcome: Outcome) -> bool:
        is_handed_back = outcome.kind is OutcomeKind.HANDED_BACK
        is_held = is_handed_back and not outcome.lease.is_started
        job = self._leased(outcome.lease, worker, JobStatus.PENDING if is_held else JobStatus.RUNNING)
        if job is None:
            return False
        is_taken_back = is_handed_back and not is_held
        is_interrupted = outcome.kind is OutcomeKind.INTERRUPTED
        status = STATUS_AFTER[outcome.kind]
        if status is JobStatus.PENDING and job.stop_requested:
            status = JobStatus.CANCELED
        is_completed = status is JobStatus.COMPLETED
        self._put(
            replace(
                job,
                status=status,
                finished=None if status is JobStatus.PENDING else self.now(),
                owner=None,
                stop_requested=False,
                due=job.due if outcome.due is None else outcome.due,
                started=None if is_taken_back and job.starts == 1 else outcome.began or job.started,
                result=outcome.result if is_completed else job.result,
                error=None if is_completed else outcome.error or job.error,
                failures=job.failures + (outcome.cause is Cause.FAILURE),
                timeouts=job.timeouts + (outcome.cause is Cause.TIMEOUT),
                interruptions=job.interruptions + is_interrupted,
                starts=job.starts - is_taken_back,
                history=job.history + self._attempts(job, outcome),
            )
        )
        return True

    def _attempts(self, job: JobRecord, outcome: Outcome) -> tuple[Attempt, ...]:
        cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
        if cause is None:
            return ()
        error = outcome.error or "interrupted by a shutdown"
        return (Attempt(job.starts, outcome.began or job.started, self.now(), cause.value, error),)

    def sweep(self, worker: int) -> Swept:
        now = self.now()
        rescued: list[str] = []
        quarantined: list[str] = []
        with self.unit(durable=True):
            others = {number: beat for number, beat in self._heartbeats.items() if number != worker}
            dead = set(self._vigil.find_silent(others))
            for job in self._jobs_of(dead):
                self._rescue(job, rescued, quarantined)
            for number in dead:
                del self._heartbeats[number]
            waiting = self._claims.waiting_types(now)
        return Swept(rescued, quarantined, waiting)

    def _rescue(self, job: JobRecord, rescued: list[str], quarantined: list[str]) -> None:
        if job.status is JobStatus.PENDING:
            self._put(replace(job, owner=None))
            return
        crashes = job.crashes + 1
        error = job.error
        if job.stop_requested:
            status = JobStatus.CANCELED
        elif crashes >= self._max_crashes:
            status = JobStatus.FAILED
            error = f"quarantined: {crashes} workers died while they ran it"
            quarantined.append(job.id)
        else:
            status = JobStatus.PENDING
            rescued.append(job.id)
        self._put(
            replace(
                job,
                status=status,
                finished=None if status is JobStatus.PENDING else self.now(),
                error=error,
                crashes=crashes,
                owner=None,
                stop_requested=False,
                history=(
                    *job.history,
                    Attempt(job.starts, job.started, self.now(), Cause.CRASH, f"its worker {job.owner} died"),
                ),
            )
        )

    # -- readers

    def find(self, query: Query) -> Page:
        with self._lock:
            if query.ids is None:
                start = 0 if query.after is None else to_place(query.after)
                places = [place for place in self._by_place if place > start]
            else:
                places = sorted(self._places[job_id] for job_id in query.ids if job_id in self._places)
            return page_of([(place, self._jobs[self._by_place[place]]) for place in places], query)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        with self._lock:
            return count(self._jobs.values(), Query(queue=queue, type=type))

    def backup(self, path: str) -> None:
        raise EngineUnavailable(
            engine=self.description, reason="memory cannot be backed up", remedy="use a sqlite:/// store"
        )
