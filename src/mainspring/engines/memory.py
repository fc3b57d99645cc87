"""The engine that keeps jobs in memory: for tests, for trying out, and as the plainest reading of the protocol.

What is in it dies with the process. Everything happens under one lock, on records that are replaced, not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from threading import RLock

from msgspec.structs import replace

from mainspring.clock import Clock, SystemClock
from mainspring.errors import EngineUnavailable
from mainspring.jobs.engine import (
    Attempt,
    Cancel,
    Capability,
    Cause,
    Changed,
    Command,
    Delete,
    Demand,
    Edit,
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
from mainspring.jobs.instants import MICROSECONDS, to_instant
from mainspring.jobs.status import FINAL, JobStatus

STALE_SECONDS = 45
MAX_CRASHES = 3
HEAD_START = 30 * MICROSECONDS

STATUS_AFTER = {
    OutcomeKind.COMPLETED: JobStatus.COMPLETED,
    OutcomeKind.FAILED: JobStatus.FAILED,
    OutcomeKind.CANCELED: JobStatus.CANCELED,
    OutcomeKind.RETRY: JobStatus.PENDING,
    OutcomeKind.SNOOZED: JobStatus.PENDING,
    OutcomeKind.INTERRUPTED: JobStatus.PENDING,
    OutcomeKind.HANDED_BACK: JobStatus.PENDING,
}


class MemoryEngine:
    """Jobs in this process."""

    capabilities = frozenset({Capability.ATOMIC_BATCH, Capability.VIRTUAL_TIME})
    description = "memory of this process (jobs are lost when it ends)"

    def __init__(self, *, clock: Clock | None = None, max_crashes: int = MAX_CRASHES) -> None:
        self._clock = clock or SystemClock()
        self._max_crashes = max_crashes
        self._lock = RLock()  # guards everything below
        self._jobs: dict[str, JobRecord] = {}
        self._places: dict[str, int] = {}  # order of submission
        self._by_place: dict[int, str] = {}
        self._last_place = 0
        self._claimable: dict[str, list[tuple[int, int, str]]] = {}  # a heap of (due, place, id) for each type
        self._heartbeats: dict[int, int] = {}
        self._last_worker = 0
        self._wake: Callable[[], None] = lambda: None
        self._must_wake = False

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
            yield
            must_wake, self._must_wake = self._must_wake, False
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
        self._put(
            JobRecord(
                id=job.id,
                type=job.type,
                queue=job.queue,
                priority=job.priority,
                status=JobStatus.PENDING,
                due=job.due,
                created=self.now(),
                payload=job.payload,
                codec=job.codec,
                token=0,
                owner=None,
                starts=0,
                failures=0,
                timeouts=0,
                crashes=0,
                interruptions=0,
                started=None,
                finished=None,
                result=None,
                error=None,
                stop_requested=False,
                origin=job.origin,
                replayed_as=None,
                history=(),
            )
        )
        return None

    def _put(self, job: JobRecord) -> None:
        self._jobs[job.id] = job
        if job.status is JobStatus.PENDING and job.owner is None:
            heappush(self._claimable.setdefault(job.type, []), (job.due, self._places[job.id], job.id))
            self._must_wake = True

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
                if job.replayed_as is not None:
                    return Changed(False, job.status, job.replayed_as)
                self._replay(job, command)
            case Edit() if job.status is JobStatus.FAILED:
                self._jobs[job.id] = replace(job, payload=command.payload, codec=command.codec)
            case Delete() if job.status in FINAL:
                del self._jobs[job.id]
                del self._by_place[self._places.pop(job.id)]
            case _:
                return Changed(False, job.status)
        return Changed(True, job.status)

    def _cancel(self, job: JobRecord) -> Changed:
        if job.status is JobStatus.PENDING:
            self._jobs[job.id] = replace(
                job,
                status=JobStatus.CANCELED,
                finished=self.now(),
                owner=None,
                error="canceled before it started",
            )
        elif job.status is JobStatus.RUNNING:
            self._jobs[job.id] = replace(job, stop_requested=True)
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
            for job in list(self._jobs.values()):
                if job.owner == worker and job.status is JobStatus.PENDING:
                    self._put(replace(job, owner=None))
            if not any(job.owner == worker for job in self._jobs.values()):
                self._heartbeats.pop(worker, None)
            else:  # it left jobs behind: dead from now on
                self._heartbeats[worker] = 0

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        now = self.now()
        leases: list[Lease] = []
        dues: list[int] = []
        is_more = False
        with self.unit(durable=False):
            for demand in demands:
                ready = [job for job in self._claimable_until(demand.types, now + lead) if _fits(job, demand)]
                due = self._choose_due(ready, demand, now + start_lead)
                is_more |= len(due) >= demand.starts
                leases += [self._lease(job, worker, is_started=True) for job in due]
                ahead = [job for job in ready if job.due > now + start_lead and not job.crashes]
                ahead.sort(key=self._rank)
                leases += [self._lease(job, worker, is_started=False) for job in ahead[: max(0, demand.ahead)]]
                dues += self._dues_after(demand, now + lead)
            stops = [job.id for job in self._jobs.values() if job.owner == worker and job.stop_requested]
        return Taken(leases, min(dues, default=None), is_more, stops)

    def _claimable_until(self, types: Sequence[str], until: int) -> list[JobRecord]:
        """Return what can be claimed and is due until then; what the heaps hold in vain is dropped."""
        found = []
        for kind in types:
            heap = self._claimable.get(kind, [])
            kept = []
            while heap and heap[0][0] <= until:
                entry = heappop(heap)
                job = self._jobs.get(entry[2])
                if job is not None and self._is_entry_of(entry, job) and entry not in kept[-1:]:
                    kept.append(entry)
                    found.append(job)
            for entry in kept:
                heappush(heap, entry)
        return found

    def _is_entry_of(self, entry: tuple[int, int, str], job: JobRecord) -> bool:
        is_claimable = job.status is JobStatus.PENDING and job.owner is None
        return is_claimable and entry[:2] == (job.due, self._places[job.id])

    def _choose_due(self, ready: list[JobRecord], demand: Demand, until: int) -> list[JobRecord]:
        due = sorted((job for job in ready if job.due <= until), key=self._rank)
        chosen = [job for job in due if not job.crashes][: max(0, demand.starts)]
        if demand.suspects and len(chosen) < demand.starts:
            chosen += [job for job in due if job.crashes][:1]
        return chosen

    def _rank(self, job: JobRecord) -> tuple[int, int]:
        return job.due - HEAD_START * job.priority, self._places[job.id]

    def _dues_after(self, demand: Demand, instant: int) -> list[int]:
        dues = []
        for kind in demand.types:
            for entry in self._claimable.get(kind, [])[:1]:
                if entry[0] > instant:
                    dues.append(entry[0])
                else:  # jobs of other queues stand before it: look at all
                    dues += [due for due, _, _ in self._claimable[kind] if due > instant]
        return dues

    def _lease(self, job: JobRecord, worker: int, *, is_started: bool) -> Lease:
        token = job.token + 1
        taken = replace(job, owner=worker, token=token)
        if is_started:
            taken = self._started(taken)
        self._jobs[job.id] = taken
        return Lease(
            self._places[job.id],
            job.id,
            job.type,
            job.queue,
            job.due,
            job.payload,
            job.codec,
            token,
            is_started,
            job.failures,
            job.timeouts,
            job.crashes,
            job.interruptions,
            job.priority,
        )

    def _started(self, job: JobRecord) -> JobRecord:
        return replace(job, status=JobStatus.RUNNING, starts=job.starts + 1, started=self.now())

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        with self.unit(durable=False):
            answers = []
            for lease in leases:
                job = self._leased(lease, worker, JobStatus.PENDING)
                answers.append(job is not None)
                if job is not None:
                    self._jobs[job.id] = self._started(job)
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
                result=outcome.result if is_completed else job.result,
                error=None if is_completed else outcome.error or job.error,
                failures=job.failures + (outcome.cause is Cause.FAILURE),
                timeouts=job.timeouts + (outcome.cause is Cause.TIMEOUT),
                interruptions=job.interruptions + is_interrupted,
                starts=job.starts - (is_handed_back and not is_held),
                history=job.history + self._attempts(job, outcome),
            )
        )
        return True

    def _attempts(self, job: JobRecord, outcome: Outcome) -> tuple[Attempt, ...]:
        cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
        if cause is None:
            return ()
        error = outcome.error or "interrupted by a shutdown"
        return (Attempt(job.starts, job.started, self.now(), cause.value, error),)

    def sweep(self, worker: int) -> Swept:
        now = self.now()
        rescued: list[str] = []
        quarantined: list[str] = []
        with self.unit(durable=True):
            stale = now - STALE_SECONDS * MICROSECONDS
            dead = {number for number, beat in self._heartbeats.items() if number != worker and beat < stale}
            for job in [job for job in self._jobs.values() if job.owner in dead]:
                self._rescue(job, rescued, quarantined)
            for number in dead:
                del self._heartbeats[number]
            waiting = tuple(
                kind for kind in self._claimable if any(not j.crashes for j in self._claimable_until((kind,), now))
            )
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
                places = [place for place in self._by_place if query.after is None or place > query.after]
            else:
                places = sorted(self._places[job_id] for job_id in query.ids if job_id in self._places)
            found: list[tuple[int, JobRecord]] = []
            for place in places:
                job = self._jobs[self._by_place[place]]
                if _matches(job, query):
                    found.append((place, job))
                if query.ids is None and len(found) > query.limit:
                    return Page([job for _, job in found[:-1]], found[-2][0])
        return Page([job for _, job in found], None)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        counts = dict.fromkeys(JobStatus, 0)
        with self._lock:
            for job in self._jobs.values():
                if queue in (None, job.queue) and type in (None, job.type):
                    counts[job.status] += 1
        return counts

    def backup(self, path: str) -> None:
        raise EngineUnavailable(
            engine=self.description, reason="memory cannot be backed up", remedy="use a sqlite:/// store"
        )


def _fits(job: JobRecord, demand: Demand) -> bool:
    return demand.queues is None or job.queue in demand.queues


def _matches(job: JobRecord, query: Query) -> bool:
    is_wanted = query.status in (None, job.status) and query.queue in (None, job.queue)
    is_replayed = job.replayed_as is not None
    return is_wanted and query.type in (None, job.type) and query.is_replayed in (None, is_replayed)
