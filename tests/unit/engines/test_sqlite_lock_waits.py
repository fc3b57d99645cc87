"""A call waits for the lock of the file up to one deadline. Its error names the process that holds the lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import apsw
import pytest

from mainspring import Mainspring
from mainspring.clock import SystemClock
from mainspring.engines.sqlite import SqliteEngine, database, lock_holders
from mainspring.engines.sqlite.database import QUEUED_NS, _LockWaiter
from mainspring.errors import EngineUnavailable
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.blank_stores import make_blank_store
from tests.programs import program, read_line
from tests.support import PATIENCE, eventually

HOLD = """
import fcntl, sys, apsw
connection = apsw.Connection(sys.argv[1])
turn = open(sys.argv[1] + "-turn", "w")
fcntl.flock(turn, fcntl.LOCK_EX)
connection.execute("BEGIN IMMEDIATE")
print("holds both locks", flush=True)
sys.stdin.read()
"""


class FakeTime:
    """The time of waits: it moves only when a wait for the file lock is over."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.file_lock_after: float | None = 0.0
        """After how many seconds the file lock is granted; None for never."""
        self.waits: list[str] = []

    def wait_for_file_lock(self, seconds: float) -> bool:
        is_granted = self.file_lock_after is not None and self.file_lock_after < seconds
        self.now_ns += round((self.file_lock_after or 0 if is_granted else seconds) * 1e9)
        self.waits.append(f"file lock {seconds} s")
        return is_granted

    def set_patience(self, connection: apsw.Connection, milliseconds: int) -> None:
        connection.set_busy_timeout(0)
        self.waits.append(f"SQLite {milliseconds} ms")


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(SystemClock, "monotonic_ns", staticmethod(lambda: time.now_ns))
    monkeypatch.setattr(database, "set_patience", time.set_patience)
    monkeypatch.setattr(_LockWaiter, "wait_acquired", lambda _self, seconds: time.wait_for_file_lock(seconds))
    return time


