"""A backlog does not starve new work: jobs that have just become due have a share of the starts."""

from __future__ import annotations

from mainspring.jobs.instants import MICROSECONDS

FRESH = 10 * MICROSECONDS
"""Jobs that became due within this time have a share of the starts while older ones are worked off."""
FRESH_SHARE = 4
"""One start in so many goes to them."""


class FreshShare:
    """Keeps a backlog from starving new work: while old jobs queue, every fourth start goes to a fresh one."""

    def __init__(self) -> None:
        self._credit = 0

    def share(self, starts: int, oldest_due: int, now: int) -> int:
        """Return how many of so many starts to give to jobs that have just become due."""
        if oldest_due >= now - FRESH:
            return 0
        self._credit += starts
        share, self._credit = divmod(self._credit, FRESH_SHARE)
        return share
