"""Crashes on demand: engines that die before or after a given step on their store, and what they leave behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import pytest

from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import JobRecord, Lease, OutcomeKind, Query
from mainspring.testing import ManualClock
from mainspring.testing.engine_bench import Bench


class Crash(BaseException):
    """The process ends here. Nothing may catch it for good."""


class CrashPoint:
    """A probe that counts the steps of an operation and crashes at one of them.

    What a killed process would leave is copied at that instant: the file and its log, with whatever the unfinished
    transaction has written. The engine itself sees an exception, rolls back, and is closed by the test.
    """

    def __init__(self, path: Path, remains: Path) -> None:
        self._path = path
        self._remains = remains
        self._at: int | None = None
        self.steps: list[str] = []
        self.is_armed = False

    def arm(self, at: int | None) -> None:
        """Begin to count; crash at this step, if there is one."""
        self.is_armed, self._at = True, at
        self.steps.clear()

    def __call__(self, when: str, sql: str) -> None:
        if not self.is_armed:
            return
        self.steps.append(f"{when} {' '.join(sql.split())}")
        if len(self.steps) - 1 == self._at:
            self.is_armed = False
            self._copy()
            raise Crash(self.steps[-1])

    def _copy(self) -> None:
        # Closing a file drops the locks that this process has on it; nobody else is there to take them.
        shutil.copyfile(f"{self._path}-wal", f"{self._remains}-wal")
        copy_file(self._path, self._remains)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file and, as those who die leave them behind, the locks of its workers, held by nobody."""
    shutil.copyfile(source, target)
    shutil.rmtree(f"{target}-workers", ignore_errors=True)
    for lock in Path(f"{source}-workers").glob("*.lock"):
        copy = Path(f"{target}-workers", lock.name)
        copy.parent.mkdir(exist_ok=True)
        copy.touch()


class Scene:
    """A file with jobs, of which every test begins with a copy. Whoever derives from it prepares them."""

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
        copy_file(self._path, path)
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
    """Repeats an operation in worlds that are alike, and crashes at another step each time."""

    def __init__(
        self, scene: Scene, folder: Path, operation: Operation, look: Callable[[Bench], Any] | None = None
    ) -> None:
        self._scene = scene
        self._path = folder / "jobs.db"
        self._operation = operation
        self.look = look or snapshot
        """What is compared: all jobs, unless a test says otherwise."""
        self.remains = folder / "remains.db"
        with self._begin(None) as (world, probe):
            self.before = self.look(world.bench)
            operation(world)
            self.after = self.look(world.bench)
            self.steps = list(probe.steps)
        assert len(self.steps) >= 4  # before and after a beginning and an end
        assert self.steps[-1] == "after COMMIT"

    @contextmanager
    def _begin(self, crash_at: int | None) -> Iterator[tuple[World, CrashPoint]]:
        clock = self._scene.copy_to(self._path)
        probe = CrashPoint(self._path, self.remains)
        with opened(self._path, clock, probe) as bench:
            probe.arm(crash_at)
            yield World(self._scene, bench), probe

    def crash_everywhere(self, then: Callable[[World, bool], None]) -> None:
        """Crash at every step; let the test look at the world, and tell it whether the operation was committed."""
        for number, step in enumerate(self.steps):
            with self._begin(number) as (world, _):
                with pytest.raises(Crash) as crash:
                    self._operation(world)
                assert str(crash.value) == step
                then(world, step == "after COMMIT")


@contextmanager
def opened(path: Path, clock: ManualClock, probe: Callable[[str, str], None] | None = None) -> Iterator[Bench]:
    """Lend an engine on this file, and let go of its locks in the end as a dead process does."""
    engine = SqliteEngine(path, clock=clock, durability="normal", probe=probe)
    bench = Bench(engine, clock)
    try:
        yield bench
    finally:
        engine.close()
        engine._presence.release_after_fork()  # the kernel does so when a process dies


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
            for lease in leases:
                assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
                completed.append(lease.id)
    bench.engine.leave(worker)
    return completed
