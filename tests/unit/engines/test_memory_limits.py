"""Limits in the memory engine: nobody is forgotten where the refused are parked, and few are looked at twice."""

from collections.abc import Iterator
from random import Random

import pytest

from mainspring.engines.memory import MemoryEngine
from mainspring.engines.memory.buckets import Buckets
from mainspring.jobs.engine import DropLimit, JobRecord, Lease, OutcomeKind, Query, Regroup, Taken
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.engine_bench import START_LEAD_SECONDS, Bench, seconds

ALL, RATE = bucket_of("all"), bucket_of("rate")
BUCKETS = [ALL, RATE, *(bucket_of("tenant", key) for key in "abc"), *(bucket_of("paced", key) for key in "ab")]


@pytest.fixture
def bench(clock: ManualClock) -> Iterator[Bench]:
    bench = Bench(MemoryEngine(clock=clock), clock)
    yield bench
    bench.engine.close()


def tenant(key: str) -> tuple[str, ...]:
    return (bucket_of("tenant", key),)


class Chaos:
    """Does anything to jobs with limits, and looks after every take whether one was left that could start."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = Random(seed)
        self.worker = bench.enroll("ping", "pong")
        self.leases: list[Lease] = []
        self.submitted = 0

    def submit(self) -> None:
        buckets = tuple(self.random.sample(BUCKETS, self.random.randint(0, 3)))
        self.submitted += 1
        self.bench.submit(
            f"job {self.submitted}",
            type=self.random.choice(["ping", "pong"]),
            after=self.random.choice([-5, 0, 0, 3]),
            limits=buckets,
            sequence=self.random.choice([None, None, "x", "y"]),
            priority=self.random.randint(0, 2),
        )

    def settle(self) -> None:
        if self.leases:
            lease = self.leases.pop(self.random.randrange(len(self.leases)))
            kind = self.random.choice(list(OutcomeKind))
            assert self.bench.settle(self.worker, lease, kind, due=self.bench.now + seconds(1))

    def change(self) -> None:
        waiting = self.waiting()
        if waiting:
            job_id = self.random.choice(waiting).id
            if self.random.random() < 0.5:
                assert self.bench.cancel(job_id).is_done
            else:
                assert self.bench.change(Regroup(job_id, (self.random.choice(BUCKETS),))).is_done

    def define(self) -> None:
        family = self.random.choice(["all", "rate", "tenant", "paced"])
        if self.random.random() < 0.2:
            self.bench.arrange(DropLimit(family))
        else:
            per = self.random.choice([1, 10]) if family in ("rate", "paced") else None
            self.bench.limit(family, self.random.randint(1, 3), per=per)

    def pass_time(self) -> None:
        self.bench.pass_time(self.random.choice([0.1, 1, 7]))

    def take(self) -> None:
        types = self.random.choice([("ping",), ("pong",), ("ping", "pong")])
        starts = self.random.choice([0, 1, 2, 50])
        taken = self.bench.look(self.worker, *types, starts=starts, ahead=0, suspects=False)
        self.leases += taken.leases
        assert len(taken.leases) <= starts
        self.check_nothing_was_left(taken, types)

    def check_nothing_was_left(self, taken: Taken, types: tuple[str, ...]) -> None:
        for job in self.waiting():
            if job.type in types and job.due <= self.bench.now + seconds(START_LEAD_SECONDS):
                situation = self.bench.situation(job.id)
                is_held_up = situation.behind is not None or situation.full_bucket is not None
                assert taken.is_more or is_held_up, job
                is_sole = len(job.limits) == 1 and situation.behind is None  # there is nothing else to wait for
                if not taken.is_more and is_sole and situation.limited_until is not None:
                    assert taken.next_look is not None
                    assert self.bench.now < taken.next_look <= situation.limited_until

    def waiting(self) -> list[JobRecord]:
        records = self.bench.engine.find(Query(status=JobStatus.PENDING, limit=10_000)).records
        return [record for record in records if record.owner is None]


@pytest.mark.parametrize("seed", range(30))
def test_after_a_take_nobody_waits_who_could_start(bench: Bench, seed: int) -> None:
    chaos = Chaos(bench, seed)
    acts = (
        [chaos.submit] * 4 + [chaos.settle] * 3 + [chaos.take] * 3 + [chaos.pass_time, chaos.change, chaos.define]
    )
    for _ in range(150):
        chaos.random.choice(acts)()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count in one number how often buckets are asked to admit a job."""
    count = [0]
    admit = Buckets.admit

    def counting(self: Buckets, *arguments: object) -> object:
        count[0] += 1
        return admit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Buckets, "admit", counting)
    return count


