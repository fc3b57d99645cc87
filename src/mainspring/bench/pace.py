"""How long measurements take, and how often what they measure is repeated.

A round is made longer until it takes long enough to be measured; then rounds are repeated until the time is over,
and the best counts: other programs can only make it worse. Between two rounds whoever has asked to stop is heard.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.bench.figures import Rate
from mainspring.clock import NANOSECONDS, Clock, SystemClock

ROUND_SHARE = 0.1  # of the time of a measurement: a shorter round says too little,
ROUND_SECONDS = 0.25  # but a longer one is not needed
GROWTH = 4


class Stopped(Exception):
    """Somebody has asked to stop."""


class Pace:
    """The time that each measurement has, and the number of jobs that it may make at once."""

    def __init__(
        self,
        *,
        seconds: float,
        jobs: int,
        clock: Clock | None = None,
        tell: Callable[[float, float | None], None] | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> None:
        self.seconds = seconds
        self.jobs = jobs
        self.clock = clock or SystemClock()
        self._tell = tell
        self._is_stopped = is_stopped
        self._began_ns = self.clock.monotonic_ns()

    def begin(self) -> None:
        """Begin a measurement: its time starts now."""
        self._began_ns = self.clock.monotonic_ns()
        self.note()

    @property
    def spent(self) -> float:
        """The seconds that this measurement has taken."""
        return self.since(self._began_ns)

    @property
    def is_over(self) -> bool:
        """Whether its time is over."""
        return self.spent >= self.seconds

    def since(self, began_ns: int) -> float:
        """Return the seconds since a reading of the clock."""
        return (self.clock.monotonic_ns() - began_ns) / NANOSECONDS

    def note(self, per_second: float | None = None) -> None:
        """Tell how far this measurement is, and how fast it was; `Stopped` if somebody has asked for it."""
        if self._is_stopped is not None and self._is_stopped():
            raise Stopped
        if self._tell is not None:
            self._tell(min(self.spent, self.seconds), per_second)

    def timed(self, work: Callable[[int], object]) -> Callable[[int], float]:
        """Return work that says how many seconds it took."""

        def measured(count: int) -> float:
            began = self.clock.monotonic_ns()
            work(count)
            return self.since(began)

        return measured

    def best_rate(self, work: Callable[[int], float], *, first: int = 1, most: int | None = None) -> Rate:
        """Do `work`, which returns its seconds, with growing counts, then again and again."""
        limit = self.jobs if most is None else most
        long_enough = min(self.seconds * ROUND_SHARE, ROUND_SECONDS)
        count = min(first, limit)
        best, rounds = 0.0, 0
        while not self.is_over or not rounds:
            seconds = work(count)
            if seconds < long_enough and count < limit and not self.is_over:
                count = min(limit, count * GROWTH)
                self.note()
                continue
            rounds += 1
            best = max(best, count / max(seconds, 1 / NANOSECONDS))
            self.note(best)
        return Rate(best, rounds)
