"""Simulated crashes of the SQLite engine, before and after each step of an operation on its store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import apsw
import pytest

from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.records import JobRecord, Lease, Query
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench


class Crash(BaseException):
    """The simulated process has died. Code under test must not swallow it."""


class KilledFiles(NamedTuple):
    """The content of the files that a process leaves behind if it is killed at a step."""

    database: bytes
    log: bytes
    locks: tuple[str, ...]
    """The names of the lock files of its workers, which no process holds any more."""
    now: datetime
    is_committed: bool
    """Whether the operation was committed."""

    def write_to(self, path: Path) -> ManualClock:
        """Write the files to a path; return a clock that continues at the time of the crash."""
        Path(f"{path}-shm").unlink(missing_ok=True)
        Path(f"{path}-wal").write_bytes(self.log)
        path.write_bytes(self.database)
        make_locks(path, self.locks)
        return ManualClock(self.now)


class CrashPoint:
    """A probe that counts the steps of an operation, and crashes at one of them or records the files after each.

    A killed process leaves the file and its log, with whatever the unfinished transaction has written, as they are
    at that instant. An engine that crashes sees an exception, rolls back, and is closed by the test.
    """

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self._path = path
        self._clock = clock
        self._at: int | None = None
        self._records = False
        self.steps: list[str] = []
        self.killed_files: list[KilledFiles] = []
        """The files after each step that changed them."""
        self.is_armed = False

    def arm(self, at: int) -> None:
        """Start counting, and crash at this step."""
        self.is_armed, self._at = True, at

    def record(self) -> None:
        """Start counting, and record the files that a crash would leave; never crash."""
        self.is_armed = self._records = True

    def __call__(self, when: str, sql: str) -> None:
        if not self.is_armed:
            return
        self.steps.append(f"{when} {' '.join(sql.split())}")
        if self._records:
            self._add(self._read_files(is_committed=self.steps[-1] == "after COMMIT"))
        if len(self.steps) - 1 == self._at:
            self.is_armed = False
            raise Crash(self.steps[-1])

    def _read_files(self, *, is_committed: bool) -> KilledFiles:
        # Closing a file drops the locks that this process has on it; no other process takes them.
        log = Path(f"{self._path}-wal").read_bytes()
        return KilledFiles(self._path.read_bytes(), log, locks_of(self._path), self._clock.now(), is_committed)

    def _add(self, files: KilledFiles) -> None:
        if self.killed_files[-1:] != [files]:
            self.killed_files.append(files)


def locks_of(path: Path) -> tuple[str, ...]:
    """Return the names of the lock files of workers."""
    return tuple(sorted(lock.name for lock in Path(f"{path}-workers").glob("*.lock")))


def make_locks(path: Path, names: tuple[str, ...]) -> None:
    """Create these lock files and no others, held by no process, as dead workers leave them."""
    folder = Path(f"{path}-workers")
    shutil.rmtree(folder, ignore_errors=True)
    if names:
        folder.mkdir()
    for name in names:
        (folder / name).touch()


class PreparedStore:
    """A store with jobs; every test begins with a copy of it. Subclasses override `prepare`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.worker = 0
        self.leases: dict[str, Lease] = {}
        """The leases of the worker, by job id."""
        clock = ManualClock()
        with opened(path, clock) as bench:
            self.prepare(bench)
        self._now = clock.now()

    def prepare(self, bench: Bench) -> None:
        """Store jobs, and let a worker claim some."""
        raise NotImplementedError

    def take(self, bench: Bench) -> None:
        """Let the worker claim all due jobs."""
        self.leases |= {lease.id: lease for lease in bench.take(self.worker)}

    def copy_to(self, path: Path) -> ManualClock:
        """Copy the store to a path; return a clock that continues where the preparation ended."""
        shutil.copyfile(self._path, path)
        make_locks(path, locks_of(self._path))
        return ManualClock(self._now)


class OpenedStore:
    """An engine on a copy of the prepared store."""

    def __init__(self, prepared: PreparedStore, bench: Bench) -> None:
        self.bench = bench
        self.engine = bench.engine
        self.worker = prepared.worker
        self.leases = prepared.leases


Operation: TypeAlias = Callable[[OpenedStore], Any]


