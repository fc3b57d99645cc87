"""Lines in the SQLite engine: whatever is done to jobs, every line stays in order and no job is forgotten."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from mainspring.jobs.commands import ChangeLimits, Command, DropLimit, Reopen, Replay, Reschedule
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, JobRecord, Lease, OutcomeKind, Query, UniqueKey
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import START_LEAD_SECONDS, Bench, seconds
from tests.support import amount
from tests.unit.engines.crash_points import opened
from tests.unit.engines.store_invariants import check_invariants

BUCKETS = [bucket_of("all"), bucket_of("rate")]
BUCKETS += [bucket_of(family, key) for family in ("tenant", "paced") for key in "ab"]
TYPES = ("ping", "pong")


class CalledOff(Exception):
    """A unit is rolled back."""


class Chaos:
    """Does anything to jobs in lines, by one engine or by several, and looks at the file after every step."""

    def __init__(self, path: Path, seed: int, bench: Bench, *others: Bench) -> None:
        self.benches = (bench, *others)
        self.bench = bench
        self.path = path
        self.random = Random(seed)
        self.worker = bench.enroll(*TYPES)
        self.leases: list[Lease] = []
        self.count = 0

    def step(self) -> None:
        """Do something, and look."""
        self.bench = self.random.choice(self.benches)
        acts = [self.submit] * 4 + [self.settle] * 3 + [self.take] * 3 + [self.turn_over] * 3
        acts += [self.pass_time, self.cancel, self.move, self.define, self.pause, self.revive, self.die]
        self.random.choice(acts)()
        check_invariants(self.path)

    def submit(self) -> None:
        jobs = []
        for _ in range(self.random.randint(1, 3)):
            self.count += 1
            job = self.bench.job(
                f"{self.count}",
                type=self.random.choice(TYPES),
                after=self.random.choice([-5, 0, 0, 0.5, 3]),
                limits=tuple(self.random.sample(BUCKETS, self.random.choice([0, 0, 1, 2]))),
                sequence=self.random.choice([None, None, "x", "y"]),
                priority=self.random.randint(0, 2),
                expires=self.random.choice([None, None, None, 6]),
                steps_aside=self.random.random() < 0.2,
                queue=self.random.choice(["default", "default", "other"]),
                unique=self.random.choice([None, None, self.unique()]),
            )
            jobs.append(job)
        self.bench.engine.submit(jobs)

    def unique(self) -> UniqueKey:
        replaces = self.random.random() < 0.5
        states = (JobStatus.PENDING,) if replaces else (JobStatus.PENDING, JobStatus.RUNNING)
        return UniqueKey(self.random.choice("kl"), states, None, replaces)

    def take(self) -> None:
        types = self.random.choice([TYPES[:1], TYPES[1:], TYPES])
        starts = self.random.choice([0, 1, 2, 50])
        for _ in range(20):
            wakes = self.bench.wakes
            taken = self.bench.look(self.worker, *types, starts=starts, suspects=self.random.random() < 0.5)
            self.leases += taken.leases
            check_invariants(self.path)
            if starts < 50:
                return
            if not taken.is_more and wakes == self.bench.wakes:
                break  # else a worker looks again
        self.check_that_no_job_was_left(types)

    def check_that_no_job_was_left(self, types: tuple[str, ...]) -> None:
        paused = self.bench.engine.paused_queues()
        for job in self.waiting():
            is_due = job.due <= self.bench.now + seconds(START_LEAD_SECONDS)
            if job.type in types and is_due and job.queue not in paused and job.crashes < 2:
                situation = self.bench.situation(job.id)
                assert situation.behind is not None or situation.full_bucket is not None, job

    def settle(self) -> None:
        if self.leases:
            lease = self.leases.pop(self.random.randrange(len(self.leases)))
            if not lease.is_started:
                if self.bench.engine.start(self.worker, [lease]) == [False]:
                    return  # it was called off, moved or paused
                lease = replace(lease, is_started=True)
            kind = self.random.choice(list(OutcomeKind))
            cause = self.random.choice([Cause.FAILURE, Cause.CRASH])
            follow_up = self.bench.job(f"{lease.id} next", sequence="x") if self.random.random() < 0.2 else None
            self.bench.settle(
                self.worker, lease, kind, due=self.bench.now + seconds(1), cause=cause, follow_up=follow_up
            )

    def turn_over(self) -> None:
        """Settle and take in one unit, which perhaps comes to nothing."""
        before = list(self.leases)
        with suppress(CalledOff), self.bench.engine.unit(durable=False):
            for _ in range(self.random.randint(0, 3)):
                self.settle()
            self.leases += self.bench.take(self.worker, *TYPES, starts=self.random.choice([1, 2, 50]))
            if self.random.random() < 0.3:
                self.leases = before
                raise CalledOff

    def cancel(self) -> None:
        alive = [record for record in self.records() if record.status not in FINAL]
        if alive:
            self.bench.cancel(self.random.choice(alive).id)

    def move(self) -> None:
        waiting = self.waiting()
        if waiting:
            job_id = self.random.choice(waiting).id
            after = self.bench.now + seconds(self.random.choice([-9, 0, 4]))
            limits = tuple(self.random.sample(BUCKETS, self.random.randint(0, 2)))
            commands: list[Command] = [Reschedule(job_id, after), ChangeLimits(job_id, limits)]
            self.bench.change(self.random.choice(commands))

    def revive(self) -> None:
        letters = [record for record in self.records() if record.status is JobStatus.FAILED]
        if letters:
            self.count += 1
            letter = self.random.choice(letters).id
            commands: list[Command] = [Reopen(letter, self.bench.now), Replay(letter, f"{self.count}", 0)]
            self.bench.change(self.random.choice(commands))

    def define(self) -> None:
        family = self.random.choice(["all", "rate", "tenant", "paced"])
        if self.random.random() < 0.2:
            self.bench.arrange(DropLimit(family))
        else:
            per = self.random.choice([1, 10]) if family in ("rate", "paced") else None
            self.bench.limit(family, self.random.randint(1, 3), per=per)

    def pause(self) -> None:
        self.random.choice([self.bench.pause, self.bench.resume, self.bench.resume])("other")

    def pass_time(self) -> None:
        self.bench.pass_time(self.random.choice([0.1, 1, 7]))
        assert self.bench.engine.renew(self.worker)

    def die(self) -> None:
        if self.random.random() < 0.3:
            self.leases.clear()
            self.bench.crash(self.worker)
            self.worker = self.bench.enroll(*TYPES)

    def finish(self) -> None:
        """Let everything run to its end."""
        for lease in self.leases:
            kind = OutcomeKind.COMPLETED if lease.is_started else OutcomeKind.HANDED_BACK
            self.bench.settle(self.worker, lease, kind)
        self.bench.resume("other")
        for _ in range(100):
            self.bench.pass_time(5)
            assert self.bench.engine.renew(self.worker)
            while leases := self.bench.take(self.worker, *TYPES, ahead=0, starts=50):
                self.bench.complete(self.worker, *leases)
            if all(record.status in FINAL for record in self.records()):
                break
        else:
            pytest.fail(f"they never end: {[r for r in self.records() if r.status not in FINAL]}")
        check_invariants(self.path)

    def records(self) -> list[JobRecord]:
        return self.bench.engine.find(Query(limit=10_000)).records

    def waiting(self) -> list[JobRecord]:
        return [record for record in self.records() if record.status is JobStatus.PENDING and record.owner is None]


@pytest.mark.stress  # the file is read anew after every step
@pytest.mark.parametrize("seed", range(amount(6, thorough=12)))
def test_whatever_happens_every_line_is_in_order_and_all_jobs_end(bench: Bench, path: Path, seed: int) -> None:
    chaos = Chaos(path, seed, bench)
    for _ in range(120):
        chaos.step()
    chaos.finish()


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(amount(5, thorough=8)))
def test_so_it_is_when_two_engines_count_in_the_same_file(
    bench: Bench, path: Path, clock: ManualClock, seed: int
) -> None:
    with opened(path, clock) as other:
        chaos = Chaos(path, seed, bench, other)
        for _ in range(120):
            chaos.step()
        chaos.finish()


def refuse_two(bench: Bench, **first: str) -> tuple[int, Lease]:
    """Let one job run in the only place, and two be refused: `first`, and then one of the usual kind."""
    everyone = (bucket_of("all"),)
    bench.limit("all", 1)
    worker = bench.enroll(*TYPES)
    bench.submit("runs", limits=everyone)
    (lease,) = bench.take(worker)
    bench.submit("first", limits=everyone, **first)
    assert bench.take(worker, *TYPES) == []
    bench.pass_time(1)
    bench.submit("second", limits=everyone)
    assert bench.take(worker, *TYPES) == []
    return worker, lease


def test_a_place_is_not_kept_for_a_job_in_a_paused_queue(bench: Bench) -> None:
    worker, lease = refuse_two(bench, queue="other")
    bench.pause("other")
    bench.complete(worker, lease)
    assert bench.take_ids(worker) == ["second"]


def test_a_place_is_not_kept_for_a_job_of_another_handler_when_no_worker_starts_it(bench: Bench) -> None:
    worker, lease = refuse_two(bench, type="pong")
    bench.complete(worker, lease)
    assert bench.take_ids(worker, "ping") == ["second"]


def test_a_place_goes_to_the_group_that_waits_longest(bench: Bench) -> None:
    worker, lease = refuse_two(bench, type="pong")
    bench.complete(worker, lease)
    assert bench.take_ids(worker, *TYPES) == ["first"]
