"""What a sweep sets right: rows of processes of an older version, and a clock that was set back."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from mainspring import StoreTooNew
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.schema import VERSION
from mainspring.jobs.engine import PutLimit
from mainspring.testing import ManualClock
from mainspring.testing.engine_bench import Bench, seconds


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
    assert sorted(bench.take_ids(worker)) == ["b", "d"]
