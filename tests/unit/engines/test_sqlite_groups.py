"""Groups in the SQLite engine: what one take starts of them, and how they are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.engines.sqlite import SqliteEngine, group_names
from mainspring.engines.sqlite.groups import limits_of, number_of, to_group
from mainspring.jobs.limits import bucket_of
from mainspring.testing import ManualClock
from mainspring.testing.engine_bench import START_LEAD_SECONDS, Bench
from tests.unit.engines.crashes import opened

FAMILY = "by tenant"
NUMBER = 8_515_796_420_110_386_037  # files keep it


def of(tenant: str) -> tuple[str, ...]:
    return (bucket_of(FAMILY, tenant),)


def submit(bench: Bench, **jobs: int) -> None:
    """Store so many jobs of each tenant, one tenant after another."""
    bench.limit(FAMILY, 100)
    for tenant, number in jobs.items():
        bench.submit(*(f"{tenant}{place}" for place in range(number)), limits=of(tenant), after=-1)


def test_tenants_start_in_turns_within_one_take(bench: Bench) -> None:
    submit(bench, a=4, b=1, c=2)
    assert bench.take_ids(bench.enroll()) == ["a0", "b0", "c0", "a1", "c1", "a2", "a3"]


def test_a_worker_gets_as_many_as_it_has_room_for_and_those_who_come_first_get_more(bench: Bench) -> None:
    submit(bench, a=9, b=9, c=9)
    assert bench.take_ids(bench.enroll(), starts=8) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2"]


def test_what_others_cannot_use_goes_to_whoever_has_more(bench: Bench) -> None:
    submit(bench, a=9, b=1)
    assert len(bench.take(bench.enroll(), starts=8)) == 8


def test_within_a_tenant_the_first_due_start_first(bench: Bench) -> None:
    bench.limit(FAMILY, 3)
    for job_id, after in {"third": -1, "second": -2, "first": -3, "fourth": -1}.items():
        bench.submit(job_id, limits=of("a"), after=after)
    assert bench.take_ids(bench.enroll()) == ["first", "second", "third"]


def test_that_there_is_more_is_told_however_long_the_take_takes(path: Path, clock: ManualClock) -> None:
    is_slow = False

    def probe(when: str, _sql: str) -> None:
        if is_slow and when == "before":
            clock.jump(2 * START_LEAD_SECONDS)

    bench = Bench(SqliteEngine(path, clock=clock, probe=probe), clock)
    submit(bench, a=9, b=9)
    worker = bench.enroll()
    is_slow = True
    taken = bench.look(worker, starts=4)
    bench.engine.close()
    assert len(taken.leases) == 4
    assert taken.is_more


def test_a_take_that_leaves_jobs_behind_wakes_nobody(bench: Bench) -> None:
    submit(bench, a=9, b=9)
    worker, wakes = bench.enroll(), bench.wakes
    bench.take(worker, starts=4)
    assert bench.wakes == wakes


def test_leases_have_the_limits_of_their_jobs_though_few_groups_are_remembered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_names, "REMEMBERED", 2)
    submit(bench, a=2, b=2, c=2, d=2)
    worker = bench.enroll()
    leases = [lease for _ in range(4) for lease in bench.take(worker, starts=2)]
    assert {lease.id: lease.limits for lease in leases} == {
        f"{tenant}{place}": of(tenant) for tenant in "abcd" for place in range(2)
    }


def test_leases_have_the_limits_of_their_jobs_in_a_process_that_has_not_stored_them(
    bench: Bench, path: Path, clock: ManualClock
) -> None:
    submit(bench, a=1, b=1)
    with opened(path, clock) as other:
        leases = other.take(other.enroll())
    assert {lease.id: lease.limits for lease in leases} == {"a0": of("a"), "b0": of("b")}


def test_the_number_of_a_group_follows_from_its_name_for_ever() -> None:
    group = to_group(1, of("a"))
    assert limits_of(group) == of("a")
    assert number_of(group) == NUMBER
    assert number_of(to_group(1, ())) is None


def test_groups_of_other_lanes_and_limits_have_other_numbers() -> None:
    groups = [to_group(lane, of(tenant)) for lane in (1, 2) for tenant in "ab"]
    assert len({number_of(group) for group in groups}) == 4
