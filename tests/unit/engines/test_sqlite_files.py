"""Files that are new, old, newer, foreign, damaged, out of reach, or on a full disk."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest

from mainspring.engines.sqlite import SqliteEngine, schema
from mainspring.errors import EngineUnavailable, StoreCorrupt, StoreTooNew
from mainspring.jobs.records import OutcomeKind, WorkerInfo
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.programs import run_python
from tests.support import PATIENCE
from tests.unit.engines.crash_points import integrity, opened


def execute(path: Path, sql: str) -> Any:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).get
    finally:
        connection.close()


def make_file_of_version_one(path: Path) -> None:
    """Make a file with the first schema there ever was, and a job in it."""
    execute(path, schema.MIGRATIONS[0])
    execute(path, f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1")
    execute(path, "INSERT INTO lanes (id, queue, type, priority) VALUES (1, 'default', 'ping', 1)")
    execute(
        path,
        "INSERT INTO jobs (id, lane, due, created, payload, codec) VALUES ('old', 1, 1, 1, '{\"n\":1}', 'json')",
    )


def fail_to_open(path: Path) -> EngineUnavailable:
    with pytest.raises(EngineUnavailable) as caught:
        SqliteEngine(path).open(lambda: None)
    assert str(path) in str(caught.value)
    return caught.value


# -- versions


def test_nothing_is_written_before_the_first_use(path: Path) -> None:
    SqliteEngine(path)
    assert not path.exists()


def test_a_store_that_another_process_makes_meanwhile_is_no_foreign_database() -> None:
    class Connection:
        """A connection to an empty file, in which another process makes a store between two reads."""

        application = 0

        def pragma(self, name: str) -> int:
            return {"application_id": self.application, "user_version": 0}[name]

        def execute(self, _statement: str) -> Any:
            self.application = schema.APPLICATION_ID
            return SimpleNamespace(get=12)

    assert schema.require_own(cast("apsw.Connection", Connection()), "shop.db")


@pytest.mark.long
def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    """Engines of one process with a connection each stand for processes: SQLite and `flock` treat them alike."""
    together = Barrier(4)

    def open_and_close(path: Path) -> object:
        engine = SqliteEngine(path)
        together.wait(PATIENCE)
        engine.open(lambda: None)
        version = execute(path, "PRAGMA user_version")
        engine.close()
        return version

    with ThreadPoolExecutor(together.parties) as threads:
        for number in range(25):
            files = [tmp_path / f"{number}.db"] * together.parties
            assert set(threads.map(open_and_close, files)) == {schema.VERSION}


@pytest.mark.parametrize("is_there", [False, True], ids=["no file", "an empty file"])
def test_a_file_begins_with_the_newest_schema(path: Path, clock: ManualClock, is_there: bool) -> None:  # noqa: FBT001
    if is_there:
        path.touch()
    with opened(path, clock) as bench:
        bench.submit("job")
    assert execute(path, "PRAGMA user_version") == schema.VERSION
    assert execute(path, "PRAGMA application_id") == schema.APPLICATION_ID
    assert execute(path, "PRAGMA journal_mode") == "wal"


def test_a_file_of_version_one_is_brought_up_to_date_with_its_jobs(path: Path, clock: ManualClock) -> None:
    make_file_of_version_one(path)
    with opened(path, clock) as bench:
        worker, lease = bench.take_by_new_worker()
        assert (lease.id, lease.payload) == ("old", b'{"n":1}')
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        bench.submit("new")
        assert bench.find_ids() == ["old", "new"]
    assert execute(path, "PRAGMA user_version") == schema.VERSION


def test_only_the_migrations_that_a_file_has_not_seen_are_carried_out(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path, clock) as bench:
        bench.submit("old")
    extra = (
        *schema.MIGRATIONS,
        "ALTER TABLE workers ADD COLUMN one TEXT",
        "ALTER TABLE workers ADD COLUMN two TEXT",
    )
    monkeypatch.setattr(schema, "MIGRATIONS", extra)
    monkeypatch.setattr(schema, "VERSION", len(extra))
    with opened(path, clock) as bench:
        assert bench.find_ids() == ["old"]
    with opened(path, clock):
        assert execute(path, "SELECT count(*) FROM pragma_table_info('workers') WHERE name IN ('one', 'two')") == 2
    assert execute(path, "PRAGMA user_version") == len(extra)


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path, clock) as bench:
        bench.submit("old")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE extra (n); CREATE TABLE jobs (n)"))
        patch.setattr(schema, "VERSION", len(schema.MIGRATIONS))
        assert "already exists" in str(fail_to_open(path))
    assert execute(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'extra'") == 0
    with opened(path, clock) as bench:
        assert bench.find_ids() == ["old"]


def test_a_newer_file_is_refused_and_left_alone(path: Path, clock: ManualClock) -> None:
    with opened(path, clock) as bench:
        bench.submit("job")
    execute(path, f"PRAGMA user_version = {schema.VERSION + 1}")
    before = path.read_bytes()
    error = fail_to_open(path)
    assert isinstance(error, StoreTooNew)
    assert f"version {schema.VERSION + 1}" in str(error)
    assert "upgrade" in str(error)
    assert path.read_bytes() == before


# -- files that are not ours


def test_the_database_of_another_application_is_refused_and_left_alone(path: Path) -> None:
    execute(path, "CREATE TABLE customers (name TEXT); INSERT INTO customers VALUES ('Ada')")
    before = path.read_bytes()
    error = fail_to_open(path)
    assert isinstance(error, StoreCorrupt)
    assert "another application" in str(error)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 1_000)
    error = fail_to_open(path)
    assert isinstance(error, StoreCorrupt)
    assert "backup" in str(error)
    assert path.read_bytes() == b"Dear diary, " * 1_000


def test_damage_in_the_middle_of_a_file_is_called_damage(path: Path, clock: ManualClock) -> None:
    with opened(path, clock) as bench:
        bench.submit(*(f"job {number}" for number in range(2_000)))
    data = bytearray(path.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="damaged"), opened(path, clock) as bench:
        bench.find_ids(limit=2_000)


# -- files out of reach


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    error = fail_to_open(tmp_path / "no" / "such" / "jobs.db")
    assert f"{tmp_path / 'no' / 'such'} does not exist" in str(error)


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "does not exist" in str(fail_to_open(tmp_path / "file" / "jobs.db"))


def test_a_directory_in_the_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir()
    assert "it is a directory" in str(fail_to_open(path))


def run_script(script: str, *arguments: object) -> str:
    """Run a script on its own, with the prologue that all of them need; return what it prints."""
    prologue = (
        "import os, resource, sys\nfrom pathlib import Path\nfrom mainspring.engines.sqlite import SqliteEngine\n"
    )
    prologue += (
        "from mainspring.errors import EngineUnavailable\nfrom mainspring.jobs.engine import NewJob, Query\n"
    )
    done = run_python("-c", prologue + script, *map(str, arguments), patience=3 * PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


READ_ONLY = """
import tempfile
folder = Path(tempfile.mkdtemp(prefix="mainspring-"))
try:
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.setegid(65534), os.seteuid(65534)  # nobody: root may write everywhere
    try:
        SqliteEngine(folder / "jobs.db").open(print)
    except EngineUnavailable as error:
        print(error)
