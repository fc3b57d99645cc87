"""SQLite's locks on a file survive everything that the process does beside SQLite.

The kernel drops all POSIX locks of a process on a file when the process closes any descriptor of the file. Then
another program believes that it is the last one, and deletes the log that this process writes to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from mainspring import Mainspring
from mainspring.clock import SystemClock
from mainspring.doctor.examination import examine
from mainspring.doctor.findings import Severity
from mainspring.doctor.sqlite_content import check_journal
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.export import SqliteExport
from mainspring.engines.sqlite.log_file import STEP
from mainspring.errors import StoreCorrupt
from tests.api_site import ApiSite
from tests.dashboard_client import DashboardBrowser
from tests.programs import run_python
from tests.store_opens.start import sitecustomize as opens
from tests.support import eventually

LOCKS = Path("/proc/locks")
pytestmark = pytest.mark.skipif(not LOCKS.exists(), reason="this system does not list locks")


class Store:
    """An application that has used its SQLite file, and the locks of this process on the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.app = Mainspring(f"sqlite:///{path}", grace=0)
        self.ping = self.app.job(name="ping")(_do_nothing)
        self.submit()
        self.app.counts()  # opens a connection that reads

    def submit(self) -> None:
        self.ping.submit()

    def read_locks(self) -> set[str]:
        """Return the POSIX locks of this process on the file and its `-shm`: kind, inode and bytes."""
        inodes = {str(self.beside(ending).stat().st_ino) for ending in ("", "-shm")}
        found = set()
        for line in LOCKS.read_text().splitlines():
            fields = [field for field in line.split() if field != "->"]
            if fields[1] == "POSIX" and fields[4] == str(os.getpid()) and fields[5].split(":")[2] in inodes:
                found.add(" ".join([fields[3], *fields[5:]]))
        return found

    def beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}{ending}")


def _do_nothing() -> None:
    return None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "shop.db")
    with store.app:
        yield store


def examine_here(store: Store) -> None:
    assert {finding.check for finding in examine(store.app).findings} > {
        "journal",
        "integrity",
        "activity",
        "workers",
    }


def ask_for_doctor(store: Store) -> None:
    assert ApiSite(store.app).get("/doctor").status == 200


def look_at_the_overview(store: Store) -> None:
    assert DashboardBrowser(store.app).get("/").status == 200


def back_up(store: Store) -> None:
    store.app.backup(str(store.beside(".backup")))


def use_another_engine(store: Store) -> None:
    engine = SqliteEngine(store.path)
    engine.open(_do_nothing)
    engine.counts()
    engine.close()


def use_an_engine_that_reads(store: Store) -> None:
    engine = store.app.make_engine(SystemClock(), read_only=True)
    engine.open(_do_nothing)
    engine.counts()
    engine.close()


def export(store: Store) -> None:
    source = SqliteExport(store.path)
    source.open()
    source.counts()
    source.close()


def check_the_journal(store: Store) -> None:
    assert check_journal(store.path).severity is Severity.OK


def submit_until_the_log_is_extended(store: Store) -> None:
    before = store.beside("-wal").stat().st_size
    while store.beside("-wal").stat().st_size < before + STEP:
        store.submit()


def sync_the_log(store: Store) -> None:
    engine = SqliteEngine(store.path)
    engine.open(_do_nothing)
    with engine.unit(durable=False):
        engine._database.require_sync()
    engine.close()


ACTIONS: list[Callable[[Store], None]] = [
    examine_here,
    ask_for_doctor,
    look_at_the_overview,
    back_up,
    use_another_engine,
    use_an_engine_that_reads,
    export,
    check_the_journal,
    submit_until_the_log_is_extended,
    sync_the_log,
]


@pytest.mark.parametrize("act", ACTIONS, ids=lambda act: act.__name__)
def test_sqlite_keeps_its_locks(store: Store, act: Callable[[Store], None]) -> None:
    before = store.read_locks()
    assert len(before) == 2  # one for the file, one for its -shm
    act(store)
    assert store.read_locks() >= before
    assert eventually(lambda: store.read_locks() == before)  # a page may still be reading on another thread


def test_the_locks_are_held_again_after_a_fork_whose_child_uses_the_store(store: Store) -> None:
    child = os.fork()
    if not child:
        status = 1
        try:
            store.submit()
            store.app.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    store.submit()
    store.app.counts()
    assert len(store.read_locks()) == 2
    assert sum(store.app.counts().values()) == 3


def test_another_program_that_opens_and_closes_the_file_leaves_the_log(store: Store) -> None:
    """Python's module `sqlite3` stands for other programs: without locks, version 3.40 deletes the log."""
    examine_here(store)
    log = store.beside("-wal").stat().st_ino
    read = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute('SELECT count(*) FROM jobs').fetchone()[0])
connection.close()
"""
    assert run_python("-c", read, str(store.path)).stdout == "1\n"
    assert store.beside("-wal").stat().st_ino == log
    store.submit()
    assert run_python("-c", read, str(store.path)).stdout == "2\n"


# -- the audit hook, which looks at all tests


def open_as_a_module_of_the_package(path: Path) -> None:
    exec("open(path).close()", {"__name__": "mainspring.made_up", "path": path})


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_the_package_may_not_open_a_database_of_this_process(
    store: Store, ending: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert opens.is_database_of_this_process(str(store.beside(ending)))
    with pytest.raises(AssertionError, match=r"mainspring\.made_up opens .*its locks would be lost"):
        open_as_a_module_of_the_package(store.beside(ending))
    report = Path(os.environ[opens.REPORT])
    assert "mainspring.made_up" in report.read_text()
    report.unlink()


def test_other_files_may_be_opened(store: Store, tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0")
    open_as_a_module_of_the_package(tmp_path / "other.db")
    open_as_a_module_of_the_package(store.beside("-turn"))
    assert not Path(os.environ[opens.REPORT]).exists()


def test_the_hook_is_in_the_processes_that_tests_start(store: Store) -> None:
    code = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("SELECT count(*) FROM jobs").get
exec("open(sys.argv[1])", {"__name__": "mainspring.made_up", "sys": sys})
"""
    assert "mainspring.made_up opens" in run_python("-c", code, str(store.path)).stderr
    Path(os.environ[opens.REPORT]).unlink()


# -- files of other programs


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_file_of_another_program_is_left_as_found(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "cats.db"
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA journal_mode = {mode}; CREATE TABLE cats (name)").fetchall()
    connection.close()
    before = path.read_bytes()
    for opens_file in (SqliteEngine(path).open, lambda _wake: SqliteExport(path).open()):
        with pytest.raises(StoreCorrupt, match="another application"):
            opens_file(_do_nothing)
    assert [found.name for found in tmp_path.iterdir()] == ["cats.db"]
    assert path.read_bytes() == before


def test_a_database_of_another_program_that_is_only_in_its_log_is_refused_without_a_lock_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cats.db"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = wal; CREATE TABLE cats (name)").fetchall()
    with pytest.raises(StoreCorrupt, match="another application"):
        SqliteEngine(path).open(_do_nothing)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["cats.db", "cats.db-shm", "cats.db-wal"]
    connection.execute("INSERT INTO cats VALUES ('Tom')")
    connection.close()