@pytest.fixture
def bench(path: Path, clock: ManualClock) -> Iterator[Bench]:
    bench = Bench(SqliteEngine(make_blank_store(path), clock=clock, busy_timeout=30), clock)
    bench.submit("first")
    yield bench
    bench.engine.close()


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the writers, as another process would: another descriptor counts as another owner."""
    descriptor = os.open(f"{path}-turn", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


@contextmanager
def lock_of_sqlite(path: Path) -> Iterator[None]:
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.close()


def test_what_is_left_of_the_deadline_is_waited_for_sqlites_own_lock(
    bench: Bench, path: Path, time: FakeTime
) -> None:
    time.file_lock_after = 20
    with file_lock(path), lock_of_sqlite(path), pytest.raises(EngineUnavailable):
        bench.submit("second")
    assert time.waits == ["file lock 30.0 s", "SQLite 10000 ms", "SQLite 30000 ms"]


def test_nothing_is_left_after_a_wait_for_the_file_lock(bench: Bench, path: Path, time: FakeTime) -> None:
    time.file_lock_after = None
    with file_lock(path), lock_of_sqlite(path), pytest.raises(EngineUnavailable):
        bench.submit("second")
    assert time.waits == ["file lock 30.0 s", "SQLite 0 ms", "SQLite 30000 ms"]


def test_a_file_lock_that_is_never_granted_keeps_no_writer_from_a_free_file(
    bench: Bench, path: Path, time: FakeTime
) -> None:
    time.file_lock_after = None
    with file_lock(path):
        bench.submit("second")
    assert bench.find_ids() == ["first", "second"]


def test_a_call_that_was_queued_behind_a_refused_one_does_not_wait_again(
    bench: Bench, path: Path, time: FakeTime
) -> None:
    time.file_lock_after = None
    with file_lock(path), lock_of_sqlite(path):
        with pytest.raises(EngineUnavailable):
            bench.submit("second")
        time.waits.clear()
        with pytest.raises(EngineUnavailable):
            bench.submit("third")
        assert time.waits == ["file lock 0.0 s", "SQLite 0 ms", "SQLite 30000 ms"]
        time.now_ns += QUEUED_NS
        time.waits.clear()
        with pytest.raises(EngineUnavailable):
            bench.submit("a later call")
        assert time.waits[0] == "file lock 30.0 s"
    bench.submit("fourth")
    assert bench.find_ids() == ["first", "fourth"]


def test_a_store_is_opened_without_the_locks_of_writers(path: Path, clock: ManualClock) -> None:
    make_blank_store(path)
    engine = SqliteEngine(path, clock=clock, busy_timeout=3_600)  # longer than a test may take
    Path(f"{path}-turn").touch()
    with file_lock(path), lock_of_sqlite(path):
        engine.open(lambda: None)
        assert sum(engine.counts().values()) == 0
        engine.close()


def test_the_error_names_the_process_that_holds_the_lock(path: Path) -> None:
    make_blank_store(path)
    app = Mainspring(f"sqlite:///{path}?timeout=0.3")
    ping = app.job(name="ping")(lambda: None)
    with app, program("-c", HOLD, str(path)) as holder:
        read_line(holder)
        app.manager()
        with pytest.raises(EngineUnavailable, match=rf"process {holder.pid} \(\S+\) held the lock") as caught:
            ping.submit()
        assert "?timeout=" in str(caught.value)
        assert app.counts()["PENDING"] == 0  # reading needs no lock


def test_another_thread_gets_its_answer_with_the_first_one(path: Path) -> None:
    make_blank_store(path)
    app = Mainspring(f"sqlite:///{path}?timeout=0.3")
    ping = app.job(name="ping")(lambda: None)
    errors: list[EngineUnavailable] = []

    def submit() -> None:
        try:
            ping.submit()
        except EngineUnavailable as error:
            errors.append(error)

    with app, program("-c", HOLD, str(path)) as holder:
        read_line(holder)
        app.manager()
        threads = [Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(errors) == 4
        holder.kill()
        holder.wait()
        assert eventually(lambda: bool(ping.submit()))


def test_a_connection_of_this_process_is_named_as_such(bench: Bench, path: Path) -> None:
    with lock_of_sqlite(path):
        assert lock_holders.find_holder(str(path)) == "another connection of this process"
    assert lock_holders.find_holder(str(path)) == "another process or connection"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("1: POSIX  ADVISORY  WRITE {pid} {shm} 120 120", "process {pid} (…)"),
        ("1: FLOCK  ADVISORY  WRITE {pid} {turn} 0 EOF", "process {pid} (…)"),
        ("1: -> FLOCK  ADVISORY  WRITE {pid} {turn} 0 EOF", "another process or connection"),
        ("1: POSIX  ADVISORY  READ {pid} {shm} 120 120", "another process or connection"),
        ("1: POSIX  ADVISORY  WRITE {pid} {shm} 121 121", "another process or connection"),
        ("1: POSIX  ADVISORY  WRITE {pid} 00:01:5 120 120", "another process or connection"),
        ("1: POSIX  ADVISORY  WRITE 0 {shm} 120 120", "another process or connection"),
        ("", "another process or connection"),
        (None, "another process or connection"),
    ],
)
def test_the_list_of_the_kernel_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str | None, expected: str
) -> None:
    files = {}
    for name in ("shm", "turn"):
        file = tmp_path / f"shop.db-{name}"
        file.touch()
        found = file.stat()
        files[name] = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    monkeypatch.setattr(lock_holders, "LOCKS", tmp_path / "locks")
    if lines is not None:
        (tmp_path / "locks").write_text(lines.format(pid=os.getppid(), **files))
    found_holder = lock_holders.find_holder(str(tmp_path / "shop.db"))
    name = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    assert found_holder == expected.format(pid=os.getppid()).replace("…", name)
