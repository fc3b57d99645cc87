"""Rules of the Hypothesis machine for workers: they claim, run and settle jobs, and die."""

from __future__ import annotations

from itertools import cycle
from math import inf
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule
from msgspec import Struct
from msgspec.structs import asdict

from mainspring.jobs.backlog import HEAD_START
from mainspring.jobs.engine import Taken
from mainspring.jobs.records import (
    SUSPECT_CRASHES,
    Cause,
    Lease,
    Outcome,
    OutcomeKind,
    Progress,
    ProgressReport,
    Query,
)
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.bench import LEAD_SECONDS, START_LEAD_SECONDS, seconds
from tests.stress.engine_model import COUNTERS, Job
from tests.stress.machine_users import TYPES, UserMachine, delays, jobs, places

WORKERS = 3
WELL: dict[str, Any] = {"kind": OutcomeKind.COMPLETED, "error": None, "cause": Cause.FAILURE, "delay": 0.0}
RUNS_LATER = (OutcomeKind.RETRY, OutcomeKind.SNOOZED)
IS_CHARGED = (OutcomeKind.RETRY, OutcomeKind.FAILED)

ends = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(OutcomeKind),
        "error": st.sampled_from([None, "it broke"]),
        "cause": st.sampled_from(list(COUNTERS)),
        "delay": delays,
    },
    optional={"follow_up": jobs, "keep": delays},
)


class SleepingWorker(Struct):
    """The state of a worker that got fewer jobs than it had room for, until its next fetch."""

    types: tuple[str, ...]
    until: float
    wakes: int
    """How often workers were woken before."""


