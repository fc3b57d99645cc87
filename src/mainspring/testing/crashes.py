"""Simulates crashes: runs a scenario many times, and each time the process dies one step later.

    for crash in every_crash(app, lambda: charge.after(60).submit(42), prepare=ledger.clear):
        with crash.recovered():  # a new process starts and runs everything to the end
            assert len(ledger) <= 1  # never charged twice

A step is a writing statement or a commit; each run has its own SQLite file. As after a kill, the store has
everything that was committed before the crash, and nothing else. Handlers that run at the crash continue to their
end, but their outcome is not stored. A disk that loses confirmed data, or tears a page, is not simulated.

Invariants
- A dead process writes nothing more. The caller of a submit in progress does not learn whether it was stored.
- After every recovery: no job that was acknowledged or stored is missing, none is RUNNING or leased to a worker,
  and none is COMPLETED without having started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from mainspring.app import Mainspring, Runtime
from mainspring.engines.sqlite import SqliteEngine
from mainspring.errors import EngineUnavailable
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus
from mainspring.testing.clock_stepper import PAGE, ClockStepper, find_all
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.submit_watcher import SubmitWatcher, watch_submits
from mainspring.testing.time_travel import TimeTravel, in_place, make_clock

LONGEST_STEP = 80  # how many characters of a statement a message shows
WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "WITH")


class ProcessDied(BaseException):
    """Raised by all submits after the simulated process has died, also by the one in progress. Do not catch it."""


class _DeadStore(EngineUnavailable):
    """Raised for each access to the store after the simulated process has died."""


class Crash:
    """The store that a simulated process left when it died. `recovered()` starts the next process on it."""

    def __init__(
        self,
        app: Mainspring,
        path: Path,
        now: datetime,
        *,
        number: int,
        step: str | None,
        acknowledged: tuple[str, ...],
    ) -> None:
        self._app = app
        self._path = path
        self._now = now
        self.number = number
        """The number of steps that the process completed before it died."""
        self.step = step
        """The step at which the process died: 'before COMMIT'; None for the run without a crash."""
        self.acknowledged = acknowledged
        """The ids of the jobs whose submit had returned before the crash."""
        self.is_recovered = False
        """Whether `recovered` has already started a new process on the store."""

    @contextmanager
    def recovered(self) -> Iterator[TimeTravel]:
        """Start a new simulated process, let it run every job to its end, and check that no job was lost.

        Inside of the `with` block the application uses this store. Raises `AssertionError` if a job is missing, is
        still RUNNING or leased, or is COMPLETED and has never run. An exception, also of the block, gets a note
        that names the crash.
        """
        clock = ManualClock(self._now)
        engine = SqliteEngine(self._path, clock=clock, durability="normal")
        runtime = Runtime(self._app, engine, clock, virtual_time=True)
        try:
            with in_place(self._app, runtime, has_worker=False):
                left_behind = [record.id for record in _all_jobs(runtime.manager)]
                with _quiet():
                    runtime.manager.start()
                    ClockStepper(runtime.manager, clock).run_all()
                self.is_recovered = True
                self._check({record.id: record for record in _all_jobs(runtime.manager)}, left_behind)
                yield TimeTravel(runtime.manager, clock)
        except Exception as error:
            error.add_note(str(self))
            raise

    def _check(self, found: dict[str, JobRecord], left_behind: list[str]) -> None:
        for job_id in self.acknowledged:
            if job_id not in found:
                raise AssertionError(f"job {job_id} was acknowledged, and is gone after the recovery")
        for job_id in left_behind:
            if job_id not in found:
                raise AssertionError(f"job {job_id} was stored before the crash, and is gone after the recovery")
        for record in found.values():
            if record.status is JobStatus.RUNNING or record.owner is not None:
                raise AssertionError(
                    f"job {record.id} ({record.type}) is {record.status} after the recovery, and a worker still "
                    "holds it"
                )
            if record.status is JobStatus.COMPLETED and not record.starts:
                raise AssertionError(f"job {record.id} ({record.type}) is COMPLETED, and has never run")

    def __str__(self) -> str:
        if self.step is None:
            return f"in the run without a crash, after all {self.number} steps"
        return f"after crash {self.number}: the process died {self.step}"

    def __repr__(self) -> str:
        return f"<Crash {self}>"


def every_crash(
    app: Mainspring,
    scenario: Callable[[], object],
    *,
    prepare: Callable[[], object] | None = None,
    start: datetime | None = None,
) -> Iterator[Crash]:
    """Run a scenario and all jobs that result from it repeatedly, each time with a crash one step later.

    Yield a `Crash` for each run; the last run completes without a crash. A crash that the caller has not recovered
    is recovered, and so checked, before the next run.

    `prepare` is called before each run: let it reset the data of your handlers. Handlers run as always, on a clock
    that begins at `start` and moves as far as their jobs need it. Schedules do not fire.
    """
    app.load_handlers()
    with TemporaryDirectory(prefix="mainspring-") as folder:
        blank = _make_blank(Path(folder) / "blank.db")
        for number in count():
            if prepare is not None:
                prepare()
            path = Path(folder) / f"{number}.db"
            copyfile(blank, path)
            crash = _run(app, scenario, path, make_clock(start), number)
            yield crash
            if not crash.is_recovered:
                with crash.recovered():
                    pass
            if crash.step is None:
                return


def _make_blank(path: Path) -> Path:
    """Create an empty store. Each run gets a copy, which is faster than creating a new store."""
    engine = SqliteEngine(path)
    engine.open(lambda: None)
    engine.close()
    return path


def _run(app: Mainspring, scenario: Callable[[], object], path: Path, clock: ManualClock, number: int) -> Crash:
    """Run the scenario in a simulated process that dies after `number` steps, unless it completes before."""
    crash_point = _CrashPoint(number)
    engine = SqliteEngine(path, clock=clock, durability="normal", probe=crash_point)
    runtime = Runtime(app, engine, clock, virtual_time=True)
    watch_submits(runtime.manager.submission, crash_point)
    with _quiet(), suppress(_DeadStore), in_place(app, runtime):
        stepper = ClockStepper(runtime.manager, clock)
        stepper.pause_schedules()
        clock.settle()
        crash_point.begin()
        try:
            scenario()
            stepper.run_all(lambda: crash_point.step is not None)
        except ProcessDied:
            pass
        except Exception:
            if crash_point.step is None:  # otherwise the error is a consequence of the crash
                raise
        finally:
            crash_point.end()
        clock.settle()  # no handler may still run when the next process starts
    runtime.close(0)  # the dead process could not close the store itself
    return Crash(
        app, path, clock.now(), number=number, step=crash_point.step, acknowledged=tuple(crash_point.acknowledged)
    )


class _CrashPoint(SubmitWatcher):
    """Counts the steps of a process on its store, and makes it die after `survives` steps."""

    def __init__(self, survives: int) -> None:
        self._survives = survives
        self._is_counting = False
        self.step: str | None = None
        """The step at which the process died; None while it lives."""
        self.acknowledged: list[str] = []

    def begin(self) -> None:
        """Start to count the steps of the process: statements that write, and commits."""
        self._is_counting = True

    def end(self) -> None:
        """Stop counting steps: a process that has not died by now does not die any more."""
        self._is_counting = False

    def __call__(self, when: str, sql: str) -> None:
        """Count the call if it is a step: before a statement that writes, or before or after COMMIT.

        Only steps between `begin` and `end` count. Raise `_DeadStore` at the step at which the process dies, and
        at each later call. The engine calls this before and after every statement of a transaction.
        """
        if self.step is None and self._is_counting and _is_step(when, sql):
            if self._survives == 0:
                self.step = f"{when} {' '.join(sql.split()):.{LONGEST_STEP}}"
            self._survives -= 1
        if self.step is not None:
            raise _DeadStore(engine="the store", reason="this process has died", remedy="see every_crash()")

    def after(self, ids: list[str]) -> None:
        if self.step is not None:
            raise ProcessDied(self.step)
        self.acknowledged += ids

    def translate(self, error: Exception) -> BaseException:
        """Return `ProcessDied` for the errors of a dead process, so that `except Exception` does not catch
        them.
        """
        return error if self.step is None else ProcessDied(self.step)


def _all_jobs(manager: JobManager) -> Iterator[JobRecord]:
    return find_all(manager, Query(limit=PAGE))


def _is_step(when: str, sql: str) -> bool:
    """Return whether a crash here leaves another store than a crash at the previous step.

    A crash after a statement leaves the same store as one before the next statement, except after a commit.
    """
    return sql == "COMMIT" or (when == "before" and sql.lstrip().startswith(WRITES))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log messages about the failing store and about the jobs of the dead worker."""
    logger = logging.getLogger("mainspring")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
