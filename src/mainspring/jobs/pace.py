"""Decides when periodic work may run again, so that it takes little processor time from other work of its process.

Work such as the updates of open pages runs once a second while the process has little else to do. While the
process is busy, the work waits until the process has used a multiple of its processor time for other things. So
the cost is a fixed share, however long the work takes, and however slow the machine is.

Invariants
- Two runs are an interval apart, at least.
- A process is busy if its other work has lately used `BUSY_SHARE` or more of the processor time that one thread
  could get. Then the work uses at most `share` of the processor time of the other work, and `BASE_SHARE` of the
  elapsed time.
- Otherwise it uses at most `SPARE_SHARE` of the elapsed time, if each run costs as much as the last one. A run
  after a long pause, which costs more, is not delayed.
- Only processor time counts. A run that waits for a lock, a server or a processor is not more expensive for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mainspring.clock import NANOSECONDS, SystemClock, process_ns

BUSY_SHARE = 0.25
BASE_SHARE = 0.002
SPARE_SHARE = 0.1


class ReadsMonotonicTime(Protocol):
    """The part of a clock that measures intervals."""

    def monotonic_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""


class Pace:
    """The pace of one kind of periodic work. It is not thread-safe.

    - `share`: the largest cost, as a share of the processor time of the other work of this process
    - `interval`: the seconds between the end of a run and the next run, at least
    - `clock`: measures the interval
    - `process_ns`: returns the processor time of the process
    """

    def __init__(
        self,
        *,
        share: float,
        interval: float = 1.0,
        clock: ReadsMonotonicTime | None = None,
        process_ns: Callable[[], int] = process_ns,
    ) -> None:
        self.interval = interval
        self._share = share
        self._clock = clock or SystemClock()
        self._process_ns = process_ns
        self._cost_ns = 0
        self._availability = 1.0
        self._is_busy = False
        self._sample = self._end = (self._clock.monotonic_ns(), process_ns())

    def end(self, cost_ns: int, availability: float = 1.0) -> None:
        """Record that a run of the work has ended.

        - `cost_ns`: the processor time that it has used
        - `availability`: the processor time that a thread which never waits gets, as a share of the elapsed time
        """
        self._cost_ns = cost_ns
        self._availability = availability
        self._sample = self._end = (self._clock.monotonic_ns(), self._process_ns())

    def is_due(self, expected_ns: int = 0) -> bool:
        """Return whether the work may run again. Once in an interval, also measure the load of the process.

        - `expected_ns`: the processor time that the next run will use, if it is known. Only a busy process
          considers it: the greater of this time and that of the last run counts.
        """
        now, used = self._clock.monotonic_ns(), self._process_ns()
        self._measure_load(now, used)
        elapsed, others = now - self._end[0], used - self._end[1]
        if elapsed < self.interval * NANOSECONDS:
            return False
        if self._is_busy:
            return others * self._share + elapsed * BASE_SHARE >= max(self._cost_ns, expected_ns)
        return elapsed * SPARE_SHARE >= self._cost_ns

    def _measure_load(self, now: int, used: int) -> None:
        """Find out whether the process is busy, once in an interval."""
        elapsed, others = now - self._sample[0], used - self._sample[1]
        if elapsed >= self.interval * NANOSECONDS:
            self._is_busy = others >= BUSY_SHARE * self._availability * elapsed
            self._sample = (now, used)
