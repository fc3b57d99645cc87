"""Several processes do something to the same job or schedule at the same moment: exactly one of them is heard."""

from collections.abc import Sequence
from functools import partial
from random import Random
from threading import Event

import pytest

from mainspring.jobs.commands import CancelJob, Changed, Reopen, Reschedule
from mainspring.jobs.records import Lease, OutcomeKind, UniqueKey
from mainspring.jobs.recurrence.schedule_records import Firing, Overlap
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.schedule_driver import ScheduleDriver
from tests.nats.fault_bench import MakeBench
from tests.support import amount, at_once

SEEDS = range(amount(1, thorough=3))
ROUNDS = amount(12, thorough=30)
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)


# -- cancel


def take_until_none_waits(bench: Bench, worker: int, ids: Sequence[str]) -> list[Lease]:
    leases: list[Lease] = []

    def is_decided() -> bool:
        leases.extend(bench.take(worker, starts=3))
        return all(bench.status(job_id) is not JobStatus.PENDING for job_id in ids)

    assert bench.eventually(is_decided)
    return leases


def call_off(bench: Bench, ids: Sequence[str], size: int) -> set[str]:
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    answers = [
        changed for part in parts for changed in bench.engine.change([CancelJob(job_id) for job_id in part])
    ]
    return {job_id for job_id, changed in zip(ids, answers, strict=True) if changed.is_done}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_is_either_taken_or_called_off(bench: Bench, other: Bench, seed: int) -> None:
    random = Random(seed)
    worker = bench.enroll()
    for number in range(8):
        ids = [f"{number}-{place}" for place in range(20)]
        bench.submit(*ids)
        order, size = random.sample(ids, len(ids)), random.choice([1, 5, 20])
        leases, called_off = at_once(
            partial(take_until_none_waits, bench, worker, ids), partial(call_off, other, order, size)
        )
        assert sorted([*(lease.id for lease in leases), *called_off]) == sorted(ids)
        assert all(bench.settle(worker, lease, OutcomeKind.CANCELED) for lease in leases)


def start_each(bench: Bench, worker: int, leases: Sequence[Lease]) -> list[bool]:
    return [is_started for lease in leases for is_started in bench.engine.start(worker, [lease])]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_held_job_is_either_started_or_called_off(
    bench: Bench, other: Bench, far_ahead: float, seed: int
) -> None:
    random = Random(seed)
    for number in range(5):
        worker = bench.enroll()
        bench.submit(*(f"{number}-{place}" for place in range(10)), after=far_ahead)
        leases = bench.take_when_there(worker, 10)
        assert [lease.is_started for lease in leases] == [False] * 10
        order = [lease.id for lease in random.sample(leases, 10)]
        started, called_off = at_once(
            partial(start_each, bench, worker, leases), partial(call_off, other, order, 1)
        )
        assert started == [lease.id not in called_off for lease in leases]
        statuses = [bench.status(lease.id) for lease in leases]
        assert statuses == [JobStatus.RUNNING if is_started else JobStatus.CANCELED for is_started in started]
        bench.engine.leave(worker)


# -- reschedule


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policies", [{}, {"limits": ("all\x1f",)}], ids=["plain", "limited"])
def test_a_job_that_is_put_off_while_the_server_hands_it_over_is_not_lost(
    bench: Bench, other: Bench, seed: int, policies: dict[str, tuple[str, ...]]
) -> None:
    random = Random(seed)
    ids = [f"job-{number}" for number in range(30)]
    bench.submit(*ids, after=1.2, **policies)
    worker = bench.enroll()
    is_over = Event()

    def take() -> list[Lease]:
        leases: list[Lease] = []
        while not is_over.wait(0.01):
            leases += bench.take(worker, starts=50, ahead=0)
        return leases + bench.take_when_there(worker, len(ids) - len(leases), starts=50, ahead=0)

    def put_off() -> dict[str, int]:
        dues: dict[str, int] = {}
        for _ in range(40):
            # The server hands a job over a second ahead: about now, or when this has put it off again.
            delays = [random.choice([1.05, 2.0]) + random.random() / 3 for _ in ids]
            commands = [
                Reschedule(job_id, other.now + seconds(delay)) for job_id, delay in zip(ids, delays, strict=True)
            ]
            for command, changed in zip(commands, other.engine.change(commands), strict=True):
                if changed.is_done:
                    dues[command.id] = command.due
        is_over.set()
        return dues

    leases, dues = at_once(take, put_off)
    assert sorted((lease.id, lease.due) for lease in leases) == sorted(dues.items())
    assert len(leases) == len(ids)