class WorkerMachineRules(UserMachine):
    """Compares the leases of each `take` with the jobs that the model could start."""

    def prepare(self) -> None:
        self.sleeps: dict[int, SleepingWorker] = {}
        self.enroll()
        self.enroll()
        super().prepare()

    @precondition(lambda self: len(self.model.workers) < WORKERS)
    @rule()
    def enroll(self) -> None:
        self.model.workers.append(self.bench.enroll(*TYPES))

    # -- taking

    @rule(
        place=places,
        types=st.sampled_from([TYPES, TYPES[:1], TYPES[1:]]),
        starts=st.integers(0, 4),
        ahead=st.integers(0, 3),
        suspects=st.booleans(),
    )
    def take(self, place: int, types: tuple[str, ...], starts: int, ahead: int, suspects: bool) -> None:  # noqa: FBT001
        worker = self.worker(place)
        taken = self.bench.look(worker, *types, starts=starts, ahead=ahead, suspects=suspects)
        self.model.expire(self.bench.now)
        self.check_held(taken, types, ahead)
        for lease in taken.leases:  # first: a worker needs no wake-up for jobs that another holds
            if not lease.is_started:
                self.note(lease, worker)
        self.check_started(taken, worker, types, starts, suspects=suspects)
        self.check_news(taken, worker, types)
        self.sleeps.pop(worker, None)
        if sum(lease.is_started for lease in taken.leases) < starts:
            self.sleeps[worker] = SleepingWorker(types, min(next_fetches(taken), default=inf), self.bench.wakes)

    @rule(place=places, ends=st.lists(ends, min_size=1, max_size=3))
    def work(self, place: int, ends: list[dict[str, Any]]) -> None:
        """Take all that there is, and let some of it end."""
        self.take(place, TYPES, starts=10, ahead=10, suspects=True)
        self.settle([place + 1 + number for number in range(place % 8 + 1)], ends)

    @rule(place=places)
    def work_well(self, place: int) -> None:
        """Take all that there is, and complete some of it, as workers mostly do."""
        self.work(place, [WELL])

    @rule(place=places)
    def begin_held(self, place: int) -> None:
        """Hold what is due soon, and begin some of it, perhaps a while later."""
        self.take(place, TYPES, starts=place % 3, ahead=10, suspects=True)
        self.pass_time((0.0, 0.2, 0.8)[place % 3])
        if self.model.has_held_jobs():
            self.start([place + 1 + number for number in range(place % 4 + 1)])

    def note(self, lease: Lease, worker: int) -> None:
        self.model.take(lease, worker, self.bench.now)
        self.leases.append((worker, lease))
        job = self.model.jobs[lease.id]
        shared = asdict(lease).keys() & job.keys()
        assert {name: getattr(lease, name) for name in shared} == {name: job[name] for name in shared}

    def check_started(
        self, taken: Taken, worker: int, types: tuple[str, ...], starts: int, *, suspects: bool
    ) -> None:
        """Check that each one might start when it did, and that none waits while there is room."""
        now = self.bench.now
        until = now + seconds(START_LEAD_SECONDS)
        started = [lease for lease in taken.leases if lease.is_started]
        assert len(started) <= starts
        for lease in started:
            assert lease.id in [job["id"] for job in self.model.startable(types, until, now)]
            self.note(lease, worker)
        assert sum(lease.crashes >= SUSPECT_CRASHES for lease in started) <= suspects  # one at a time
        left = self.model.startable(types, until, now)
        innocent = [job["id"] for job in left if job["crashes"] < SUSPECT_CRASHES]
        if len(started) == starts:
            assert taken.is_more or not innocent
            return
        assert innocent == []
        assert not taken.is_more or left
        assert left == [] or not suspects or any(lease.crashes >= SUSPECT_CRASHES for lease in started)
        looks = self.model.looks(types, until, now)
        assert looks == [] or (taken.next_look is not None and taken.next_look <= min(looks))

    def check_held(self, taken: Taken, types: tuple[str, ...], ahead: int) -> None:
        held = [lease.id for lease in taken.leases if not lease.is_started]
        after = self.bench.now + seconds(START_LEAD_SECONDS)
        until = self.bench.now + seconds(LEAD_SECONDS)
        soon = [job for job in self.model.available(types) if after < job["due"] <= until]
        soon = [job for job in soon if job["crashes"] < SUSPECT_CRASHES]
        soon = [job for job in soon if job["sequence"] is None and not job["limits"]]
        assert held == [job["id"] for job in sorted(soon, key=rank)[:ahead]]

    def check_news(self, taken: Taken, worker: int, types: tuple[str, ...]) -> None:
        now = self.bench.now
        left = [job["due"] for job in self.model.available(types)]
        assert taken.next_due is None or taken.next_due in left
        until = now + seconds(START_LEAD_SECONDS)
        for instant in self.model.dues(types, until, now):
            assert min(next_fetches(taken), default=inf) <= instant
        assert taken.next_look is None or taken.next_look > now
        assert taken.next_firing == self.model.next_firing()
        assert sorted(taken.stops) == sorted(
            job["id"] for job in self.model.jobs.values() if job["owner"] == worker and job["stop_requested"]
        )

    # -- running

    @precondition(lambda self: self.model.has_held_jobs())
    @rule(chosen=st.lists(places, min_size=1, max_size=4))
    def start(self, chosen: list[int]) -> None:
        worker, leases = self.choose_leases(chosen, JobStatus.PENDING)
        assert self.engine.start(worker, leases) == [
            self.model.start(worker, lease, self.bench.now) for lease in leases
        ]

    @precondition(lambda self: self.leases)
    @rule(chosen=st.lists(places, min_size=1, max_size=4))
    def report(self, chosen: list[int]) -> None:
        worker, leases = self.choose_leases(chosen, JobStatus.RUNNING)
        begins = chosen[0] % 2 == 0
        progress = None if begins else Progress(chosen[0], None, None, self.bench.now)
        batch = [ProgressReport(lease, progress) for lease in leases]
        assert self.engine.report(worker, batch) == [self.model.report(worker, report) for report in batch]

    @precondition(lambda self: self.leases)
    @rule(chosen=st.lists(places, min_size=1, max_size=4), ends=st.lists(ends, min_size=1, max_size=3))
    def settle(self, chosen: list[int], ends: list[dict[str, Any]]) -> None:
        if not self.leases:
            return
        worker, leases = self.choose_leases(chosen, JobStatus.RUNNING)
        batch = [self.outcome(lease, **end) for lease, end in zip(leases, cycle(ends), strict=False)]
        assert self.engine.settle(worker, batch) == self.model.settle(worker, batch, self.bench.now)

    def outcome(
        self,
        lease: Lease,
        *,
        kind: OutcomeKind,
        error: str | None,
        cause: Cause,
        delay: float,
        follow_up: dict[str, Any] | None = None,
        keep: float | None = None,
    ) -> Outcome:
        is_completed = kind is OutcomeKind.COMPLETED
        return Outcome(
            lease,
            kind,
            due=self.bench.now + seconds(delay) if kind in RUNS_LATER else None,
            result=b"1",
            error=error,
            cause=cause if kind in IS_CHARGED else None,
            keep_result_until=self.bench.now + seconds(keep) if keep is not None and is_completed else None,
            follow_up=self.describe(**follow_up) if follow_up is not None and is_completed else None,
        )

    def choose_leases(self, chosen: list[int], status: JobStatus) -> tuple[int, list[Lease]]:
        """Choose leases of one worker, mostly current ones, and that worker or, seldom, another as speaker."""
        current = [
            (worker, lease)
            for worker, lease in self.leases
            if self.model.leased(worker, lease, status) is not None
        ]
        pool = self.leases if chosen[0] % 4 == 0 or not current else current
        worker = pool[chosen[0] % len(pool)][0]
        own = [lease for number, lease in pool if number == worker]
        leases = {lease.id: lease for lease in (own[place % len(own)] for place in chosen)}
        return self.worker(chosen[0]) if chosen[0] % 8 == 1 else worker, list(leases.values())

    # -- death

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
        rescued, quarantined = self.model.declare_dead(dead, died)
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
        rescued, quarantined = self.model.declare_dead(leaver, dict.fromkeys(self.model.jobs, self.bench.now))
        assert (set(swept.rescued), set(swept.quarantined)) == (rescued, quarantined)
        now = self.bench.now
        startable = {job["type"] for job in self.model.startable(TYPES, now, now)}
        assert {waiting.type for waiting in swept.waiting} <= startable

    # -- what holds at any time

    @invariant()
    def no_worker_sleeps_too_long(self) -> None:
        """Check that workers were woken if there is something to do before the time that they were told."""
        now = self.bench.now
        until = now + seconds(START_LEAD_SECONDS)
        for worker in self.model.workers:
            sleep = self.sleeps.get(worker)
            if sleep is None or sleep.wakes != self.bench.wakes or sleep.until <= now:
                continue
            startable = self.model.startable(sleep.types, until, now)
            assert [job["id"] for job in startable if job["crashes"] < SUSPECT_CRASHES] == []
            looks = self.model.looks(sleep.types, until, now) + self.model.dues(sleep.types, until, now)
            assert sleep.until <= min(looks, default=inf)


def next_fetches(taken: Taken) -> list[int]:
    """Return the instants at which the worker should fetch again."""
    return [instant for instant in (taken.next_due, taken.next_look) if instant is not None]


def rank(job: Job) -> int:
    """Order jobs as they are taken: sorting keeps those of equal rank in the order of submission."""
    return int(job["due"]) - HEAD_START * int(job["priority"])
