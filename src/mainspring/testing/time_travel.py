"""Time travel for tests: runs thirty days of jobs, including retries, in milliseconds and in order.

The application gets a worker on a manual clock and, by default, a new store of the same kind, so a test neither
sees nor changes the real one. Everything else is real: threads, transactions, handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from mainspring.app import Mainspring, Runtime
from mainspring.clock import Duration, SystemClock
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.manager import JobManager
from mainspring.testing.manual_clock import ManualClock

logger = logging.getLogger("mainspring.testing")


class TimeTravel:
    """Moves the clock of an application in a block of `time_travel`, `inline` or `Crash.recovered`."""

    def __init__(self, manager: JobManager, clock: ManualClock) -> None:
        self._manager = manager
        self.clock = clock

    @property
    def now(self) -> datetime:
        """The current time by the application's manual clock."""
        return self.clock.now()

    def fast_forward(
        self,
        duration: Duration = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Move the time forward. When this returns, everything that was due has run, in order.

        If something is not idle within ten real seconds, `TimeoutError` names it.
        """
        self.clock.advance(
            duration, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )

    def settle(self) -> None:
        """Wait until everything that is due now has run. The time does not move.

        Raises `TimeoutError` after ten real seconds.
        """
        self.clock.settle()

    def step_wall_clock(self, difference: Duration) -> None:
        """Set the wall clock forward, or back with a negative number of seconds, as a time server does.

        The monotonic clock does not change. When this returns, everything that is due by the new time has run.
        """
        self.clock.step_wall(difference)
        self._manager.retime()
        self.clock.settle()


@contextmanager
def time_travel(app: Mainspring, *, start: datetime | None = None, isolated: bool = True) -> Iterator[TimeTravel]:
    """Run the jobs of `app` in the `with` block on a clock that moves only with `fast_forward`.

    The clock begins at `start`, or at the next full second. The jobs are in a new, empty store of the same kind;
    with `isolated=False`, in the application's own store. An engine that needs real time, such as that of NATS, is
    always replaced by a store in memory.
    """
    clock = make_clock(start)
    with (
        TemporaryDirectory(prefix="mainspring-") as folder,
        in_place(
            app, Runtime(app, make_engine(app, clock, folder if isolated else None), clock, virtual_time=True)
        ),
    ):
        yield TimeTravel(app.manager(), clock)


@contextmanager
def in_place(app: Mainspring, runtime: Runtime, *, has_worker: bool = True) -> Iterator[None]:
    """Let `app` use this runtime instead of its own in the `with` block, by default with a worker; then close
    it.
    """
    before = app.exchange_runtime(runtime)
    try:
        if has_worker:
            app.load_handlers()
            runtime.manager.start()
        yield
    finally:
        app.exchange_runtime(before)
        runtime.manager.hurry()
        runtime.close(0)


def make_clock(start: datetime | None = None) -> ManualClock:
    """Create a manual clock that begins at `start`, or at the next full second.

    An instant that a test computes from the real clock within that second is then not in the future.
    """
    return ManualClock(start or SystemClock().now().astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1))


def make_engine(app: Mainspring, clock: ManualClock, folder: str | None) -> Engine:
    """Create an engine on this clock: of the application's kind, or in memory if that kind needs real time.

    A SQLite engine uses a new file in `folder`; without a folder, it uses the file of the application.
    """
    engine = app.make_engine(clock)
    if Capability.VIRTUAL_TIME not in engine.capabilities:
        logger.info("%s cannot use a manual clock; this test uses a store in memory instead", engine.description)
        return MemoryEngine(clock=clock)
    if not isinstance(engine, SqliteEngine) or isinstance(engine, MemoryEngine):
        return engine
    path = engine.path if folder is None else Path(folder) / "jobs.db"
    return SqliteEngine(path, clock=clock, durability="normal", is_shared=False)
