"""A SQLite file whose jobs move elsewhere: who is in the way, who is refused, and how it is taken back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from mainspring.engines.sqlite import SqliteEngine, database, departing, schema
from mainspring.engines.sqlite.departing import Departure
from mainspring.errors import EngineUnavailable, StoreMoved, StoreTooNew
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import STALE_SECONDS, Bench

TARGET = "nats://127.0.0.1:4222?prefix=shop"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def bench(path: Path, clock: ManualClock) -> Iterator[Bench]:
    bench = Bench(SqliteEngine(path, clock=clock, durability="normal"), clock)
    yield bench
    bench.engine.close()


@pytest.fixture
def source(bench: Bench, path: Path, clock: ManualClock) -> Iterator[Departure]:
    source = Departure(path, clock=clock)
    source.open()
    yield source
    source.close()


def test_a_process_with_the_file_open_is_refused_until_it_is_taken_back(bench: Bench, source: Departure) -> None:
    bench.submit("before")
    source.begin("move", TARGET)
    for act in (lambda: bench.submit("after"), bench.find_ids, bench.enroll, bench.engine.counts):
        with pytest.raises(StoreMoved, match="are being moved to nats://") as raised:
            act()
        assert raised.value.target == TARGET
    source.finish()
    with pytest.raises(StoreMoved, match=r"were moved to .*; use that URL from now on"):
        bench.find_ids()
    source.take_back()
    bench.submit("after")
    assert bench.find_ids() == ["before", "after"]
    assert source.state() is None


def test_a_process_that_opens_the_file_later_is_refused(source: Departure, path: Path) -> None:
    source.begin("move", TARGET)
    with pytest.raises(StoreMoved, match=f"mainspring migrate sqlite:///{path}"):
        SqliteEngine(path).open(lambda: None)


def test_a_mover_opens_a_file_that_is_marked_in_that_very_instant(
    source: Departure, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.begin("move", TARGET)
    looks = iter([False])  # the first look was before the mark
    really = schema.is_moved
    monkeypatch.setattr(database, "is_moved", lambda connection: next(looks, really(connection)))
    other = Departure(path)
    other.open()
    state = other.state()
    other.close()
    assert state is not None
    assert state.id == "move"


def test_an_older_process_takes_the_file_for_too_new(
    bench: Bench, source: Departure, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit("before")
    source.begin("move", TARGET)
    monkeypatch.setattr(schema, "is_moved", lambda _: False)  # it does not know the mark
    with pytest.raises(StoreTooNew):
        bench.submit("after")


def test_the_mark_is_made_once_and_taken_back_once(source: Departure) -> None:
    source.begin("move", TARGET)
    source.begin("another", "elsewhere")  # another process was quicker
    state = source.state()
    assert state is not None
    assert (state.id, state.target) == ("move", TARGET)
    source.take_back()
    source.take_back()
    assert source.state() is None


def test_a_living_worker_is_in_the_way(bench: Bench, source: Departure) -> None:
    worker = bench.enroll()
    assert source.living_workers() == ["tester"]
    with pytest.raises(EngineUnavailable, match="worker tester works on it; stop it, then move"):
        source.begin("move", TARGET)
    bench.engine.leave(worker)
    source.begin("move", TARGET)


def test_jobs_of_a_worker_that_died_are_rescued(bench: Bench, source: Departure, path: Path) -> None:
    bench.submit("ran", "waited")
    worker = bench.enroll()
    assert len(bench.take(worker, starts=1)) == 1
    bench.engine.close()  # and with it the lock of the worker
    source.begin("move", TARGET)
    records = {job.record.id: job.record for job in source.jobs(0, 10)}
    assert [record.status for record in records.values()] == [JobStatus.PENDING] * 2
    assert (records["ran"].crashes, records["waited"].crashes) == (1, 0)


def test_a_worker_without_a_lock_is_judged_by_its_heartbeat(
    bench: Bench, path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    bench.begin("job")
    copy = tmp_path / "elsewhere" / "shop.db"
    copy.parent.mkdir()
    bench.engine.backup(str(copy))  # as brought from another machine, where its worker may still live
    source = Departure(copy, clock=clock)
    source.open()
    with pytest.raises(EngineUnavailable, match="works on it"):
        source.begin("move", TARGET)
    clock.jump(STALE_SECONDS + 1)
    source.begin("move", TARGET)
    assert [job.record.crashes for job in source.jobs(0, 10)] == [1]
    source.close()


def test_jobs_come_in_pages_in_the_order_of_submission(
    bench: Bench, source: Departure, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"job {number}" for number in range(25)]
    for job_id in ids:
        bench.submit(job_id, payload=b'"' + b"x" * 100 + b'"', after=-len(job_id))
    bench.cancel("job 3")
    monkeypatch.setattr(departing, "MOST_BYTES", 500)
    found: list[str] = []
    place = 0
    while page := source.jobs(place, 10):
        assert len(page) <= 5
        found += [job.record.id for job in page]
        place = page[-1].place
    assert found == [job_id for job_id in ids if job_id != "job 3"]
    assert source.count_until(place) == 24


def test_a_file_of_an_older_version_is_brought_up_to_date_first(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    connection = apsw.Connection(str(old))
    connection.execute(schema.MIGRATIONS[0])
    connection.execute("INSERT INTO lanes VALUES (1, 'default', 'ping', 1)")
    connection.execute(
        "INSERT INTO jobs (id, lane, due, created, payload, codec) VALUES ('old', 1, 5, 4, '{}', 'json')"
    )
    connection.pragma("application_id", schema.APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.close()
    source = Departure(old)
    source.open()
    source.begin("move", TARGET)
    assert [(job.record.id, job.turn) for job in source.jobs(0, 10)] == [("old", 5)]
    source.close()
    shutil.copy(old, tmp_path / "copy.db")
    with pytest.raises(StoreMoved):
        SqliteEngine(tmp_path / "copy.db").open(lambda: None)
