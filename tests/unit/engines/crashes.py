"""Crashes on demand: an engine that dies before or after a given step on its store, and what it leaves behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import JobRecord, OutcomeKind, Query
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
    """A file with a job in every state: one worker is at work, others have died. Every test begins with a copy."""

    def __init__(self, path: Path) -> None:
        self._path = path
        clock = ManualClock()
        with opened(path, clock) as bench:
            bench.bury("letter")
            worker, lease = bench.begin("done")
            assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
            bench.begin("orphan")
            bench.begin("held by the dead", after=0.5)
            bench.pass_time(46)
            self.worker = bench.enroll()
            bench.submit(*(f"running {kind.value}" for kind in OutcomeKind))
            self.running = dict(zip(OutcomeKind, bench.take(self.worker), strict=True))
            bench.submit("held", after=0.5)
            (self.held,) = bench.take(self.worker)
            bench.submit("due")
            bench.submit("soon", after=0.6)
            bench.submit("later", after=3600)
        self._now = clock.now()

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
        self.running = scene.running
        self.held = scene.held


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
