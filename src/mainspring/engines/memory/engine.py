"""The engine that keeps jobs in memory: for tests, for trying out, and as the plainest reading of the protocol.

What is in it dies with the process. Everything happens under one lock, on records that are replaced, not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

from mainspring.clock import Clock, SystemClock
from mainspring.engines.memory.arranging import Arrangements
from mainspring.engines.memory.commands import Commands
from mainspring.engines.memory.explaining import situation_of
from mainspring.engines.memory.intake import Intake
from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.journal import Journal
from mainspring.engines.memory.pruning import prune
from mainspring.engines.memory.reading import count, page_of
from mainspring.engines.memory.schedules import Firings, Schedules
from mainspring.engines.memory.settling import Settling
from mainspring.engines.memory.taking import Taking
from mainspring.engines.memory.workers import Rescue, Workers
from mainspring.errors import EngineUnavailable
from mainspring.jobs.engine import (
    MAX_CRASHES,
    Arrangement,
    Backlog,
    Capability,
    Changed,
    Command,
    Conflict,
    Demand,
    EventPage,
    Fired,
    Firing,
    Lease,
    NewJob,
    Occurrence,
    Outcome,
    Page,
    ProgressReport,
    Pruned,
    PutLimit,
    Query,
    Retention,
    ScheduleRecord,
    Situation,
    Swept,
    Taken,
    WorkerInfo,
    WorkerState,
)
from mainspring.jobs.instants import to_instant
from mainspring.jobs.status import JobStatus


class MemoryEngine:
    """Jobs in this process."""

    start_lead = 10_000
    capabilities = frozenset(
        {
            Capability.ATOMIC_UNIT,
            Capability.ATOMIC_BATCH,
            Capability.VIRTUAL_TIME,
            Capability.EXACT_ORDER,
            Capability.FORESIGHT,
        }
    )
    description = "memory of this process (jobs are lost when it ends)"

    def __init__(self, *, clock: Clock | None = None, max_crashes: int = MAX_CRASHES) -> None:
        self._clock = clock or SystemClock()
        self._max_crashes = max_crashes
        self._lock = RLock()  # guards everything below
        self._jobs = Jobs()
        self._journal = Journal()
        self._schedules = Schedules()
        self._workers = Workers(self._clock, self._jobs)
        self._intake = Intake(self._jobs, self._journal)
        self._commands = Commands(self._jobs, self._intake, self._journal)
        self._arrangements = Arrangements(self._jobs, self._schedules)
        self._taking = Taking(self._jobs, self._journal)
        self._settling = Settling(self._jobs, self._intake, self._journal)
        self._firings = Firings(self._schedules, self._jobs, self._intake, self._commands, self._journal)
        self._wake: Callable[[], None] = lambda: None
        self._depth = 0  # units inside of units

    @property
    def is_followed(self) -> bool:
        return self._journal.is_followed(self.now())

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
            must_wake = self._jobs.must_wake and not self._depth
            self._jobs.must_wake &= not must_wake
        if must_wake:
            self._wake()

    # -- submitters

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        with self.unit(durable=True):
            now = self.now()
            return [self._intake.add(job, now) for job in jobs]

    def change(self, commands: Sequence[Command]) -> list[Changed]:
        with self.unit(durable=True):
            self._jobs.must_wake = True
            now = self.now()
            return [self._commands.carry_out(command, now) for command in commands]

    def arrange(self, arrangements: Sequence[Arrangement]) -> list[bool]:
        with self.unit(durable=True):
            self._jobs.must_wake = True
            now = self.now()
            return [self._arrangements.carry_out(arrangement, now) for arrangement in arrangements]

    # -- workers

    def enroll(self, worker: WorkerInfo) -> int:
        with self.unit(durable=True):
            return self._workers.enroll(worker, self.now())

    def renew(self, worker: int) -> bool:
        with self.unit(durable=False):
            return self._workers.renew(worker, self.now())

    def announce(self, worker: int, types: tuple[str, ...]) -> bool:
        with self.unit(durable=False):
            return self._workers.announce(worker, types)

    def leave(self, worker: int) -> None:
        with self.unit(durable=False):
            self._workers.leave(worker)

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        leases: list[Lease] = []
        dues: list[int] = []
        is_more = False
        with self.unit(durable=False):
            if not self._workers.is_enrolled(worker):
                return Taken([], None, is_more=False, stops=[], is_alive=False)
            now = self.now()
            self._taking.refresh(now)
            for demand in demands:
                started = self._taking.start_due(worker, demand, now, now + start_lead)
                is_full = len(started) >= demand.starts
                is_more |= is_full and self._taking.is_more(demand, now, now + start_lead)
                leases += started
                leases += self._taking.hold_ahead(worker, demand, now + start_lead, now + lead)
                next_due = self._jobs.backlog.claims.next_due(demand, now + start_lead)
                if next_due is not None:
                    dues.append(next_due)
            return Taken(
                leases,
                min(dues, default=None),
                is_more,
                stops=[job_id for job_id in self._jobs.stops if self._jobs.records[job_id].owner == worker],
                next_look=self._taking.next_look(),
                next_firing=self._schedules.next_firing(),
            )

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        with self.unit(durable=False):
            now = self.now()
            answers = []
            for lease in leases:
                job = self._jobs.leased(lease, worker, JobStatus.PENDING)
                answers.append(job is not None)
                if job is not None:
                    self._taking.start(job, now)
            return answers

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        with self.unit(durable=True):
            return self._settling.settle(worker, outcomes, self.now())

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        with self.unit(durable=False):
            now = self.now()
            return [self._settling.report(worker, report, now) for report in reports]

    def sweep(self, worker: int) -> Swept:
        with self.unit(durable=True):
            now = self.now()
            rescue = Rescue(self._jobs, self._journal, self._max_crashes)
            dead = self._workers.find_dead(worker)
            for job in self._jobs.of(dead):
                rescue.take(job, now)
            for number in dead:
                self._workers.bury(number)
            return Swept(rescue.rescued, rescue.quarantined, self._taking.waiting(now))

    def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        with self.unit(durable=True):
            now = self.now()
            return [self._firings.fire(firing, now) for firing in firings]

    def prune(self, retention: Retention) -> Pruned:
        with self.unit(durable=True):
            return prune(self._jobs, self._settling.results, retention, self.now())

    # -- readers

    def find(self, query: Query) -> Page:
        with self._lock:
            return page_of(self._jobs, query)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        with self._lock:
            return count(self._jobs.records.values(), Query(queue=queue, type=type))

    def queues(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted({job.queue for job in self._jobs.records.values()}))

    def situation(self, job_id: str) -> Situation | None:
        with self._lock:
            job = self._jobs.records.get(job_id)
            return None if job is None else situation_of(job, self._jobs, self.now())

    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        with self._lock:
            return self._schedules.find(names, due_until, limit)

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        with self._lock:
            return self._schedules.occurrences(schedule, limit)

    def paused_queues(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._jobs.backlog.claims.paused))

    def limits(self) -> list[PutLimit]:
        with self._lock:
            return self._jobs.buckets.definitions()

    def workers(self) -> list[WorkerState]:
        with self._lock:
            return self._workers.all()

    def backlog(self) -> list[Backlog]:
        with self._lock:
            return self._taking.backlog(self.now())

    def listen(self, until: int) -> str:
        with self._lock:
            return self._journal.listen(until)

    def events(self, after: str, limit: int) -> EventPage:
        with self._lock:
            return self._journal.read(after, limit)

    def backup(self, path: str) -> None:
        raise EngineUnavailable(
            engine=self.description, reason="memory cannot be backed up", remedy="use a sqlite:/// store"
        )
