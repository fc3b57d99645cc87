"""The history of activity in SQLite files: it is bounded, and is written with transactions that happen anyway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.engines.sqlite import SqliteEngine, activity
from mainspring.jobs.activity import MINUTE, OTHER, EngineNote
from mainspring.jobs.activity_rows import HOUR, ActivityBatch, ActivityCount, rows_of
from mainspring.jobs.engine import Retention
from mainspring.testing import ManualClock

FOR_EVER = Retention(None, None, None)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "jobs.db", clock=ManualClock())
    engine.open(lambda: None)
    yield engine
    engine.close()


class Sender:
    """A process that stores counts of submits."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._number = 0

    def send(self, *counts: tuple[int, str, int]) -> None:
        self._number += 1
        rows = tuple(ActivityCount(start, "mail", type_, "submitted", "", 0, n) for start, type_, n in counts)
        self._engine.record_activity(ActivityBatch("process", self._number, rows))


def prune(engine: SqliteEngine) -> None:
    while engine.prune(FOR_EVER).is_more:
        pass


def submitted(engine: SqliteEngine) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows_of(engine.activity(0, engine.now() + HOUR)):
        counts[row.type] = counts.get(row.type, 0) + row.submitted
    return counts


def rows(engine: SqliteEngine, table: str) -> int:
    with engine._database.reader() as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").get)


def test_beyond_a_number_of_types_the_others_are_counted_together(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "MAX_PAIRS", 3)
    sender, now = Sender(engine), engine.now()
    sender.send((now, "a", 1), (now, "b", 2))
    sender.send((now, "c", 4), (now, "d", 8))
    sender.send((now, "a", 16), (now, "e", 32))
    assert submitted(engine) == {"a": 17, "b": 2, "c": 4, OTHER: 40}


def test_too_many_minutes_are_added_up_earlier(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_ROWS", 100)
    sender, now = Sender(engine), engine.now() // HOUR * HOUR
    for minute in range(300):
        sender.send((now - minute * MINUTE, "a", 1))
    prune(engine)
    assert 100 <= rows(engine, "activity") <= 160
    assert submitted(engine) == {"a": 300}
    assert rows(engine, "activity_hours") == 3


def test_the_last_two_hours_stay_minutes(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_ROWS", 1)
    sender, now = Sender(engine), engine.now() // HOUR * HOUR
    sender.send(*((now - minute * MINUTE, "a", 1) for minute in range(61)))
    prune(engine)
    assert (rows(engine, "activity"), rows(engine, "activity_hours")) == (61, 0)


def test_too_many_hours_are_deleted_earlier(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_ROWS", 5)
    monkeypatch.setattr(activity, "MAX_SERIES", 0)
    sender, now = Sender(engine), engine.now()
    sender.send(*((now - hour * HOUR, "old" if hour > 15 else "new", 1) for hour in range(3, 20)))
    prune(engine)
    engine.prune(FOR_EVER)
    assert rows(engine, "activity_hours") == 6  # the hour of the sixth row stays, too
    assert list(submitted(engine)) == ["new"]
    assert rows(engine, "activity_series") == 1


def test_senders_are_forgotten_after_a_day(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = SqliteEngine(tmp_path / "jobs.db", clock=clock)
    engine.open(lambda: None)
    Sender(engine).send((engine.now(), "a", 1))
    prune(engine)
    assert rows(engine, "activity_senders") == 1
    clock.jump(25 * 3600)
    prune(engine)
    assert rows(engine, "activity_senders") == 0
    engine.close()


def test_a_rollback_drops_the_notes_of_its_unit(engine: SqliteEngine) -> None:
    note = EngineNote("expired", "mail", "send")
    with suppress(RuntimeError), engine.unit(durable=False):
        engine._store.notes.add(note)
        raise RuntimeError
    assert engine.take_notes() == []
    with engine.unit(durable=False):
        engine._store.notes.add(note)
        assert engine.take_notes() == []  # it may still be rolled back
    assert engine.take_notes() == [note]


def test_a_rollback_drops_counts(engine: SqliteEngine) -> None:
    now = engine.now()
    count = ActivityCount(now, "mail", "send", "submitted", "", 0, 1)
    with suppress(RuntimeError), engine.unit(durable=False):
        engine.record_activity(ActivityBatch("process", 1, (count,)))
        raise RuntimeError
    assert submitted(engine) == {}
    engine.record_activity(ActivityBatch("process", 1, (count,)))
    assert submitted(engine) == {"send": 1}


def test_a_process_that_only_submits_stores_its_counts_when_it_closes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Mainspring(url) as app:

        @app.job(queue="mail")
        def send() -> None: ...

        for _ in range(3):
            send.submit()
    engine = SqliteEngine(tmp_path / "jobs.db")
    engine.open(lambda: None)
    assert sum(submitted(engine).values()) == 3
    engine.close()


def test_jobs_are_stored_although_the_history_is_damaged(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db")
    engine.open(lambda: None)
    with engine.unit(durable=False):
        engine._database.write("DROP TABLE activity_series")
    engine.close()
    with Mainspring(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.job
        def ping() -> None: ...

        ids = [ping.submit().id]
        ids += ping.submit_many([()] * 3)  # the io thread makes this transaction, and tries to store counts in it
        ids += ping.submit_many([()] * 3)
        assert [app.get(job_id).status for job_id in ids] == ["PENDING"] * 7
