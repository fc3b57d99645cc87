"""Crashes on demand: engines that die before or after a given step on their store, and what they leave behind."""

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
    """The process ends here. Nothing may catch it for good."""


class Remains(NamedTuple):
    """The content of the files that a process leaves behind if it is killed at a step."""

    database: bytes
    log: bytes
    locks: tuple[str, ...]
    """The names of the lock files of its workers: no process holds them any more."""
    now: datetime
    is_committed: bool
    """Whether the operation that was under way has been committed."""

    def write_to(self, path: Path) -> ManualClock:
        """Make the files anew, and a clock that goes on from the crash."""
        Path(f"{path}-shm").unlink(missing_ok=True)
        Path(f"{path}-wal").write_bytes(self.log)
        path.write_bytes(self.database)
        make_locks(path, self.locks)
        return ManualClock(self.now)


class CrashPoint:
    """A probe that counts the steps of an operation, and crashes at one of them or records what each leaves.

    A killed process leaves the file and its log, with whatever the unfinished transaction has written, as they are
    at that instant. An engine that crashes sees an exception, rolls back, and is closed by the test.
    """

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self._path = path
        self._clock = clock
        self._at: int | None = None
        self._records = False
        self.steps: list[str] = []
        self.remains: list[Remains] = []
        """What the steps leave, as far as it differs: most of them leave what the step before them left."""
        self.is_armed = False

    def arm(self, at: int) -> None:
        """Begin to count; crash at this step."""
        self.is_armed, self._at = True, at

    def record(self) -> None:
        """Begin to count, and to look at what a crash would leave; crash nowhere."""
        self.is_armed = self._records = True

    def __call__(self, when: str, sql: str) -> None:
        if not self.is_armed:
            return
        self.steps.append(f"{when} {' '.join(sql.split())}")
        if self._records:
            self._add(self._look(is_committed=self.steps[-1] == "after COMMIT"))
        if len(self.steps) - 1 == self._at:
            self.is_armed = False
            raise Crash(self.steps[-1])

    def _look(self, *, is_committed: bool) -> Remains:
        # Closing a file drops the locks that this process has on it; no other process is there to take them.
        log = Path(f"{self._path}-wal").read_bytes()
        return Remains(self._path.read_bytes(), log, locks_of(self._path), self._clock.now(), is_committed)

    def _add(self, remains: Remains) -> None:
        if self.remains[-1:] != [remains]:
            self.remains.append(remains)


def locks_of(path: Path) -> tuple[str, ...]:
    """Return the names of the lock files of workers."""
    return tuple(sorted(lock.name for lock in Path(f"{path}-workers").glob("*.lock")))


def make_locks(path: Path, names: tuple[str, ...]) -> None:
    """Leave these lock files and no others, as workers that die leave them behind: held by no process."""
    folder = Path(f"{path}-workers")
    shutil.rmtree(folder, ignore_errors=True)
    if names:
        folder.mkdir()
    for name in names:
        (folder / name).touch()


class Scene:
    """A file with jobs; every test begins with a copy of it. Derived classes prepare the jobs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.worker = 0
        self.leases: dict[str, Lease] = {}
        """What the worker has in hand, by the id of the job."""
        clock = ManualClock()
        with opened(path, clock) as bench:
            self.prepare(bench)
        self._now = clock.now()

    def prepare(self, bench: Bench) -> None:
        """Store jobs, and let a worker take some."""
        raise NotImplementedError

    def take(self, bench: Bench) -> None:
        """Let the worker take what there is."""
        self.leases |= {lease.id: lease for lease in bench.take(self.worker)}

    def copy_to(self, path: Path) -> ManualClock:
        """Make a copy, and a clock that begins when the scene was ready."""
        shutil.copyfile(self._path, path)
        make_locks(path, locks_of(self._path))
        return ManualClock(self._now)


class World:
    """A copy of the scene in the hands of an engine."""

    def __init__(self, scene: Scene, bench: Bench) -> None:
        self.bench = bench
        self.engine = bench.engine
        self.worker = scene.worker
        self.leases = scene.leases


Operation: TypeAlias = Callable[[World], Any]


class Laboratory:
    """Repeats an operation in worlds that are alike, and lets it end at another step each time."""

    def __init__(
        self, scene: Scene, folder: Path, operation: Operation, look: Callable[[Bench], Any] | None = None
    ) -> None:
        self._scene = scene
        self.path = folder / "jobs.db"
        self._operation = operation
        self.look = look or snapshot
        """What is compared: all jobs, unless a test says otherwise."""
        self.path_of_remains = folder / "remains.db"
        with self._begin() as (world, probe):
            self.before = self.look(world.bench)
            probe.record()
            operation(world)
            probe.is_armed = False
            self.after = self.look(world.bench)
        self.steps = probe.steps
        self.remains = probe.remains
        assert len(self.steps) >= 4  # before and after a beginning and an end
        assert self.steps[-1] == "after COMMIT"
        assert [remains.is_committed for remains in self.remains][-2:] == [False, True]

    @contextmanager
    def _begin(self) -> Iterator[tuple[World, CrashPoint]]:
        clock = self._scene.copy_to(self.path)
        probe = CrashPoint(self.path, clock)
        with opened(self.path, clock, probe) as bench:
            yield World(self._scene, bench), probe

    def interrupt_everywhere(self, then: Callable[[World, bool], None], *, begin: int = 0) -> None:
        """Crash at every step from `begin` on; tell the test whether the operation was committed.

        The same world goes on: its engine has seen the exception and rolled back.
        """
        for number, step in list(enumerate(self.steps))[begin:]:
            with self._begin() as (world, probe):
                probe.arm(number)
                with pytest.raises(Crash) as crash:
                    self._operation(world)
                assert str(crash.value) == step
                then(world, step == "after COMMIT")

    def kill_everywhere(self, then: Callable[[World, bool], None]) -> None:
        """Open what a process leaves that is killed at any step; tell the test whether it had committed.

        Steps that leave files with the same content are one: the next process cannot tell them apart.
        """
        for remains in self.remains:
            clock = remains.write_to(self.path_of_remains)
            with opened(self.path_of_remains, clock) as bench:
                then(World(self._scene, bench), remains.is_committed)


class Laboratories:
    """Makes one laboratory for each operation: all tests of an operation look at the same remains."""

    def __init__(
        self, scene: Scene, make_folder: Callable[[], Path], look: Callable[[Path], Any] | None = None
    ) -> None:
        self._scene = scene
        self._make_folder = make_folder
        self._look = look
        self._made: dict[Operation, Laboratory] = {}

    def of(self, operation: Operation) -> Laboratory:
        """Return the laboratory of an operation; `look` is given the path of its file."""
        if operation not in self._made:
            folder, look = self._make_folder(), self._look
            compare = None if look is None else lambda _: look(folder / "jobs.db")
            self._made[operation] = Laboratory(self._scene, folder, operation, look=compare)
        return self._made[operation]


@contextmanager
def opened(path: Path, clock: ManualClock, probe: Callable[[str, str], None] | None = None) -> Iterator[Bench]:
    """Lend an engine on this file, and let go of its locks in the end as a dead process does."""
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
    """Let SQLite look at every page."""
    connection = apsw.Connection(str(path))
    try:
        return str(connection.pragma("integrity_check"))
    finally:
        connection.close()


def run_everything(bench: Bench) -> list[str]:
    """Let a new worker rescue and complete everything there is; return the ids in the order of completion."""
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