def test_a_thousand_jobs_of_a_full_bucket_are_not_looked_at_one_by_one(bench: Bench, looks: list[int]) -> None:
    bench.limit("all", 1)
    bench.submit(*(f"job {number}" for number in range(1_000)), limits=(ALL,))
    worker = bench.enroll()
    for _ in range(10):
        bench.take(worker)
    assert looks[0] <= 2


def test_the_keys_that_wait_for_a_bucket_of_all_are_let_go_one_by_one(bench: Bench, looks: list[int]) -> None:
    bench.limit("all", 1)
    bench.limit("tenant", 1)
    for number in range(200):
        bench.submit(f"{number}", limits=(*tenant(f"{number}"), ALL))
    worker = bench.enroll()
    (lease,) = bench.take(worker)
    looks[0] = 0
    for number in range(1, 20):
        bench.complete(worker, lease)
        (lease,) = bench.take(worker)
        assert lease.id == f"{number}"
    assert looks[0] <= 2 * 19


def test_keys_take_turns_within_one_take(bench: Bench) -> None:
    bench.limit("tenant", 10)
    bench.submit("a1", "a2", "a3", limits=tenant("a"))
    bench.submit("b1", "b2", "b3", limits=tenant("b"))
    assert bench.take_ids(bench.enroll(), starts=4) == ["a1", "b1", "a2", "b2"]


def test_a_slot_that_a_called_off_job_was_let_go_for_goes_to_the_next(bench: Bench) -> None:
    bench.limit("all", 1)
    for key in "abc":
        bench.submit(key, limits=(*tenant(key), ALL))
    worker = bench.enroll()
    (lease,) = bench.take(worker)
    bench.complete(worker, lease)
    assert bench.look(worker, starts=0).is_more  # b was let go, and not started
    bench.cancel("b")
    assert bench.take_ids(worker) == ["c"]


def test_a_slot_that_a_job_was_let_go_for_that_another_limit_refuses_goes_to_the_next(bench: Bench) -> None:
    other = bucket_of("other")
    bench.limit("all", 1)
    bench.limit("other", 1)
    worker = bench.enroll()
    bench.submit("runs", limits=(other,))
    (lease,) = bench.take(worker)
    bench.submit("needs both", limits=(other, ALL))
    bench.submit("needs one", limits=(other,))
    assert bench.take(worker) == []
    bench.submit("fills", limits=(ALL,))
    assert bench.take_ids(worker) == ["fills"]
    bench.complete(worker, lease)
    assert bench.take_ids(worker) == ["needs one"]


def test_another_rate_leaves_as_many_tokens_missing(bench: Bench) -> None:
    bench.limit("rate", 2, per=3600)
    bench.submit("a", "b", "c", "d", limits=(RATE,))
    worker = bench.enroll()
    assert bench.take_ids(worker) == ["a", "b"]
    bench.limit("rate", 3, per=3)
    assert bench.take_ids(worker) == ["c"]
    assert bench.look(worker).next_look == bench.now + seconds(1)


def test_a_rate_that_was_dropped_has_all_its_tokens_when_it_comes_again(bench: Bench) -> None:
    bench.limit("rate", 1, per=3600)
    bench.submit("a", "b", limits=(RATE,))
    worker = bench.enroll()
    assert bench.take_ids(worker) == ["a"]
    bench.arrange(DropLimit("rate"))
    bench.limit("rate", 1, per=3600)
    assert bench.take_ids(worker) == ["b"]


def test_buckets_that_nobody_uses_are_forgotten(bench: Bench) -> None:
    bench.limit("paced", 1, per=1)
    for number in range(2_500):
        bench.submit(f"{number}", limits=(bucket_of("paced", f"{number}"),))
    worker = bench.enroll()
    for _ in range(25):
        bench.complete(worker, *bench.take(worker, starts=100))
        bench.pass_time(2)
    engine = bench.engine
    assert isinstance(engine, MemoryEngine)
    assert len(engine._jobs.buckets._full_at) < 1_500
    assert not engine._jobs.buckets._running
    assert not engine._jobs.backlog.groups._groups