class CrashExperiment:
    """Runs an operation on copies of one store, and crashes it at another step each time."""

    def __init__(
        self,
        prepared: PreparedStore,
        folder: Path,
        operation: Operation,
        look: Callable[[Bench], Any] | None = None,
    ) -> None:
        self._prepared = prepared
        self.path = folder / "jobs.db"
        self._operation = operation
        self.look = look or snapshot
        """Reads the content to compare: by default all jobs."""
        self.killed_path = folder / "killed.db"
        with self._begin() as (store, probe):
            self.before = self.look(store.bench)
            probe.record()
            operation(store)
            probe.is_armed = False
            self.after = self.look(store.bench)
        self.steps = probe.steps
        self.killed_files = probe.killed_files
        assert len(self.steps) >= 4  # before and after a beginning and an end
        assert self.steps[-1] == "after COMMIT"
        assert [files.is_committed for files in self.killed_files][-2:] == [False, True]

    @contextmanager
    def _begin(self) -> Iterator[tuple[OpenedStore, CrashPoint]]:
        clock = self._prepared.copy_to(self.path)
        probe = CrashPoint(self.path, clock)
        with opened(self.path, clock, probe) as bench:
            yield OpenedStore(self._prepared, bench), probe

    def crash_at_each_step(self, then: Callable[[OpenedStore, bool], None], *, begin: int = 0) -> None:
        """Crash at every step from `begin` on, and call `then` with whether the operation was committed.

        The same engine continues: it has seen the exception and rolled back.
        """
        for number, step in list(enumerate(self.steps))[begin:]:
            with self._begin() as (store, probe):
                probe.arm(number)
                with pytest.raises(Crash) as crash:
                    self._operation(store)
                assert str(crash.value) == step
                then(store, step == "after COMMIT")

    def kill_at_each_step(self, then: Callable[[OpenedStore, bool], None]) -> None:
        """Open the files that a kill at each step leaves, and call `then` with whether it was committed.

        Steps that leave files with the same content are tested once.
        """
        for files in self.killed_files:
            clock = files.write_to(self.killed_path)
            with opened(self.killed_path, clock) as bench:
                then(OpenedStore(self._prepared, bench), files.is_committed)


class CrashExperiments:
    """Creates one experiment for each operation, which all tests of the operation share."""

    def __init__(
        self, prepared: PreparedStore, make_folder: Callable[[], Path], look: Callable[[Path], Any] | None = None
    ) -> None:
        self._prepared = prepared
        self._make_folder = make_folder
        self._look = look
        self._made: dict[Operation, CrashExperiment] = {}

    def of(self, operation: Operation) -> CrashExperiment:
        """Return the experiment of an operation; `look` gets the path of its file."""
        if operation not in self._made:
            folder, look = self._make_folder(), self._look
            compare = None if look is None else lambda _: look(folder / "jobs.db")
            self._made[operation] = CrashExperiment(self._prepared, folder, operation, look=compare)
        return self._made[operation]


@contextmanager
def opened(path: Path, clock: ManualClock, probe: Callable[[str, str], None] | None = None) -> Iterator[Bench]:
    """Open an engine on this file; at the end release its locks, as the death of a process does."""
    engine = SqliteEngine(path, clock=clock, durability="normal", probe=probe)
    bench = Bench(engine, clock)
    try:
        yield bench
    finally:
        engine.close()
        engine._worker_files.release_after_fork()  # the kernel does so when a process dies


def snapshot(bench: Bench) -> list[JobRecord]:
    """Return all jobs."""
    return bench.engine.find(Query(limit=1_000)).records


def integrity(path: Path) -> str:
    """Return the result of SQLite's integrity check: `ok` if no page is damaged."""
    connection = apsw.Connection(str(path))
    try:
        return str(connection.pragma("integrity_check"))
    finally:
        connection.close()


def complete_all_jobs(bench: Bench) -> list[str]:
    """Let a new worker rescue and complete all jobs; return the ids in the order of completion."""
    worker = bench.enroll()
    completed: list[str] = []
    for wait in (0, 1, 3600):
        bench.pass_time(wait)
        assert bench.engine.renew(worker)
        bench.engine.sweep(worker)
        while leases := bench.take(worker, ahead=0):
            bench.complete(worker, *leases)
            completed += [lease.id for lease in leases]
    bench.engine.leave(worker)
    return completed
