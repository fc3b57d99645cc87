"""Limits the log lines about a failure that repeats every second: one line at once, then one a minute.

The lines after the first one say how long the failure has lasted. The caller writes the lines, and reports the
first success.
"""

from __future__ import annotations

from mainspring.clock import NANOSECONDS

INTERVAL_NS = 60 * NANOSECONDS


class FailureLog:
    """Decides which repetitions of a failure are logged: the first, then one a minute.

    Concurrent calls may cause one line more.
    """

    __slots__ = ("_logged_ns", "_since_ns")

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._logged_ns: int  # set by the first failure

    def failed(self, now_ns: int) -> float | None:
        """Record a failure. If it must be logged now, return for how many seconds it has lasted; otherwise None.

        The result is 0.0 for the first failure.
        """
        if self._since_ns is None:
            self._since_ns = self._logged_ns = now_ns
            return 0.0
        if now_ns - self._logged_ns < INTERVAL_NS:
            return None
        self._logged_ns = now_ns
        return (now_ns - self._since_ns) / NANOSECONDS

    def succeeded(self) -> None:
        """Record a success: the next failure is logged at once."""
        self._since_ns = None
