"""The time budget of a measurement: it decides how many rounds are run, and how long each is.

A round is made longer until it takes long enough to be measured. Then rounds are repeated until the time is over,
and the best one counts, because other programs can only slow a round down. A request to stop takes effect when a
measurement reports its progress, at the latest after the current round.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.bench.figures import RateFigure
from mainspring.clock import NANOSECONDS, Clock, SystemClock

ROUND_SHARE = 0.1  # a round is long enough if it takes this share of the time of a measurement, or ROUND_SECONDS
ROUND_SECONDS = 0.25  # a round that takes this long is always long enough
GROWTH = 4


class BenchStopped(Exception):
    """`MeasurementBudget.report` raises this if the user has asked to stop the measurements."""


class MeasurementBudget:
    """The time for each measurement, and the largest number of jobs in one round of it.

    - `seconds`: the time for each measurement
    - `jobs`: the largest number of jobs in one round
    - `on_progress`: gets the seconds spent and the rate so far, None if there is no rate yet
    - `is_stopped`: returns whether the user has asked to stop
    """

    def __init__(
        self,
        *,
        seconds: float,
        jobs: int,
        clock: Clock | None = None,
        on_progress: Callable[[float, float | None], None] | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> None:
        self.seconds = seconds
        self.jobs = jobs
        self.clock = clock or SystemClock()
        self._on_progress = on_progress
        self._is_stopped = is_stopped
        self._began_ns = self.clock.monotonic_ns()

    def begin(self) -> None:
        """Start the time of the next measurement, and report its begin, as `report` does.

        Raises `BenchStopped` if the user has asked to stop.
        """
        self._began_ns = self.clock.monotonic_ns()
        self.report()

    @property
    def spent(self) -> float:
        """How many seconds have passed since `begin`, the start of the current measurement."""
        return self.since(self._began_ns)

    @property
    def is_over(self) -> bool:
        """Whether the time of the current measurement is over."""
        return self.spent >= self.seconds

    def since(self, began_ns: int) -> float:
        """Return the seconds since `began_ns`, an earlier reading of the monotonic clock."""
        return (self.clock.monotonic_ns() - began_ns) / NANOSECONDS

    def report(self, per_second: float | None = None) -> None:
        """Report the time spent and the rate so far; raise `BenchStopped` if the user has asked to stop."""
        if self._is_stopped is not None and self._is_stopped():
            raise BenchStopped
        if self._on_progress is not None:
            self._on_progress(min(self.spent, self.seconds), per_second)

    def timed(self, work: Callable[[int], object]) -> Callable[[int], float]:
        """Return a function that calls `work` with its argument and returns how many seconds the call took."""

        def measured(count: int) -> float:
            began = self.clock.monotonic_ns()
            work(count)
            return self.since(began)

        return measured

    def best_rate(self, work: Callable[[int], float], *, first: int = 1, most: int | None = None) -> RateFigure:
        """Return the best rate of several calls of `work`, which gets a count and returns the seconds it took.

        The count grows from `first` to at most `most` (without it, `jobs` of the budget) until a call takes long
        enough to be measured. Calls before do not count. The last count is repeated until the time of the
        measurement is over; at least one call counts. Raises `BenchStopped` if the user has asked to stop.
        """
        limit = self.jobs if most is None else most
        long_enough = min(self.seconds * ROUND_SHARE, ROUND_SECONDS)
        count = min(first, limit)
        best, rounds = 0.0, 0
        while not self.is_over or not rounds:
            seconds = work(count)
            if seconds < long_enough and count < limit and not self.is_over:
                count = min(limit, count * GROWTH)
                self.report()
                continue
            rounds += 1
            best = max(best, count / max(seconds, 1 / NANOSECONDS))
            self.report(best)
        return RateFigure(best, rounds)
