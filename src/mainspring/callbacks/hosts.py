"""Limits the requests that one process has in flight to a host, over all job types.

A `HostGate` has no lock: only the event loop of its client may use it.
"""

from __future__ import annotations

FULL_DELAY = 1.0
"""How long a job is put off if this process has enough requests to its host in flight, in seconds."""


class HostGate:
    """Counts the requests in flight to each host.

    `most` is how many there may be at once to one host, unless the caller of `enter` allows more; None for no
    limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._in_flight: dict[str, int] = {}

    def enter(self, host: str, at_least: int = 0) -> bool:
        """Count a request that may be sent now, and return True; return False if too many are in flight.

        `at_least` is a number of requests to the host that may be in flight even if `most` is smaller.
        """
        count = self._in_flight.get(host, 0)
        if self._most is not None and count >= max(self._most, at_least):
            return False
        self._in_flight[host] = count + 1
        return True

    def leave(self, host: str) -> None:
        """Count the end of a request that `enter` has counted."""
        left = self._in_flight[host] - 1
        if left:
            self._in_flight[host] = left
        else:
            del self._in_flight[host]

    def __len__(self) -> int:
        return len(self._in_flight)