finally:
    if os.getuid() == 0:
        os.seteuid(0)
    folder.chmod(0o755)
    folder.rmdir()
"""


def test_a_read_only_directory_is_refused() -> None:
    message = run_script(READ_ONLY)
    assert "jobs.db" in message
    assert "cannot be opened or written" in message
    assert "write access" in message


# -- a full disk

FULL_DISK = """
engine = SqliteEngine(sys.argv[1], is_shared=False)
engine.open(lambda: None)

def submit(start, count):
    engine.submit([NewJob(f"{n:05}", "ping", "default", 1, 0, b'"' + b"x" * 1000 + b'"', "json")
                   for n in range(start, start + count)])

submit(0, 100)
used = sum(path.stat().st_size for path in Path(sys.argv[1]).parent.iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (used, resource.RLIM_INFINITY))
stored = 100
try:
    while True:
        submit(stored, 100)
        stored += 100
except EngineUnavailable as error:
    print(error)
assert sum(engine.counts().values()) == stored, (engine.counts(), stored)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
submit(stored, 100)
print(stored + 100, sum(engine.counts().values()))
engine.close()
"""


def test_a_full_disk_is_called_so_and_costs_nothing_that_was_stored(path: Path, clock: ManualClock) -> None:
    message, counts = run_script(FULL_DISK, path).splitlines()
    assert "disk is full" in message
    assert "free some space" in message
    stored, found = counts.split()
    assert stored == found
    assert integrity(path) == "ok"
    with opened(path, clock) as bench:
        assert bench.engine.counts()[JobStatus.PENDING] == int(stored)


def test_an_engine_goes_on_after_the_disk_was_full(path: Path, clock: ManualClock) -> None:
    is_full = False

    def probe(when: str, sql: str) -> None:
        if is_full and (when, sql) == ("before", "COMMIT"):
            raise apsw.FullError("database or disk is full")

    with opened(path, clock, probe) as bench:
        worker, lease = bench.begin()
        is_full = True
        with pytest.raises(EngineUnavailable, match="disk is full"):
            bench.submit("other")
        with pytest.raises(EngineUnavailable, match="disk is full"):
            bench.settle(worker, lease, OutcomeKind.COMPLETED)
        with pytest.raises(EngineUnavailable, match="disk is full"):
            bench.engine.enroll(WorkerInfo("another", 1, ()))
        is_full = False
        assert bench.find_ids() == ["job"]
        bench.submit("other")
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        assert bench.enroll() > worker


# -- use


def test_an_engine_that_is_not_open_says_so(path: Path, bench: Bench) -> None:
    bench.engine.close()
    with pytest.raises(EngineUnavailable, match="not open"):
        bench.submit("job")


def test_an_unknown_durability_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match=r"durability .*'fast'"):
        SqliteEngine(path, durability="fast")  # type: ignore[arg-type]