# -- unique keys


def bury(bench: Bench, worker: int, job_id: str, key: UniqueKey) -> None:
    bench.submit(job_id, unique=key)
    (lease,) = bench.take_when_there(worker, 1)
    assert bench.settle(worker, lease, OutcomeKind.FAILED)


def reopen(bench: Bench, job_id: str) -> Changed:
    return bench.change(Reopen(job_id, bench.now))


def submit_id_in_the_way(bench: Bench, job_id: str, key: UniqueKey) -> str | None:
    (conflict,) = bench.engine.submit([bench.job(job_id, unique=key)])
    return None if conflict is None else conflict.existing_id


def test_of_a_reopened_job_and_a_new_one_with_its_key_one_is_refused(bench: Bench, other: Bench) -> None:
    worker = bench.enroll()
    for number in range(ROUNDS):
        letter, new, key = f"letter-{number}", f"new-{number}", UniqueKey(f"key-{number}", ALIVE)
        bury(bench, worker, letter, key)
        changed, in_the_way = at_once(
            partial(reopen, bench, letter), partial(submit_id_in_the_way, other, new, key)
        )
        if changed.is_done:
            assert in_the_way == letter
        else:
            assert (changed.note, changed.is_unique_conflict, in_the_way) == (new, True, None)
        (lease,) = bench.take_when_there(worker, 1)
        assert lease.id == (letter if changed.is_done else new)
        bench.complete(worker, lease)


def test_of_two_letters_with_one_key_two_processes_reopen_one(bench: Bench, other: Bench) -> None:
    worker = bench.enroll()
    for number in range(ROUNDS):
        ids = [f"{number}-a", f"{number}-b"]
        for job_id in ids:
            bury(bench, worker, job_id, UniqueKey(f"key-{number}", ALIVE))
        answers = at_once(partial(reopen, bench, ids[0]), partial(reopen, other, ids[1]))
        assert sorted(changed.is_done for changed in answers) == [False, True]
        (lease,) = bench.take_when_there(worker, 1)
        bench.complete(worker, lease)


# -- firing


def plan(bench: Bench, names: Sequence[str], prefix: str) -> list[Firing]:
    timetable = ScheduleDriver(bench)
    firings = []
    for name in names:
        job = bench.job(f"{prefix} {name}", schedule=name, occurrence=timetable.stored(name).next_due)
        firings.append(timetable.firing(name, jobs=(job,)))
    return firings


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.REPLACE])
@pytest.mark.parametrize("seed", SEEDS)
def test_of_three_processes_that_fire_one_makes_the_job(
    make_bench: MakeBench, seed: int, overlap: Overlap
) -> None:
    random = Random(seed)
    processes = [make_bench() for _ in range(3)]
    names = [f"schedule {number}" for number in range(8)]
    for name in names:
        assert ScheduleDriver(processes[0]).put(name, after=0, overlap=overlap)
    for turn in range(1, 5):
        plans = [
            plan(process, random.sample(names, len(names)), f"{turn} {number}")
            for number, process in enumerate(processes)
        ]
        answers = at_once(
            *(partial(process.engine.fire, firings) for process, firings in zip(processes, plans, strict=True))
        )
        done = [
            (firing.schedule, fired.submitted == (firing.jobs[0].id,))
            for firings, results in zip(plans, answers, strict=True)
            for firing, fired in zip(firings, results, strict=True)
            if fired.is_done
        ]
        assert sorted(done) == [(name, True) for name in names]
        assert len(processes[0].find_ids(limit=1_000)) == len(names) * turn
        waiting = processes[0].find_ids(status=JobStatus.PENDING, limit=1_000)
        assert len(waiting) == len(names) * (turn if overlap is Overlap.ALLOW else 1)
