"""Time travel for applications: thirty days of jobs, retries included, in milliseconds and in order.

The application gets a worker on a manual clock and, unless told otherwise, a fresh store of its own kind, so a
test neither sees nor touches the real one. Everything else is real: threads, transactions, handlers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from mainspring.app import Mainspring, Runtime
from mainspring.clock import Duration, SystemClock
from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import Engine
from mainspring.testing.manual_clock import ManualClock


class TimeTravel:
    """The clock of an application that travels."""

    def __init__(self, runtime: Runtime, clock: ManualClock) -> None:
        self._runtime = runtime
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
        self._runtime.manager.retime()
        self.clock.settle()


@contextmanager
def time_travel(app: Mainspring, *, start: datetime | None = None, isolated: bool = True) -> Iterator[TimeTravel]:
    """Run the jobs of `app` on a clock that moves only with `fast_forward`, while the block lasts.

    The journey starts at `start`, or now. With `isolated=False` it uses the application's own store.
    """
    clock = ManualClock(start or _next_second())
    app.load_handlers()
    with TemporaryDirectory(prefix="mainspring-") as folder:
        engine = _make_engine(app, clock, Path(folder) if isolated else None)
        runtime = Runtime(app, engine, clock, virtual_time=True)
        before = app.exchange_runtime(runtime)
        try:
            runtime.manager.start()
            yield TimeTravel(runtime, clock)
        finally:
            app.exchange_runtime(before)
            runtime.manager.hurry()
            runtime.close(0)


def _make_engine(app: Mainspring, clock: ManualClock, folder: Path | None) -> Engine:
    engine = app.make_engine(clock)
    if not isinstance(engine, SqliteEngine):
        return engine
    path = engine.path if folder is None else folder / "jobs.db"
    return SqliteEngine(path, clock=clock, durability="normal", is_shared=False)


def _next_second() -> datetime:
    """Return the next full second: what a test computes from the real clock within it is not in the future."""
    return SystemClock().now().astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
