"""Crashes on demand: a scenario again and again, each time with a process that dies at the next step on its store.

    for crash in every_crash(app, lambda: charge.after(60).submit(42), prepare=ledger.clear):
        with crash.recovered():  # a new process starts and runs everything to the end
            assert len(ledger) <= 1  # never charged twice

A step is a statement that writes, or a commit, on a SQLite file of its own. What was committed before the crash is
there after it, and nothing else: a process that was killed. Handlers that were at work get to their end, but the
store does not learn of it. A disk that loses what it has confirmed, or tears a page, is not simulated.

Invariants
- A dead process writes nothing more, and its submitters never learn what became of their last submit.
- After every recovery: no job that was acknowledged or stored is gone, none is RUNNING or held by a dead worker.
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
from mainspring.jobs.queries import Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.stepping import PAGE, Stepping, find_all
from mainspring.testing.submits import SubmitWatcher, watch_submits
from mainspring.testing.time_travel import TimeTravel, in_place, make_clock

LONGEST_STEP = 80  # characters of a statement that are shown
WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "WITH")


class ProcessDied(BaseException):
    """The process ends here: raised by the submit that was under way, and by all after it. Do not catch it."""


class _DeadStore(EngineUnavailable):
    """The store of a process that has died."""


class Crash:
    """What a process left behind: `recovered()` is the next process on the same store."""

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
        """How many steps the process survived."""
        self.step = step
        """The step at which it died: 'before COMMIT'; None for the run that got through."""
        self.acknowledged = acknowledged
        """The ids of the jobs whose submit had returned."""
        self.is_recovered = False
        """Whether a new process has been there already."""

    @contextmanager
    def recovered(self) -> Iterator[TimeTravel]:
        """Start a new process, let it run every job to its end, and check that nothing was lost.

        Inside of the block the application works on this store. What a block raises says after which crash.
        """
        clock = ManualClock(self._now)
        engine = SqliteEngine(self._path, clock=clock, durability="normal")
        runtime = Runtime(self._app, engine, clock, virtual_time=True)
        try:
            with in_place(self._app, runtime, has_worker=False):
                left_behind = [record.id for record in _all_jobs(runtime.manager)]
                with _quiet():
                    runtime.manager.start()
                    Stepping(runtime.manager, clock).run_all()
                self.is_recovered = True
                self._check({record.id: record for record in _all_jobs(runtime.manager)}, left_behind)
                yield TimeTravel(runtime.manager, clock)
        except Exception as error:
            error.add_note(str(self))
            raise

    def _check(self, found: dict[str, JobRecord], left_behind: list[str]) -> None:
        for job_id in self.acknowledged:
            if job_id not in found:
                raise AssertionError(f"job {job_id} was acknowledged, and is gone")
        for job_id in left_behind:
            if job_id not in found:
                raise AssertionError(f"job {job_id} was stored, and is gone after the recovery")
        for record in found.values():
            if record.status is JobStatus.RUNNING or record.owner is not None:
                raise AssertionError(f"job {record.id} ({record.type}) is {record.status}, and nobody works on it")
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
    """Run a scenario and all jobs that follow from it, crash at one step after another, and yield what is left.

    The last one is the run in which all steps were survived. `prepare` is called before each run: let it reset
    what handlers work on. Handlers run as always, on a clock that begins at `start` and moves as far as their jobs
    need it; schedules stand still.
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
    """Make a store of which every run gets a copy: that is quicker than to make one each time."""
    engine = SqliteEngine(path)
    engine.open(lambda: None)
    engine.close()
    return path


def _run(app: Mainspring, scenario: Callable[[], object], path: Path, clock: ManualClock, number: int) -> Crash:
    """Let a process live that dies after so many steps, or gets through."""
    fate = _Fate(number)
    engine = SqliteEngine(path, clock=clock, durability="normal", probe=fate)
    runtime = Runtime(app, engine, clock, virtual_time=True)
    watch_submits(runtime.manager.submission, fate)
    with _quiet(), suppress(_DeadStore), in_place(app, runtime):
        stepping = Stepping(runtime.manager, clock)
        stepping.hold_schedules()
        clock.settle()
        fate.begin()
        try:
            scenario()
            stepping.run_all(lambda: fate.step is not None)
        except ProcessDied:
            pass
        except Exception:
            if fate.step is None:  # else it is of a process that has died
                raise
        finally:
            fate.end()
        clock.settle()  # no handler may work on beside the next process
    runtime.close(0)  # a dead process could not even leave; what is left of it goes now
    return Crash(app, path, clock.now(), number=number, step=fate.step, acknowledged=tuple(fate.acknowledged))


class _Fate(SubmitWatcher):
    """Counts the steps of a process on its store, and lets it die after so many of them."""

    def __init__(self, survives: int) -> None:
        self._survives = survives
        self._is_counting = False
        self.step: str | None = None
        """Where it died."""
        self.acknowledged: list[str] = []

    def begin(self) -> None:
        """Count from now on."""
        self._is_counting = True

    def end(self) -> None:
        """Count no more: whoever lives on, lives on."""
        self._is_counting = False

    def __call__(self, when: str, sql: str) -> None:
        """Come before and after every statement, inside of the unit to which it belongs."""
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
        """Let nobody catch the death of a process with `except Exception`."""
        return error if self.step is None else ProcessDied(self.step)


def _all_jobs(manager: JobManager) -> Iterator[JobRecord]:
    return find_all(manager, Query(limit=PAGE))


def _is_step(when: str, sql: str) -> bool:
    """Answer whether a crash here differs from the last one: after a statement is the same as before the next."""
    return sql == "COMMIT" or (when == "before" and sql.lstrip().startswith(WRITES))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what a worker says about a store that is gone, and about the jobs of the dead."""
    logger = logging.getLogger("mainspring")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
