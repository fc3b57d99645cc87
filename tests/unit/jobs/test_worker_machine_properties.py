"""Any order of events: the worker's state machine loses no lease, starts none twice, and comes to rest."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from mainspring.jobs.engine import Demand, Taken
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.records import Lease, Outcome, OutcomeKind
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.worker import machine as m
from mainspring.jobs.worker.lease_table import LeasedJob, LeaseTable
from tests.support import amount
from tests.unit.jobs.leases import make_lease

pytestmark = pytest.mark.long

MILLISECOND = 1_000
SECOND = 1_000 * MILLISECOND
START_LEAD = 10 * MILLISECOND
BEGIN = 1_800_000_000 * SECOND
HANDLERS = {"ping": 3, "pong": 2}  # how many run at once
MOST_STEPS = 2_000
JUMPS = [-3_600 * SECOND, -SECOND, SECOND, 3_600 * SECOND]
RARELY = st.sampled_from([False] * 5 + [True])


@dataclass
class StoredJob:
    """A job as the engine knows it."""

    number: int
    type: str
    due: int
    crashes: int
    token: int = 0
    worker: int | None = None  # that has the lease
    is_started: bool = False
    is_over: bool = False

    def lease(self) -> Lease:
        lease = replace(make_lease(crashes=self.crashes), ref=self.number, id=f"job-{self.number}", type=self.type)
        return replace(lease, due=self.due, token=self.token, is_started=self.is_started)


@dataclass
class Store:
    """A naive engine."""

    jobs: list[StoredJob] = field(default_factory=list)
    workers: set[int] = field(default_factory=set)
    numbers: int = 0

    def enroll(self) -> int:
        self.numbers += 1
        self.workers.add(self.numbers)
        return self.numbers

    def declare_dead(self, worker: int) -> None:
        """Declare a worker dead, and take its leases back."""
        self.workers.discard(worker)
        for job in self.jobs:
            if job.worker == worker:
                job.worker, job.is_started = None, False

    def take(self, worker: int, demands: list[Demand], now: int) -> Taken:
        if worker not in self.workers:
            return Taken([], None, is_more=False, stops=[], is_alive=False)
        leases: list[Lease] = []
        is_more = False
        for demand in demands:
            due = self._available(demand, now + START_LEAD)
            suspects = demand.suspects and not any(lease.crashes for lease in leases)
            chosen = self._without_more_than_one_suspect(due, suspects=suspects)[: demand.starts]
            is_more |= len(chosen) < len(due)
            leases += [self._lease(job, worker, is_started=True) for job in chosen]
            ahead = self._available(demand, now + m.LEAD) if not due else []
            ahead = [job for job in ahead if job.due > now + START_LEAD and not job.crashes]
            leases += [self._lease(job, worker, is_started=False) for job in ahead[: demand.ahead]]
        later = [job.due for job in self.jobs if self._is_available(job) and job.due > now + START_LEAD]
        return Taken(leases, min(later, default=None), is_more=is_more, stops=[])

    def _available(self, demand: Demand, until: int) -> list[StoredJob]:
        found = [job for job in self.jobs if self._is_available(job) and job.type in demand.types]
        return sorted((job for job in found if job.due <= until), key=lambda job: job.due)

    def _is_available(self, job: StoredJob) -> bool:
        return job.worker is None and not job.is_over

    def _without_more_than_one_suspect(self, jobs: list[StoredJob], *, suspects: bool) -> list[StoredJob]:
        chosen = [job for job in jobs if job.crashes][: 1 if suspects else 0]
        return [job for job in jobs if not job.crashes or job in chosen]

    def _lease(self, job: StoredJob, worker: int, *, is_started: bool) -> Lease:
        job.worker, job.is_started = worker, is_started
        job.token += 1
        return job.lease()

    def holds(self, lease: Lease) -> StoredJob | None:
        """Return the job whose current lease this is."""
        job = self.jobs[lease.ref]  # type: ignore[call-overload]
        return job if job.token == lease.token and job.worker is not None and not job.is_over else None

    def start(self, leases: list[Lease]) -> list[bool]:
        found = [self.holds(lease) for lease in leases]
        for job in found:
            if job is not None:
                job.is_started = True
        return [job is not None for job in found]

    def settle(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            job = self.holds(outcome.lease)
            if job is not None:
                job.worker, job.is_started = None, False
                job.is_over = outcome.kind is OutcomeKind.COMPLETED


class WorkerStory(RuleBasedStateMachine):
    """Plays the driver, the executors, the engine and the clocks, in any order."""

    def __init__(self) -> None:
        super().__init__()
        registry = HandlerRegistry()
        registry.add(Handler("ping", lambda: None, HandlerOptions(), JsonSerializer()))
        registry.add(Handler("pong", _pong, HandlerOptions(), JsonSerializer()))
        self.table = LeaseTable(
            registry,
            lambda *_report: None,
            threads=HANDLERS["ping"],
            coroutines=HANDLERS["pong"],
            processes=1,
            queues=None,
        )
        self.machine = m.WorkerMachine(self.table)
        self.store = Store()
        self.engine_time = BEGIN
        self.monotonic = 0
        self.fetch: m.Fetch | None = None
        self.commit: m.CommitStarts | None = None
        self.is_enrolling = False
        self.ready: list[LeasedJob] = []
        self.running: list[LeasedJob] = []
        self.outcomes: list[Outcome] = []  # on their way to the store
        self.started: set[tuple[Any, int]] = set()  # by ref and token
        self.ended: set[tuple[Any, int]] = set()

    # -- the driver

    def report(self, event: Callable[..., None], *arguments: Any) -> None:
        now = m.ClockReading(self.engine_time, self.monotonic, START_LEAD)
        event(now, *arguments)
        self.machine.time_passed(now)
        for decision in self.machine.take_decisions():
            self.perform(decision)

    def perform(self, decision: m.Decision) -> None:
        match decision:
            case m.Fetch():
                assert self.fetch is None, "one fetch is in flight at a time"
                self.fetch = decision
            case m.CommitStarts():
                assert self.commit is None, "one commit of starts is in flight at a time"
                self.commit = decision
            case m.Run(jobs):
                for job in jobs:
                    assert job.lease.is_started, "a handler runs only after the store has accepted its start"
                    assert job.lease.due <= self.engine_time, "no job runs before it is due"
                self.ready += jobs
            case m.EndLeases(jobs, kind):
                self.end([Outcome(job.lease, kind) for job in jobs])
            case m.Enroll():
                assert not self.is_enrolling
                self.is_enrolling = True
            case m.Leave(worker):
                self.store.declare_dead(worker)
            case m.AnnounceShutdown() | m.StopHandlers() | m.ExpectFiring():
                pass

    def end(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            key = (outcome.lease.ref, outcome.lease.token)
            assert key not in self.ended, "a lease ends once"
            self.ended.add(key)
        self.outcomes += outcomes

    # -- events

    @initialize()
    def enroll(self) -> None:
        self.report(self.machine.enrolled, self.store.enroll())

    @rule(
        types=st.lists(st.sampled_from(sorted(HANDLERS)), min_size=1, max_size=8),
        delay=st.sampled_from([-SECOND, 0, START_LEAD // 2, SECOND // 2, SECOND // 2 + START_LEAD, 3 * SECOND]),
        is_suspect=st.booleans(),
    )
    def submit(self, types: list[str], delay: int, *, is_suspect: bool) -> None:
        due, crashes = self.engine_time + delay, 2 if is_suspect else 0
        for type_ in types:
            self.store.jobs.append(StoredJob(len(self.store.jobs), type_, due, crashes))
        self.report(self.machine.woken)

    @precondition(lambda self: self.fetch is not None)
    @rule(fails=RARELY)
    def answer_fetch(self, *, fails: bool = False) -> None:
        fetch, self.fetch = self.fetch, None
        assert fetch is not None
        if fails:
            self.report(self.machine.fetch_failed, OSError("the store is gone"))
        else:
            taken = self.store.take(fetch.worker, fetch.demands, self.engine_time)
            self.report(self.machine.fetched, fetch.worker, taken)

    @precondition(lambda self: self.commit is not None)
    @rule(fails=RARELY, is_stored=st.booleans())
    def answer_starts(self, *, fails: bool = False, is_stored: bool = True) -> None:
        commit, self.commit = self.commit, None
        assert commit is not None
        leases = [job.lease for job in commit.jobs]
        answers = self.store.start(leases) if is_stored or not fails else []
        if fails:
            self.report(self.machine.starts_failed, commit.jobs, OSError("the store is gone"))
        else:
            self.report(self.machine.starts_answered, commit.jobs, answers)

    @precondition(lambda self: self.ready)
    @rule(place=st.integers(0, 20))
    def start_handler(self, place: int = 0) -> None:
        job = self.ready.pop(place % len(self.ready))
        if job.claim_start():
            key = (job.lease.ref, job.lease.token)
            assert key not in self.started, "a lease starts once"
            assert key not in self.ended, "a job that was handed back does not start"
            self.started.add(key)
            self.running.append(job)

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 20))
    def end_handler(self, place: int = 0) -> None:
        job = self.running.pop(place % len(self.running))
        if job.claim_end():
            self.end([Outcome(job.lease, OutcomeKind.COMPLETED)])

    @precondition(lambda self: self.outcomes)
    @rule()
    def answer_outcomes(self) -> None:
        outcomes, self.outcomes = self.outcomes, []
        self.store.settle(outcomes)
        self.report(self.machine.settled, outcomes)
        if any(outcome.kind is not OutcomeKind.COMPLETED for outcome in outcomes):
            self.report(self.machine.woken)  # the engine wakes workers for jobs that were handed back

    @rule(microseconds=st.sampled_from([1, MILLISECOND, START_LEAD, 100 * MILLISECOND, SECOND, 5 * SECOND]))
    def pass_time(self, microseconds: int) -> None:
        self.engine_time += microseconds
        self.monotonic += microseconds * 1_000
        self.report(self.machine.time_passed)

    @precondition(lambda self: self.is_enrolling)
    @rule(fails=RARELY)
    def answer_enroll(self, *, fails: bool = False) -> None:
        self.is_enrolling = False
        if fails:
            self.report(self.machine.enroll_failed, OSError("the store is gone"))
        else:
            self.report(self.machine.enrolled, self.store.enroll())

    @rule(
        fetch_error=st.sampled_from(["clock", "clock", "death", "silent death", "stop"]),
        jump=st.sampled_from(JUMPS),
    )
    def have_trouble(self, fetch_error: str, jump: int) -> None:
        match fetch_error:
            case "clock":
                self.engine_time += jump
                self.report(self.machine.clock_jumped)
            case "death":  # another worker declares this one dead, and a heartbeat finds out
                self.store.declare_dead(self.machine.number)
                self.report(self.machine.declared_dead, self.machine.number)
            case "silent death":  # the next fetch or heartbeat finds out
                self.store.declare_dead(self.machine.number)
            case _:  # a shutdown, and then the end of its grace
                if self.machine.is_stopping:
                    self.report(self.machine.interrupt_requested)
                else:
                    self.report(self.machine.stop_requested)

    # -- what holds at all times

    @invariant()
    def no_lease_is_lost(self) -> None:
        held = {(job.lease.ref, job.lease.token) for job in self.table.jobs()}
        for job in self.store.jobs:
            if job.worker is not None and job.worker == self.machine.number:
                assert (job.number, job.token) in held, f"the lease of job {job.number} is lost"

    @invariant()
    def every_job_is_on_its_way(self) -> None:
        """A job in the table is held, starting, ready, running, or its outcome goes to the store."""
        ending = {id(outcome.lease) for outcome in self.outcomes}
        committing = self.commit.jobs if self.commit is not None else []
        for job in self.table.jobs():
            if job.ready_ns is None and job.is_waiting:
                assert job.is_starting or self.machine.next_wakeup(m.ClockReading(0, 0, 0)) is not None
            if job.is_starting and self.commit is None:
                raise AssertionError("a job starts, and nothing is in flight")
            places = [job in committing, job in self.ready, job in self.running, id(job.lease) in ending]
            assert any(places) or job.is_starting or (job.ready_ns is None and job.is_waiting)

    @invariant()
    def slots_count_every_job_once(self) -> None:
        jobs = self.table.jobs()
        for slots in {job.slots for job in jobs}:
            here = [job for job in jobs if job.slots is slots]
            assert slots.started == sum(job.counts_as_started for job in here)
            assert slots.held == sum(not job.counts_as_started for job in here)

    @invariant()
    def at_most_one_suspect_is_here(self) -> None:
        """Of the jobs under the current number: those of a former one may still run."""
        held = [job for job in self.store.jobs if job.worker == self.machine.number and job.crashes]
        assert len(held) <= 1

    # -- rest

    def teardown(self) -> None:
        """From any state, answering everything and passing time runs every job and comes to rest."""
        if not self.machine.number:
            return
        for _ in range(MOST_STEPS):
            if not self.step():
                break
        else:
            raise AssertionError(f"no rest after {MOST_STEPS} steps")
        assert self.machine.is_settled
        assert len(self.table) == 0
        if not self.machine.is_stopping:
            assert [job.number for job in self.store.jobs if not job.is_over] == []

    def step(self) -> bool:
        """Do the next thing that is possible; return whether there was one."""
        if self.is_enrolling:
            self.answer_enroll()
        elif self.fetch is not None:
            self.answer_fetch()
        elif self.commit is not None:
            self.answer_starts()
        elif self.running:
            self.end_handler()
        elif self.ready:
            self.start_handler()
        elif self.outcomes:
            self.answer_outcomes()
        else:
            return self.sleep()
        return True

    def sleep(self) -> bool:
        now = m.ClockReading(self.engine_time, self.monotonic, START_LEAD)
        wakeup = self.machine.next_wakeup(now)
        if wakeup is None:
            if self.machine.is_stopping or self.machine.number in self.store.workers:
                return False
            self.report(self.machine.declared_dead, self.machine.number)  # by the next heartbeat
            return True
        microseconds = max(0, -(-(wakeup - self.monotonic) // 1_000))
        self.engine_time += microseconds
        self.monotonic += microseconds * 1_000
        self.report(self.machine.time_passed)
        return True


async def _pong() -> None: ...


WorkerStory.TestCase.settings = settings(
    max_examples=amount(75, thorough=5_000), stateful_step_count=amount(50, thorough=100)
)
test_the_worker_loses_no_lease_starts_none_twice_and_comes_to_rest = WorkerStory.TestCase
