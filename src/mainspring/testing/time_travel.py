"""Time travel for applications: thirty days of jobs, retries included, in milliseconds and in order.

The application gets a worker on a manual clock and, unless told otherwise, a fresh store of its own kind, so a
test neither sees nor touches the real one. Everything else is real: threads, transactions, handlers.
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
    """The clock of an application that travels."""

    def __init__(self, manager: JobManager, clock: ManualClock) -> None:
        self._manager = manager
        self.clock = clock

    @property
    def now(self) -> datetime:
        """The instant at which the application believes to be."""
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
        """Move on; everything due on the way has run, in order, when this returns.

        Fails after ten real seconds with the name of what does not come to rest.
        """
        self.clock.advance(
            duration, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )

    def settle(self) -> None:
        """Let everything that is due by now run."""
        self.clock.settle()

    def step_wall_clock(self, difference: Duration) -> None:
        """Set the wall clock forward, or back with a negative difference, as a time server does."""
        self.clock.step_wall(difference)
        self._manager.retime()
        self.clock.settle()


@contextmanager
def time_travel(app: Mainspring, *, start: datetime | None = None, isolated: bool = True) -> Iterator[TimeTravel]:
    """Run the jobs of `app` on a clock that moves only with `fast_forward`, while the block lasts.

    The journey starts at `start`, or now. With `isolated=False` it uses the application's own store.
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
    """Let `app` use this runtime while the block lasts, with a worker unless told otherwise."""
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
    """Make a clock that begins at `start`, or at the next full second.

    What a test computes from the real clock within that second is not in the future.
    """
    return ManualClock(start or SystemClock().now().astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1))


def make_engine(app: Mainspring, clock: ManualClock, folder: str | None) -> Engine:
    """Make an engine of the application's kind on this clock: on a new store in `folder`, or on its own."""
    engine = app.make_engine(clock)
    if Capability.VIRTUAL_TIME not in engine.capabilities:
        logger.info("%s lives by its own time: this journey runs in memory", engine.description)
        return MemoryEngine(clock=clock)
    if not isinstance(engine, SqliteEngine) or isinstance(engine, MemoryEngine):
        return engine
    path = engine.path if folder is None else Path(folder) / "jobs.db"
    return SqliteEngine(path, clock=clock, durability="normal", is_shared=False)
