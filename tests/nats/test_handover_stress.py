"""Processes that die, lose replies and race at any step of a hand-over, against an oracle.

No sequence runs two jobs at once or out of order, no limit is exceeded, and every job ends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring.engines.nats.write_batch import Write
from mainspring.errors import EngineUnavailable
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Lease, Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.fault_bench import FaultBench, MakeBench
from tests.support import amount

pytestmark = [pytest.mark.stress, pytest.mark.long]

SEEDS = amount([1, 2], thorough=[1, 2, 3, 4, 5, 6])
STEPS = amount(60, thorough=150)
KEYS: dict[str, dict[str, Any]] = {
    "x": {"sequence": "x"},
    "y": {"sequence": "y"},
    "a": {"limits": (bucket_of("by tenant", "a"),)},
    "b": {"limits": (bucket_of("by tenant", "b"),)},
}
AT_ONCE = {"x": 1, "y": 1, "a": 2, "b": 2}
MAX_CRASHES = 1_000


class Killed(Exception):
    """The process has died."""


class Process:
    """One process with a worker, which may die or fail at any of its next writes."""

    def __init__(self, bench: FaultBench) -> None:
        self.bench = bench
        self.worker = bench.enroll()
        self.leases: dict[str, Lease] = {}
        self._store = bench.jetstream.store_each
        self._fault: tuple[int, type[Exception]] | None = None
        vars(bench.jetstream)["store_each"] = self._store_each

    def fail_at(self, number: int, error: type[Exception]) -> None:
        """Fail with the next writes but so many: before they are stored, or after some of them are."""
        self._fault = (number, error)

    def _store_each(self, writes: Sequence[Write]) -> list[int | None]:
        if self._fault is None:
            return self._store(writes)
        number, error = self._fault
        self._fault = (number - 1, error)
        if number > 0:
            return self._store(writes)
        self._fault = None
        self._store(writes[: len(writes) // 2]) if writes[: len(writes) // 2] else None
        raise self.bench.jetstream.unavailable("no answer") if error is EngineUnavailable else error

    def take(self) -> None:
        for lease in self.bench.take(self.worker, starts=3, ahead=0):
            self.leases[lease.id] = lease

    def settle(self, leases: list[Lease], kind: OutcomeKind) -> None:
        answers = self.bench.engine.settle(self.worker, [Outcome(lease, kind) for lease in leases])
        for lease, is_accepted in zip(leases, answers, strict=True):
            assert is_accepted, lease.id
            del self.leases[lease.id]


class Fleet:
    """Some processes, and the oracle."""

    def __init__(self, make: MakeBench, seed: int) -> None:
        self._make = make
        self.choice = random.Random(seed)
        self.processes = [Process(make()) for _ in range(3)]
        self.jobs: dict[str, str] = {}
        self.started: dict[str, list[str]] = {key: [] for key in KEYS}

    def submit(self) -> None:
        key = self.choice.choice([*KEYS])
        names = [f"{key}{len(self.jobs) + number:03}" for number in range(self.choice.randint(1, 4))]
        self.jobs |= dict.fromkeys(names, key)
        self.choice.choice(self.processes).bench.submit(*names, **KEYS[key])

    def take(self, process: Process) -> None:
        before = set(process.leases)
        process.take()
        for job_id in process.leases.keys() - before:
            own = self.started[self.jobs[job_id]]
            if job_id not in own:
                own.append(job_id)
        running = Counter(self.jobs[job_id] for each in self.processes for job_id in each.leases)
        assert all(running[key] <= most for key, most in AT_ONCE.items()), running

    def settle(self, process: Process) -> None:
        leases = [lease for lease in process.leases.values() if self.choice.random() < 0.7]
        if not leases:
            return
        kind = self.choice.choice([OutcomeKind.COMPLETED] * 4 + [OutcomeKind.FAILED, OutcomeKind.HANDED_BACK])
        fault = self.choice.choice([None, None, None, Killed, EngineUnavailable, "reply"])
        if fault == "reply":
            process.bench.lose_reply(self.choice.choice(["job", "gate", "ready"]))
        elif isinstance(fault, type):
            process.fail_at(self.choice.randrange(3), fault)
        try:
            process.settle(leases, kind)
        except EngineUnavailable:
            process.settle(leases, kind)  # the worker sends them again
        except Killed:
            self.kill(process)
        process.fail_at(1_000_000, Killed)

    def kill(self, process: Process) -> None:
        self.processes.remove(process)
        process.bench.die()
        self.processes.append(Process(self._make()))

    def cancel(self) -> None:
        if self.jobs:
            job_id = self.choice.choice([*self.jobs])
            self.choice.choice(self.processes).bench.cancel(job_id)

    def step(self) -> None:
        process = self.choice.choice(self.processes)
        match self.choice.choice(["submit", "take", "take", "settle", "settle", "cancel"]):
            case "submit":
                self.submit()
            case "take":
                self.take(process)
            case "settle":
                self.settle(process)
            case _:
                self.cancel()

    def finish_some(self) -> bool:
        """Let all processes run what they have; return whether every job has ended."""
        for process in self.processes:
            self.take(process)
            if process.leases:
                process.settle([*process.leases.values()], OutcomeKind.COMPLETED)
        bench = self.processes[0].bench
        return all(bench.status(job_id) not in (JobStatus.PENDING, JobStatus.RUNNING) for job_id in self.jobs)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_jobs_end_in_order_and_within_their_limits(
    make_bench: MakeBench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.engines.nats.repair.MAX_CRASHES", MAX_CRASHES)
    fleet = Fleet(make_bench, seed)
    fleet.processes[0].bench.limit("by tenant", 2)
    for _ in range(STEPS):
        fleet.step()
    bench = fleet.processes[0].bench
    assert bench.eventually(fleet.finish_some)
    for key in ("x", "y"):
        assert fleet.started[key] == sorted(fleet.started[key])

    def are_limiters_idle() -> bool:
        return not any(message.data for _, message in bench.jetstream.scan(f"{bench.names.prefix}.gate.>"))

    assert bench.eventually(are_limiters_idle)
