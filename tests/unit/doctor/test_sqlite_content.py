"""Checks of what is in a SQLite file."""

from datetime import timedelta
from math import inf
from pathlib import Path

import apsw
import pytest

from mainspring import Mainspring
from mainspring.clock import SystemClock
from mainspring.doctor import sqlite_content as content
from mainspring.doctor.findings import Severity
from mainspring.engines.sqlite import read_only
from mainspring.engines.sqlite.schema import APPLICATION_ID, MIGRATIONS, VERSION
from mainspring.errors import StoreCorrupt, StoreTooNew
from tests.unit.doctor.finding_assertions import assert_finding, is_all_ok


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with some jobs."""
    path = tmp_path / "shop.db"
    with Mainspring(f"sqlite:///{path}", durability="normal") as app:

        @app.job(name="note")
        def note(text: str) -> None: ...

        note.submit_many([("x" * 900,) for _ in range(400)])
    return path


def change(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


def test_a_store_of_this_version_is_in_order(store: Path) -> None:
    clock = SystemClock()
    assert is_all_ok(content.check_schema(store))
    assert is_all_ok(content.check_journal(store))
    assert is_all_ok(content.check_integrity(store, clock, 10))
    assert is_all_ok(content.check_log(store))
    assert is_all_ok(content.check_free_pages(store))
    assert is_all_ok(content.check_times(store, clock.now()))
    assert is_all_ok(content.check_activity(store, clock.now()))
    assert content.why_not_open(store) is None


def test_an_older_schema_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    change(path, MIGRATIONS[0])
    change(path, f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1; PRAGMA journal_mode = wal")
    finding = assert_finding(content.check_schema(path), Severity.INFO, "version 1", f"is {VERSION}")
    assert "backup" in finding.remedy
    assert content.why_not_open(path) == "opening the file would migrate its schema"
    assert apsw.Connection(str(path)).pragma("user_version") == 1


def test_a_newer_schema_and_the_files_of_others_are_refused(store: Path, tmp_path: Path) -> None:
    change(store, f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreTooNew):
        content.check_schema(store)
    assert content.why_not_open(store) == "the file cannot be read"
    other = tmp_path / "other.db"
    change(other, "CREATE TABLE cats (name)")
    with pytest.raises(StoreCorrupt):
        content.check_schema(other)
    other.write_bytes(b"this is a text, and quite a long one, which is not a database at all" * 10)
    with pytest.raises(StoreCorrupt):
        content.check_schema(other)


def test_an_empty_file_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    assert_finding(content.check_schema(path), Severity.INFO, "empty")
    assert path.stat().st_size == 0
    assert content.why_not_open(tmp_path / "nowhere.db") == "there is no file"


def test_another_journal_is_noticed_and_not_changed(store: Path) -> None:
    change(store, "PRAGMA journal_mode = delete")
    assert_finding(content.check_journal(store), Severity.WARNING, "no write-ahead log")
    assert content.why_not_open(store) == "opening the file would change its journal mode"
    assert_finding(content.check_journal(store), Severity.WARNING)


def test_damage_is_found(store: Path) -> None:
    data = bytearray(store.read_bytes())
    middle = len(data) // 2 // 4_096 * 4_096
    data[middle : middle + 4 * 4_096] = b"\x55" * (4 * 4_096)
    store.write_bytes(data)
    finding = assert_finding(content.check_integrity(store, SystemClock(), 10), Severity.ERROR, "damaged")
    assert ".recover" in finding.remedy


def test_a_look_for_damage_has_an_end(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "STEPS", 1)
    steps: list[None] = []
    assert is_all_ok(content.check_integrity(store, SystemClock(), inf, lambda: steps.append(None)))
    assert len(steps) > 1
    assert_finding(content.check_integrity(store, SystemClock(), 0), Severity.INFO, "too large")


def test_a_log_that_grows_and_grows_is_noticed(store: Path) -> None:
    log = store.with_name("shop.db-wal")
    with log.open("wb") as file:
        file.truncate(content.LONG_LOG)
    finding = assert_finding(content.check_log(store), Severity.WARNING, "64 MiB")
    assert finding.remedy.endswith(f": lsof {log}")


def test_unused_pages_are_counted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(store, "DELETE FROM jobs")
    assert is_all_ok(content.check_free_pages(store))
    monkeypatch.setattr(content, "MUCH_FREE", 100_000)
    assert "VACUUM" in assert_finding(content.check_free_pages(store), Severity.INFO, "in use").remedy


def test_a_user_that_may_not_write_leaves_nothing_behind(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(store.parent.iterdir())
    for module in (content, read_only):
        monkeypatch.setattr(module, "may_write", lambda path: path != store)
    assert is_all_ok(content.check_schema(store))
    assert is_all_ok(content.check_journal(store))
    assert content.why_not_open(store) is None
    assert sorted(store.parent.iterdir()) == before


def test_a_path_may_have_any_characters(store: Path) -> None:
    odd = store.rename(store.with_name("what? 100% #1 &co.db"))
    assert is_all_ok(content.check_schema(odd))


def test_what_is_from_the_future_tells_that_the_clock_went_back(store: Path) -> None:
    then = SystemClock().now() - timedelta(hours=3)
    assert_finding(content.check_times(store, then), Severity.WARNING, "3 h ahead")


def test_jobs_that_no_process_counted_are_a_gap_in_the_history(store: Path) -> None:
    hours_later = SystemClock().now() + timedelta(hours=3)
    assert is_all_ok(content.check_activity(store, hours_later))
    change(store, "UPDATE activity SET minute = minute - 300")
    finding = assert_finding(content.check_activity(store, hours_later), Severity.INFO, "since 8 h", "3 h ago")
    assert "activity_pairs=0" in finding.reason
    change(store, "DELETE FROM activity")
    assert_finding(content.check_activity(store, hours_later), Severity.INFO, "has no counts,")
    assert is_all_ok(content.check_activity(store, SystemClock().now()))  # the counts may be on their way
    assert is_all_ok(content.check_activity(store, hours_later + timedelta(days=2)))  # by then they are added up


def test_a_file_without_a_history_has_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    change(path, MIGRATIONS[0])
    assert is_all_ok(content.check_activity(path, SystemClock().now()))
