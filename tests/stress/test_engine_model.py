"""Engines against a naive model: whatever is done to both, in whatever order, they stay alike."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import asdict

from mainspring.engines.memory import MemoryEngine
from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import (
    HEAD_START,
    SUSPECT_CRASHES,
    Cause,
    Delete,
    Engine,
    Lease,
    Outcome,
    OutcomeKind,
    Query,
    Reopen,
    Replay,
    Taken,
)
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.engine_bench import LEAD_SECONDS, START_LEAD_SECONDS, Bench, seconds
from tests.stress.engine_model import COUNTERS, Job, Model

pytestmark = [pytest.mark.stress, pytest.mark.timeout(120)]

TYPES = ("ping", "pong")
WORKERS = 3
RUNS_LATER = (OutcomeKind.RETRY, OutcomeKind.SNOOZED)
IS_CHARGED = (OutcomeKind.RETRY, OutcomeKind.FAILED)

ids = st.sampled_from("abcdefgh")
delays = st.sampled_from([-100.0, -20.0, -1.0, 0.0, 0.3, 0.9, 5.0, 60.0])
places = st.integers(0, 1_000)
jobs = st.tuples(ids, st.sampled_from(TYPES), st.integers(0, 2), delays)
ends = st.tuples(
    st.sampled_from(OutcomeKind), st.sampled_from([None, "it broke"]), st.sampled_from(list(COUNTERS)), delays
)


class EngineMachine(RuleBasedStateMachine):
    """Drives an engine and the model with the same words."""

    def make_engine(self, clock: ManualClock) -> Engine:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        clock = ManualClock()
        self.bench = Bench(self.make_engine(clock), clock)
        self.engine = self.bench.engine
        self.model = Model()
        self.leases: list[tuple[int, Lease]] = []  # all there ever were, with their holders
        self.copies = 0
        self.enroll()
        self.submit([(job_id, kind, 1, -1.0) for job_id, kind in zip("abcd", TYPES * 2, strict=True)])

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()

    def worker(self, place: int) -> int:
        return self.model.workers[place % len(self.model.workers)]

    # -- submitters

    @rule(batch=st.lists(jobs, max_size=6))
    def submit(self, batch: list[tuple[str, str, int, float]]) -> None:
        new = [
            self.bench.job(job_id, type=kind, priority=priority, after=delay, payload=b"%d" % number)
            for number, (job_id, kind, priority, delay) in enumerate(batch)
        ]
        assert self.engine.submit(new) == [self.model.submit(job, self.bench.now) for job in new]

    @rule(place=places)
    def cancel(self, place: int) -> None:
        job_id = self.choose_job(place, JobStatus.PENDING, JobStatus.RUNNING)
        answer = self.bench.cancel(job_id)
        assert (answer.is_done, answer.status) == self.model.cancel(job_id, self.bench.now)

    @rule(place=places, delay=delays, verb=st.sampled_from(["reopen", "replay", "delete"]))
    def change(self, place: int, delay: float, verb: str) -> None:
        now, due = self.bench.now, self.bench.now + seconds(delay)
        if verb == "delete":
            job_id = self.choose_job(place, JobStatus.COMPLETED, JobStatus.CANCELED)
            assert self.bench.change(Delete(job_id)).is_done == self.model.delete(job_id)
            return
        job_id = self.choose_job(place, JobStatus.FAILED)
        if verb == "reopen":
            assert self.bench.change(Reopen(job_id, due)).is_done == self.model.reopen(job_id, due)
        else:
            self.copies += 1
            replay = Replay(job_id, f"copy {self.copies}", due)
            assert self.bench.change(replay).is_done == self.model.replay(job_id, replay.new_id, due, now)

    def choose_job(self, place: int, *statuses: JobStatus) -> str:
        """Choose a job, mostly one that the command is meant for."""
        meant = [job_id for job_id, job in self.model.jobs.items() if job["status"] in statuses]
        others = [*self.model.jobs, "nowhere"]
        return others[place % len(others)] if place % 4 == 0 or not meant else meant[place % len(meant)]

    # -- workers

    @precondition(lambda self: len(self.model.workers) < WORKERS)
    @rule()
    def enroll(self) -> None:
        self.model.workers.append(self.bench.enroll(*TYPES))

    @rule(
        place=places,
        types=st.sampled_from([TYPES, TYPES[:1], TYPES[1:]]),
        starts=st.integers(0, 4),
        ahead=st.integers(0, 3),
        suspects=st.booleans(),
    )
    def take(self, place: int, types: tuple[str, ...], starts: int, ahead: int, suspects: bool) -> None:  # noqa: FBT001
        worker, now = self.worker(place), self.bench.now
        taken = self.bench.look(worker, *types, starts=starts, ahead=ahead, suspects=suspects)
        self.check_started(taken, types, starts, suspects=suspects)
        self.check_held(taken, types, ahead)
        for lease in taken.leases:
            self.model.take(lease, worker, now)
            self.leases.append((worker, lease))
            job = self.model.jobs[lease.id]
            shared = asdict(lease).keys() & job.keys()
            assert {name: getattr(lease, name) for name in shared} == {name: job[name] for name in shared}
        left = [
            job["due"] for job in self.model.claimable(types) if job["due"] > now + seconds(START_LEAD_SECONDS)
        ]
        assert taken.next_due == min(left, default=None)
        assert sorted(taken.stops) == sorted(
            job["id"] for job in self.model.jobs.values() if job["owner"] == worker and job["stop_requested"]
        )

    @rule(place=places)
    def take_all(self, place: int) -> None:
        self.take(place, TYPES, starts=10, ahead=10, suspects=True)

    def check_started(self, taken: Taken, types: tuple[str, ...], starts: int, *, suspects: bool) -> None:
        started = [lease.id for lease in taken.leases if lease.is_started]
        until = self.bench.now + seconds(START_LEAD_SECONDS)
        due = [job for job in self.model.claimable(types) if job["due"] <= until]
        innocent = {job["id"] for job in due if job["crashes"] < SUSPECT_CRASHES}
        suspected = {job["id"] for job in due if job["crashes"] >= SUSPECT_CRASHES}
        assert len(set(started)) == len(started) <= starts
        assert set(started) <= innocent | suspected
        assert len(suspected & set(started)) <= suspects  # one at a time
        assert len(started) == min(starts, len(innocent) + (suspects and bool(suspected)))
        assert taken.is_more or len(innocent) <= starts

    def check_held(self, taken: Taken, types: tuple[str, ...], ahead: int) -> None:
        held = [lease.id for lease in taken.leases if not lease.is_started]
        after = self.bench.now + seconds(START_LEAD_SECONDS)
        until = self.bench.now + seconds(LEAD_SECONDS)
        soon = [job for job in self.model.claimable(types) if after < job["due"] <= until]
        soon = [job for job in soon if job["crashes"] < SUSPECT_CRASHES]
        assert held == [job["id"] for job in sorted(soon, key=rank)[:ahead]]

    @precondition(lambda self: self.model.has_held_jobs())
    @rule(chosen=st.lists(places, min_size=1, max_size=4))
    def start(self, chosen: list[int]) -> None:
        worker, leases = self.choose_leases(chosen, JobStatus.PENDING)
        assert self.engine.start(worker, leases) == [
            self.model.start(worker, lease, self.bench.now) for lease in leases
        ]

    @precondition(lambda self: self.leases)
    @rule(chosen=st.lists(places, min_size=1, max_size=4), ends=st.lists(ends, min_size=4, max_size=4))
    def settle(self, chosen: list[int], ends: list[tuple[OutcomeKind, str | None, Cause, float]]) -> None:
        worker, leases = self.choose_leases(chosen, JobStatus.RUNNING)
        batch = [
            Outcome(
                lease,
                kind,
                due=self.bench.now + seconds(delay) if kind in RUNS_LATER else None,
                result=b"1",
                error=error,
                cause=cause if kind in IS_CHARGED else None,
            )
            for lease, (kind, error, cause, delay) in zip(leases, ends, strict=False)
        ]
        assert self.engine.settle(worker, batch) == [
            self.model.settle(worker, outcome, self.bench.now) for outcome in batch
        ]

    def choose_leases(self, chosen: list[int], status: JobStatus) -> tuple[int, list[Lease]]:
        """Choose leases of one worker, mostly current ones, and that worker or, seldom, another as speaker."""
        current = [
            (worker, lease)
            for worker, lease in self.leases
            if (job := self.model.jobs.get(lease.id)) is not None
            if (job["owner"], job["token"], job["status"]) == (worker, lease.token, status)
        ]
        pool = self.leases if chosen[0] % 4 == 0 or not current else current
        worker = pool[chosen[0] % len(pool)][0]
        own = [lease for number, lease in pool if number == worker]
        leases = {lease.id: lease for lease in (own[place % len(own)] for place in chosen)}
        return self.worker(chosen[0]) if chosen[0] % 8 == 1 else worker, list(leases.values())

    # -- time and death

    @rule(duration=st.sampled_from([0.2, 0.8, 4.0, 40.0]))
    def pass_time(self, duration: float) -> None:
        self.bench.pass_time(duration)

    @precondition(lambda self: len(self.model.workers) > 1)
    @rule(place=places)
    def crash(self, place: int) -> None:
        busy = [worker for worker in self.model.workers if self.model.is_busy(worker)]
        dead = busy[place % len(busy)] if busy else self.worker(place)
        survivors = [worker for worker in self.model.workers if worker != dead]
        before = self.bench.now
        swept = self.bench.outlive(*survivors)
        died = {
            record.id: record.history[-1].ended
            for record in self.engine.find(Query(limit=1_000)).records
            if record.history
        }
        rescued, quarantined = self.model.bury(dead, died)
        assert (set(swept.rescued), set(swept.quarantined)) == (rescued, quarantined)
        assert all(died[job_id] > before for job_id in rescued | quarantined)
        assert not self.engine.renew(dead)

    @precondition(lambda self: len(self.model.workers) > 1)
    @rule(place=places)
    def leave(self, place: int) -> None:
        leaver = self.worker(place)
        self.engine.leave(leaver)
        survivor = next(worker for worker in self.model.workers if worker != leaver)
        swept = self.engine.sweep(survivor)
        rescued, quarantined = self.model.bury(leaver, dict.fromkeys(self.model.jobs, self.bench.now))
        assert (set(swept.rescued), set(swept.quarantined)) == (rescued, quarantined)

    # -- what holds at any time

    @invariant()
    def the_records_are_alike(self) -> None:
        records = [asdict(record) for record in self.engine.find(Query(limit=1_000)).records]
        assert records == [{name: job[name] for name in record} for record, job in self.pairs(records)]

    def pairs(self, records: list[Job]) -> list[tuple[Job, Job]]:
        assert [record["id"] for record in records] == list(self.model.jobs)
        return list(zip(records, self.model.jobs.values(), strict=True))

    @invariant()
    def the_counts_are_alike(self) -> None:
        assert self.engine.counts() == self.model.counts()


def rank(job: Job) -> int:
    """Order jobs as they are taken: sorting keeps those of equal rank in the order of submission."""
    return int(job["due"]) - HEAD_START * int(job["priority"])


class MemoryMachine(EngineMachine):
    def make_engine(self, clock: ManualClock) -> Engine:
        return MemoryEngine(clock=clock)


class SqliteMachine(EngineMachine):
    def make_engine(self, clock: ManualClock) -> Engine:
        self.folder = TemporaryDirectory(prefix="mainspring-")
        path = Path(self.folder.name) / "jobs.db"
        return SqliteEngine(path, clock=clock, durability="normal", is_shared=False)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestMemoryEngine = MemoryMachine.TestCase
TestMemoryEngine.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSqliteEngine = SqliteMachine.TestCase
TestSqliteEngine.settings = settings(TestMemoryEngine.settings, max_examples=80)
