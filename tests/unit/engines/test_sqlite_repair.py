"""What a sweep sets right: rows of processes of an older version, and a clock that was set back."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import apsw
import pytest

from mainspring import StoreTooNew
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.schema import VERSION
from mainspring.jobs.commands import PutLimit, Reschedule
from mainspring.jobs.engine import Pruned, Retention
from mainspring.jobs.records import SUSPECT_CRASHES, Cause, OutcomeKind
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench, seconds
from tests.unit.engines.store_invariants import check_invariants


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    clock = ManualClock()
    bench = Bench(SqliteEngine(tmp_path / "jobs.db", clock=clock), clock)
    yield bench
    bench.engine.close()


def test_a_job_of_a_process_of_version_one_is_found_and_starts_when_it_is_due(
    bench: Bench, tmp_path: Path
) -> None:
    bench.submit("new", after=10)
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute(
        "INSERT INTO jobs (id, lane, due, created, payload, codec) "
        "SELECT 'old', lane, due, created, '{}', 'json' FROM jobs"
    )
    connection.close()
    worker = bench.enroll()
    bench.engine.sweep(worker)
    assert bench.take_ids(worker) == []
    bench.pass_time(10)
    assert sorted(bench.take_ids(worker)) == ["new", "old"]


def test_a_process_does_not_go_on_with_a_file_that_a_newer_one_has_migrated(bench: Bench, tmp_path: Path) -> None:
    bench.submit("before")
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.pragma("user_version", VERSION + 1)
    connection.close()
    with pytest.raises(StoreTooNew, match=f"version {VERSION + 1}"):
        bench.submit("after")
    assert bench.find_ids() == ["before"]


def test_an_expiry_that_an_earlier_version_has_left_to_a_job_that_had_started_has_no_effect(
    bench: Bench, tmp_path: Path
) -> None:
    worker, lease = bench.begin("started", expires=20)
    assert bench.settle(worker, lease, OutcomeKind.SNOOZED, due=bench.now + seconds(60))
    bench.submit("late", after=10, expires=20)
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute("UPDATE jobs SET expires = (SELECT expires FROM jobs WHERE id = 'late')")
    connection.close()
    bench.pass_time(30)
    assert bench.take(worker) == []
    assert (bench.status("started"), bench.status("late")) == (JobStatus.PENDING, JobStatus.FAILED)
    assert bench.look(worker).next_look is None
    bench.pass_time(30)
    assert bench.take_ids(worker) == ["started"]


def test_jobs_under_limits_go_on_after_the_clock_was_set_back(bench: Bench) -> None:
    bench.engine.arrange([PutLimit("rate", 1, seconds(1)), PutLimit("by key", 1, None)])
    bench.submit("a", "b", limits=("rate\x1f",), after=-86_400)
    bench.submit("c", "d", limits=("by key\x1fkey",), after=-86_400)
    worker = bench.enroll()
    bench.engine.sweep(worker)
    leases = bench.take(worker)
    assert sorted(lease.id for lease in leases) == ["a", "c"]
    for lease in leases:
        bench.complete(worker, lease)
    bench.clock.step_wall(-3_600)
    bench.engine.sweep(worker)
    bench.pass_time(1)
    assert sorted(bench.take_ids(worker)) == ["b", "d"]


def test_a_clock_that_was_ahead_before_a_restart_does_no_harm(tmp_path: Path) -> None:
    clock = ManualClock()
    before = Bench(SqliteEngine(tmp_path / "jobs.db", clock=clock), clock)
    before.engine.arrange([PutLimit("rate", 1, seconds(1))])
    before.submit("a", "b", limits=("rate\x1f",), after=-86_400)
    worker, lease = before.take_by_new_worker()
    before.complete(worker, lease)
    before.engine.leave(worker)
    before.engine.close()
    clock.step_wall(-3_600)
    after = Bench(SqliteEngine(tmp_path / "jobs.db", clock=clock), clock)
    worker = after.enroll()
    after.engine.sweep(worker)
    after.pass_time(2)
    assert after.take_ids(worker) == ["b"]
    after.engine.close()


def test_a_raised_number_of_jobs_to_keep_holds_at_once(bench: Bench) -> None:
    for number in range(20):
        bench.end(f"job {number}", JobStatus.COMPLETED)
    keep_few = Retention(None, None, None, most=1)
    with patch("mainspring.engines.sqlite.pruning.MAX_DELETED", 5):
        assert bench.engine.prune(keep_few) == Pruned(5, is_more=True)
        assert bench.engine.prune(Retention(None, None, None, most=15)) == Pruned(0, is_more=False)
    assert len(bench.find_ids()) == 15


def test_a_rate_that_has_become_a_limit_of_another_kind_causes_no_vain_poll(bench: Bench) -> None:
    bench.engine.arrange([PutLimit("all", 1, seconds(3_600))])
    bench.submit("a", "b", limits=("all\x1f",))
    worker = bench.enroll()
    assert bench.look(worker).next_look is not None
    bench.engine.arrange([PutLimit("all", 1, None)])
    assert bench.look(worker).next_look is None


def test_a_queue_that_is_resumed_uses_the_places_that_are_free(bench: Bench) -> None:
    bench.engine.arrange([PutLimit("all", 1, None)])
    bench.submit("a", "b", limits=("all\x1f",), queue="mail")
    worker = bench.enroll()
    (lease,) = bench.take(worker)
    bench.take(worker)
    bench.pause("mail")
    bench.complete(worker, lease)
    bench.resume("mail")
    check_invariants(Path(str(bench.engine.description).removeprefix("SQLite file ")))
    assert bench.take_ids(worker) == ["b"]


def test_tokens_for_a_paused_queue_cause_no_vain_poll(bench: Bench) -> None:
    bench.engine.arrange([PutLimit("rate", 1_000, seconds(1))])
    bench.submit(*(f"{number}" for number in range(1_001)), limits=("rate\x1f",))
    worker = bench.enroll()
    assert len(bench.take(worker, starts=2_000)) == 1_000
    bench.pause("default")
    bench.pass_time(1)
    taken = bench.look(worker)
    assert taken.leases == []
    assert taken.next_look is not None
    assert taken.next_look >= bench.now + seconds(1)
    bench.resume("default")
    assert len(bench.take(worker)) == 1


def test_a_take_brings_one_suspect_though_limits_make_it_look_twice(bench: Bench) -> None:
    bench.engine.arrange([PutLimit("all", 5, None)])
    worker = bench.enroll()
    for name in ("first", "second"):
        bench.submit(name)
        for _ in range(SUSPECT_CRASHES):
            (lease,) = bench.take(worker)
            assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now, cause=Cause.CRASH, error="died")
        bench.engine.change([Reschedule(name, bench.now + seconds(60))])
    bench.pass_time(60)
    bench.submit("limited", limits=("all\x1f",))
    assert sorted(bench.take_ids(worker)) == ["first", "limited"]


def test_events_without_a_follower_are_forgotten(bench: Bench) -> None:
    place = bench.engine.listen(bench.now + seconds(60))
    bench.submit("job")
    forever = Retention(None, None, None)
    bench.engine.prune(forever)
    assert len(bench.engine.events(place, 10).events) == 1
    bench.pass_time(61)
    bench.engine.prune(forever)
    assert bench.engine.events(place, 10).events == []
