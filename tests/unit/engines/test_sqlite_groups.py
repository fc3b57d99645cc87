"""Groups in the SQLite engine: what one take starts of them, and how they are told apart."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from mainspring.engines.sqlite import SqliteEngine, waiting_groups
from mainspring.engines.sqlite.codec import limits_of, number_of, to_group
from mainspring.jobs.commands import ChangeLimits, Delete, Reschedule
from mainspring.jobs.engine import Retention
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, OutcomeKind, Query
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import START_LEAD_SECONDS, Bench, seconds
from tests.unit.engines.crash_points import opened
from tests.unit.engines.store_invariants import check_invariants, connected

FAMILY = "by tenant"
PAGE = 4_096 + 24  # in the log
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


def test_room_that_others_cannot_use_goes_to_the_group_that_has_more(bench: Bench) -> None:
    submit(bench, a=9, b=1)
    assert len(bench.take(bench.enroll(), starts=8)) == 8


def test_within_a_tenant_the_first_due_start_first(bench: Bench) -> None:
    bench.limit(FAMILY, 3)
    for job_id, after in {"third": -1, "second": -2, "first": -3, "fourth": -1}.items():
        bench.submit(job_id, limits=of("a"), after=after)
    assert bench.take_ids(bench.enroll()) == ["first", "second", "third"]


def test_no_job_starts_past_a_head_that_waits_while_a_suspect_of_its_group_starts(
    bench: Bench, path: Path
) -> None:
    bench.limit(FAMILY, 2)
    bench.submit("suspect", limits=of("a"), after=-3)
    worker = bench.enroll()
    for _ in range(2):
        (lease,) = bench.take(worker)
        bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now - seconds(3), cause=Cause.CRASH)
    bench.submit("x", "y", limits=of("b"), after=-3)
    assert bench.take_ids(worker, suspects=False) == ["x", "y"]
    bench.submit("refused", limits=of("b"), after=-2)
    bench.submit("head", "next", limits=of("a"), after=-1)
    assert bench.take_ids(worker, starts=2) == ["suspect", "head"]
    check_invariants(path)


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


def test_a_claim_that_leaves_jobs_behind_wakes_no_worker(bench: Bench) -> None:
    submit(bench, a=9, b=9)
    worker, wakes = bench.enroll(), bench.wakes
    bench.take(worker, starts=4)
    assert bench.wakes == wakes


def test_leases_have_the_limits_of_their_jobs_though_few_groups_are_remembered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_groups, "CACHE_SIZE", 2)
    submit(bench, a=2, b=2, c=2, d=2)
    worker = bench.enroll()
    leases = [lease for _ in range(4) for lease in bench.take(worker, starts=2)]
    assert {lease.id: lease.limits for lease in leases} == {
        f"{tenant}{place}": of(tenant) for tenant in "abcd" for place in range(2)
    }


def test_so_they_have_when_a_take_needs_several_rounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_groups, "CACHE_SIZE", 1)
    bench.limit(FAMILY, 1)
    worker = bench.enroll()
    bench.submit("runs", limits=of("full"), after=-3)
    assert bench.take_ids(worker) == ["runs"]
    for job_id, tenant in {"first": "a", "refused": "full", "second": "b"}.items():
        bench.submit(job_id, limits=of(tenant), after=-1)
    leases = bench.take(worker, starts=2)
    assert {lease.id: lease.limits for lease in leases} == {"first": of("a"), "second": of("b")}


def test_leases_have_the_limits_of_their_jobs_in_a_process_that_has_not_stored_them(
    bench: Bench, path: Path, clock: ManualClock
) -> None:
    submit(bench, a=1, b=1)
    with opened(path, clock) as other:
        leases = other.take(other.enroll())
    assert {lease.id: lease.limits for lease in leases} == {"a0": of("a"), "b0": of("b")}


def test_a_job_that_is_given_back_starts_in_its_place_though_others_behind_it_have_ended(bench: Bench) -> None:
    submit(bench, a=5)
    worker = bench.enroll()
    first, second, third = bench.take(worker, starts=3)
    bench.complete(worker, third)
    for lease in (second, first):
        assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
    assert bench.take_ids(worker) == ["a0", "a1", "a3", "a4"]


def test_a_job_that_is_due_before_those_that_have_started_is_found_and_is_the_next(bench: Bench) -> None:
    submit(bench, a=4)
    worker = bench.enroll()
    assert len(bench.take(worker, starts=2)) == 2
    bench.submit("late", limits=of("a"), after=-60)
    bench.submit("last", limits=of("a"))
    assert bench.take_ids(worker) == ["late", "a2", "a3", "last"]


def test_jobs_that_never_start_keep_no_other_waiting(bench: Bench) -> None:
    submit(bench, a=6)
    bench.cancel("a0")
    bench.cancel("a3")
    bench.engine.change([Reschedule("a1", bench.now + seconds(60)), ChangeLimits("a4", of("b"))])
    assert bench.take_ids(bench.enroll()) == ["a2", "a4", "a5"]


def test_a_group_is_forgotten_with_the_last_of_its_jobs(bench: Bench, path: Path) -> None:
    submit(bench, a=2, b=1)
    worker = bench.enroll()
    for lease in bench.take(worker):
        bench.complete(worker, lease)
    bench.engine.change([Delete("a0"), Delete("b0")])
    assert names_of_groups(path) == {of("a")}
    assert [record.limits for record in bench.engine.find(Query()).records] == [of("a")]
    bench.engine.prune(Retention(0, 0, 0))
    assert names_of_groups(path) == set()
    bench.submit("again", limits=of("a"))
    assert bench.take_ids(worker) == ["again"]


def test_jobs_that_change_their_group_take_their_count_along(bench: Bench, path: Path) -> None:
    submit(bench, a=1)
    bench.engine.change([ChangeLimits("a0", of("b"))])
    assert names_of_groups(path) == {of("b")}
    bench.engine.change([ChangeLimits("a0", ())])
    assert names_of_groups(path) == set()


def test_a_take_under_limits_changes_hardly_more_pages_than_one_without(bench: Bench, path: Path) -> None:
    tenants = [str(number) for number in range(100)]
    bench.limit(FAMILY, 100)
    plain = [bench.job(f"plain {number}", type="pong", after=-1) for number in range(2_000)]
    limited = [bench.job(str(number), limits=of(tenants[number % 100]), after=-1) for number in range(2_000)]
    bench.engine.submit(plain)
    bench.engine.submit(limited)
    worker = bench.enroll()
    pages = {}
    for kind in ("pong", "ping"):
        empty_log(path)
        assert len(bench.take(worker, kind, starts=500)) == 500
        pages[kind] = pages_of_log(path)
    assert pages["ping"] < 1.5 * pages["pong"]


def names_of_groups(path: Path) -> set[tuple[str, ...]]:
    with connected(path) as connection:
        return {limits_of(name) for (name,) in connection.execute("SELECT name FROM groups")}


def empty_log(path: Path) -> None:
    with connected(path) as connection:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def pages_of_log(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size // PAGE


def test_the_number_of_a_group_follows_from_its_name_for_ever() -> None:
    group = to_group(1, of("a"))
    assert limits_of(group) == of("a")
    assert number_of(group) == NUMBER
    assert number_of(to_group(1, ())) is None


def test_groups_of_other_lanes_and_limits_have_other_numbers() -> None:
    groups = [to_group(lane, of(tenant)) for lane in (1, 2) for tenant in "ab"]
    assert len({number_of(group) for group in groups}) == 4
