"""A SQLite file whose jobs move elsewhere: who is in the way, who is refused, and how it is taken back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from mainspring.engines.sqlite import SqliteEngine, database, export, schema
from mainspring.engines.sqlite.export import SqliteExport
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
def source(bench: Bench, path: Path, clock: ManualClock) -> Iterator[SqliteExport]:
    source = SqliteExport(path, clock=clock)
    source.open()
    yield source
    source.close()


def test_a_process_with_the_file_open_is_refused_until_it_is_taken_back(
    bench: Bench, source: SqliteExport
) -> None:
    bench.submit("before")
    source.begin("move", TARGET)
    for act in (lambda: bench.submit("after"), bench.find_ids, bench.enroll, bench.engine.counts):
        with pytest.raises(StoreMoved, match="are being moved to nats://") as raised:
            act()
        assert raised.value.target == TARGET
    source.finish()
    with pytest.raises(StoreMoved, match=r"were moved to .*; use that URL from now on"):
        bench.find_ids()
    source.unmark()
    bench.submit("after")
    assert bench.find_ids() == ["before", "after"]
    assert source.move() is None


def test_a_process_that_opens_the_file_later_is_refused(source: SqliteExport, path: Path) -> None:
    source.begin("move", TARGET)
    with pytest.raises(StoreMoved, match=f"mainspring migrate sqlite:///{path}"):
        SqliteEngine(path).open(lambda: None)


def test_an_export_opens_a_file_that_another_process_marks_meanwhile(
    source: SqliteExport, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.begin("move", TARGET)
    looks = iter([False])  # the first look was before the mark
    really = schema.is_moved
    monkeypatch.setattr(database, "is_moved", lambda connection: next(looks, really(connection)))
    other = SqliteExport(path)
    other.open()
    state = other.move()
    other.close()
    assert state is not None
    assert state.id == "move"


def test_an_older_process_takes_the_file_for_too_new(
    bench: Bench, source: SqliteExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit("before")
    source.begin("move", TARGET)
    monkeypatch.setattr(schema, "is_moved", lambda _: False)  # it does not know the mark
    with pytest.raises(StoreTooNew):
        bench.submit("after")


def test_the_mark_is_made_once_and_taken_back_once(source: SqliteExport) -> None:
    source.begin("move", TARGET)
    source.begin("another", "elsewhere")  # another process was quicker
    state = source.move()
    assert state is not None
    assert (state.id, state.target) == ("move", TARGET)
    source.unmark()
    source.unmark()
    assert source.move() is None


def test_a_living_worker_is_in_the_way(bench: Bench, source: SqliteExport) -> None:
    worker = bench.enroll()
    assert source.live_workers() == ["tester"]
    with pytest.raises(EngineUnavailable, match="it has live workers: tester; stop them, then migrate"):
        source.begin("move", TARGET)
    bench.engine.leave(worker)
    source.begin("move", TARGET)


def test_jobs_of_a_worker_that_died_are_rescued(bench: Bench, source: SqliteExport, path: Path) -> None:
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
    source = SqliteExport(copy, clock=clock)
    source.open()
    with pytest.raises(EngineUnavailable, match="it has live workers"):
        source.begin("move", TARGET)
    clock.jump(STALE_SECONDS + 1)
    source.begin("move", TARGET)
    assert [job.record.crashes for job in source.jobs(0, 10)] == [1]
    source.close()


def test_jobs_come_in_pages_in_the_order_of_submission(
    bench: Bench, source: SqliteExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"job {number}" for number in range(25)]
    for job_id in ids:
        bench.submit(job_id, payload=b'"' + b"x" * 100 + b'"', after=-len(job_id))
    bench.cancel("job 3")
    monkeypatch.setattr(export, "MAX_PAGE_BYTES", 500)
    found: list[str] = []
    place = 0
    while page := source.jobs(place, 10):
        assert len(page) <= 5
        found += [job.record.id for job in page]
        place = page[-1].place
    assert found == [job_id for job_id in ids if job_id != "job 3"]
    assert source.count_jobs_until(place) == 24


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
    source = SqliteExport(old)
    source.open()
    source.begin("move", TARGET)
    assert [(job.record.id, job.turn) for job in source.jobs(0, 10)] == [("old", 5)]
    source.close()
    shutil.copy(old, tmp_path / "copy.db")
    with pytest.raises(StoreMoved):
        SqliteEngine(tmp_path / "copy.db").open(lambda: None)
