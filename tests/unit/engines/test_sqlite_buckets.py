"""Counts of buckets in the SQLite engine: kept in memory, written once for each unit, right for all processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.engines.sqlite import SqliteEngine, limits
from mainspring.jobs.commands import DropLimit
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Lease
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.unit.engines.crash_points import opened
from tests.unit.engines.store_invariants import check_invariants

AT_ONCE, PACED = "at once", "paced"


def of(tenant: str) -> tuple[str, ...]:
    return (bucket_of(AT_ONCE, tenant), bucket_of(PACED, tenant))


class CalledOff(Exception):
    """A unit is rolled back."""


class Statements:
    """What was executed."""

    def __init__(self) -> None:
        self._seen: list[str] = []

    def __call__(self, when: str, sql: str) -> None:
        if when == "before":
            self._seen.append(" ".join(sql.split()))

    def take(self, part: str) -> int:
        """Count the statements since the last time in which this occurs."""
        count = sum(part in statement for statement in self._seen)
        self._seen.clear()
        return count


@pytest.fixture
def statements() -> Statements:
    return Statements()


@pytest.fixture
def watched(path: Path, clock: ManualClock, statements: Statements) -> Iterator[Bench]:
    bench = Bench(SqliteEngine(path, clock=clock, probe=statements), clock)
    yield bench
    bench.engine.close()


def start(bench: Bench, most: int = 2, jobs: int = 8) -> tuple[int, list[Lease]]:
    """Store jobs of one tenant, and let a worker take as many as may run."""
    bench.limit(AT_ONCE, most)
    bench.limit(PACED, 1_000, per=1)
    bench.submit(*(f"{place}" for place in range(jobs)), limits=of("a"))
    worker = bench.enroll()
    return worker, bench.take(worker)


def turn_over(bench: Bench, worker: int, leases: list[Lease]) -> list[Lease]:
    """Settle and take in one unit."""
    with bench.engine.unit(durable=True):
        bench.complete(worker, *leases)
        return bench.take(worker)


def test_where_as_many_start_as_end_nothing_is_counted_in_the_file(
    watched: Bench, statements: Statements, path: Path
) -> None:
    worker, leases = start(watched)
    statements.take("")
    leases = turn_over(watched, worker, leases)
    assert len(leases) == 2
    assert statements.take("occupied") == 0
    check_invariants(path)
    watched.complete(worker, *leases)
    assert statements.take("INSERT INTO occupied") == 1
    check_invariants(path)


def test_counts_are_not_read_again_unless_another_process_has_written(
    watched: Bench, statements: Statements, path: Path, clock: ManualClock
) -> None:
    worker, leases = start(watched)
    statements.take("")
    leases = turn_over(watched, worker, leases)
    assert statements.take("FROM occupied") == 0
    with opened(path, clock) as other:
        other.submit("new")
    turn_over(watched, worker, leases)
    assert statements.take("FROM occupied") == 1


def test_two_engines_never_start_more_than_may_run(bench: Bench, path: Path, clock: ManualClock) -> None:
    worker, leases = start(bench)
    with opened(path, clock) as other:
        second = other.enroll()
        assert other.take(second) == []
        bench.complete(worker, leases[0])
        (lease,) = other.take(second)
        assert bench.take(worker) == []
        bench.complete(worker, leases[1])
        other.complete(second, lease)
        assert len(bench.take(worker)) == 2
        assert other.take(second) == []
    check_invariants(path)


def test_tokens_that_another_engine_has_spent_are_spent(bench: Bench, path: Path, clock: ManualClock) -> None:
    bench.limit(PACED, 3, per=60)
    bench.submit(*"abcd", limits=(bucket_of(PACED, "a"),))
    worker = bench.enroll()
    assert len(bench.take(worker, starts=1)) == 1
    with opened(path, clock) as other:
        assert len(other.take(other.enroll(), starts=1)) == 1
    assert len(bench.take(worker)) == 1


def test_what_a_unit_has_counted_goes_with_it(bench: Bench, path: Path) -> None:
    worker, leases = start(bench)
    with suppress(CalledOff), bench.engine.unit(durable=True):
        bench.complete(worker, *leases)
        assert len(bench.take(worker)) == 2
        raise CalledOff
    check_invariants(path)
    assert bench.take(worker) == []
    assert len(turn_over(bench, worker, leases)) == 2


def test_a_limit_may_change_between_an_end_and_a_take_of_one_unit(bench: Bench, path: Path) -> None:
    worker, leases = start(bench)
    with bench.engine.unit(durable=True):
        bench.complete(worker, leases[0])
        bench.limit(AT_ONCE, 4)
        assert len(bench.take(worker)) == 3
        bench.arrange(DropLimit(AT_ONCE))
        assert len(bench.take(worker)) == 3
    check_invariants(path)


def test_counts_are_right_though_few_are_remembered(
    bench: Bench, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CACHE_SIZE", 2)
    bench.limit(AT_ONCE, 1)
    for tenant in "abcd":
        bench.submit(f"{tenant}1", f"{tenant}2", limits=of(tenant))
    worker = bench.enroll()
    leases = bench.take(worker)
    assert [lease.id for lease in leases] == ["a1", "b1", "c1", "d1"]
    assert [lease.id for lease in turn_over(bench, worker, leases)] == ["a2", "b2", "c2", "d2"]
    check_invariants(path)
