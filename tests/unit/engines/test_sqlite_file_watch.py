"""The files of a store are removed, replaced, renamed or truncated under a process that uses them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.file_watch import CHECK_NS, FileWatch
from mainspring.errors import StoreReplaced
from mainspring.jobs.records import WorkerInfo
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.programs import run_python

COPY = "copy.db"


def beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}{ending}")


@pytest.fixture
def bench(path: Path, clock: ManualClock) -> Iterator[Bench]:
    """A store with jobs in the file and in its log, and with a backup beside it."""
    bench = Bench(SqliteEngine(path, clock=clock), clock)
    bench.submit(*(f"old {number}" for number in range(200)))
    bench.engine.backup(str(path.with_name(COPY)))
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("wal_checkpoint")
    bench.submit(*(f"new {number}" for number in range(200)))
    pass_time(clock)
    bench.submit("last")
    yield bench
    bench.engine.close()


def pass_time(clock: ManualClock) -> None:
    """Let the time pass after which a commit compares everything."""
    clock.advance(milliseconds=CHECK_NS // 1_000_000)


def remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm", "-turn"):
        beside(path, ending).unlink()


def remove_the_file_alone(path: Path) -> None:
    path.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replace_by_a_backup(path: Path) -> None:
    path.with_name(COPY).replace(path)


def replace_everything(path: Path) -> None:
    remove(path)
    shutil.copy(path.with_name(COPY), path)


def rename_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


AT_ONCE = [remove, remove_the_file_alone, rename, replace_by_a_backup, replace_everything, rename_the_folder]


def remove_the_log(path: Path) -> None:
    beside(path, "-wal").unlink()


def replace_the_log(path: Path) -> None:
    shutil.copy(beside(path, "-wal"), beside(path, "-new"))
    beside(path, "-new").replace(beside(path, "-wal"))


def remove_the_index_of_the_log(path: Path) -> None:
    beside(path, "-shm").unlink()


def truncate_the_log(path: Path) -> None:
    os.truncate(beside(path, "-wal"), 4_096)


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def truncate_the_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4_096)


def write_a_backup_over_it(path: Path) -> None:
    path.write_bytes(path.with_name(COPY).read_bytes())


WITH_THE_NEXT_COMPARISON = [
    remove_the_log,
    replace_the_log,
    remove_the_index_of_the_log,
    truncate_the_log,
    truncate,
    truncate_the_end,
    write_a_backup_over_it,
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "shop.db"


@pytest.mark.parametrize("act", AT_ONCE, ids=lambda act: act.__name__)
def test_no_submit_is_confirmed_after_the_file_is_gone(
    bench: Bench, path: Path, act: Callable[[Path], None]
) -> None:
    act(path)
    with pytest.raises(StoreReplaced, match="restart this process"):
        bench.submit("lost")


@pytest.mark.parametrize("act", WITH_THE_NEXT_COMPARISON, ids=lambda act: act.__name__)
def test_other_damage_is_noticed_at_the_next_comparison(
    bench: Bench, clock: ManualClock, path: Path, act: Callable[[Path], None]
) -> None:
    act(path)
    pass_time(clock)
    with pytest.raises(StoreReplaced, match="restart this process"):
        bench.submit("lost")


@pytest.mark.parametrize("act", [*AT_ONCE, truncate, write_a_backup_over_it], ids=lambda act: act.__name__)
def test_a_read_notices_it_too(bench: Bench, clock: ManualClock, path: Path, act: Callable[[Path], None]) -> None:
    act(path)
    pass_time(clock)
    with pytest.raises(StoreReplaced):
        bench.engine.counts()
    with pytest.raises(StoreReplaced):
        bench.submit("lost")


def test_a_file_that_is_replaced_while_it_is_opened_is_noticed(
    bench: Bench, clock: ManualClock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = FileWatch.begin

    def replace_and_begin(watch: FileWatch) -> None:
        replace_by_a_backup(path)
        begin(watch)

    monkeypatch.setattr(FileWatch, "begin", replace_and_begin)
    other = Bench(SqliteEngine(path, clock=clock), clock)
    with pytest.raises(StoreReplaced):
        other.submit("lost")
    other.engine.close()


def test_a_heartbeat_notices_it(bench: Bench, path: Path) -> None:
    worker = bench.engine.enroll(WorkerInfo("host:1", 1, ("ping",), None))
    rename(path)
    with pytest.raises(StoreReplaced, match="removed or renamed"):
        bench.engine.sweep(worker)


def test_a_backup_is_refused(bench: Bench, clock: ManualClock, path: Path) -> None:
    replace_by_a_backup(path)
    pass_time(clock)
    with pytest.raises(StoreReplaced):
        bench.engine.backup(str(path.with_name("another.db")))
    assert not path.with_name("another.db").exists()


def test_every_call_fails_from_then_on_although_the_file_is_back(
    bench: Bench, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rename(path)
    with pytest.raises(StoreReplaced):
        bench.submit("lost")
    path.with_name("elsewhere.db").rename(path)
    for call in (bench.engine.counts, lambda: bench.submit("lost"), lambda: bench.engine.renew(1)):
        with pytest.raises(StoreReplaced, match="removed or renamed"):
            call()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "must be restarted" in record.getMessage()


def test_a_restarted_process_uses_the_file_that_is_there(bench: Bench, clock: ManualClock, path: Path) -> None:
    replace_everything(path)
    with pytest.raises(StoreReplaced):
        bench.submit("lost")
    bench.engine.close()
    assert len(ids_in(path)) == 200
    again = Bench(SqliteEngine(path, clock=clock), clock)
    again.submit("kept")
    again.engine.close()
    assert "kept" in ids_in(path)


def test_the_end_of_a_process_does_not_touch_the_log_of_the_new_file(
    bench: Bench, clock: ManualClock, path: Path
) -> None:
    """SQLite deletes the log by its path when the last connection is closed."""
    replace_everything(path)
    new = Bench(SqliteEngine(path, clock=clock), clock)
    new.submit("kept")
    log = beside(path, "-wal").stat().st_ino
    bench.engine.close()
    assert beside(path, "-wal").stat().st_ino == log
    new.submit("kept, too")
    new.engine.close()
    assert {"kept", "kept, too"} < ids_in(path)


# -- what other programs may do


def vacuum(path: Path) -> None:
    run(path, "DELETE FROM jobs; VACUUM")


def empty_the_log(path: Path) -> None:
    run(path, "PRAGMA wal_checkpoint(TRUNCATE)")


def checkpoint(path: Path) -> None:
    run(path, "PRAGMA wal_checkpoint(FULL)")


def read(path: Path) -> None:
    run(path, "SELECT count(*) FROM jobs")


def open_and_close_elsewhere(path: Path) -> None:
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM jobs').fetchall()"
    assert run_python("-c", code, str(path)).returncode == 0


def touch(path: Path) -> None:
    path.touch()


def run(path: Path, sql: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql).fetchall()


@pytest.mark.parametrize(
    "act", [vacuum, empty_the_log, checkpoint, read, open_and_close_elsewhere, touch], ids=lambda act: act.__name__
)
def test_other_programs_may_use_the_file(
    bench: Bench, clock: ManualClock, path: Path, act: Callable[[Path], None]
) -> None:
    for number in range(3):
        act(path)
        pass_time(clock)
        bench.submit(*(f"{number} {place}" for place in range(50)))
        pass_time(clock)
        bench.engine.counts()
    assert "2 49" in ids_in(path)


def test_a_file_may_grow_and_shrink_again(bench: Bench, clock: ManualClock, path: Path) -> None:
    sizes = []
    for number in range(4):
        bench.submit(*(f"{number} {place}" for place in range(500)))
        checkpoint(path)
        pass_time(clock)
        bench.submit(f"after {number}")
        sizes.append(path.stat().st_size)
        vacuum(path)
        checkpoint(path)
        pass_time(clock)
        bench.submit(f"vacuumed {number}")
        assert path.stat().st_size < sizes[-1]


def ids_in(path: Path) -> set[str]:
    with closing(apsw.Connection(str(path))) as connection:
        return {job for (job,) in connection.execute("SELECT id FROM jobs")}
