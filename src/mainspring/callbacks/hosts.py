"""Pauses requests to a host that asked for it, and limits the requests that one process has in flight to a host.

A host that answers 429 or 503 gets no requests until its `Retry-After` has passed, or for a time that doubles with
each such answer. Jobs that become due meanwhile are snoozed, and return one after the other when the pause is
over.

A `HostGate` has no lock: only the event loop of its client may use it.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.clock import NANOSECONDS

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
LONGEST_REQUESTED = 86_400.0
"""The longest pause that a host can ask for by `Retry-After`, in seconds."""
PACE = 0.05
"""The time between the returns of two jobs that were snoozed because of a pause, in seconds."""
LONGEST_SPREAD = 60.0
MOST_HOSTS = 10_000
"""At this number of hosts, those without requests and pauses are forgotten, with the count of earlier pauses."""
FULL_DELAY = 1.0
"""How long a job is snoozed if this process has enough requests to its host in flight, in seconds."""


class _Host:
    __slots__ = ("in_flight", "paused_until", "put_off", "strikes")

    def __init__(self) -> None:
        self.in_flight = 0
        self.paused_until = 0
        self.strikes = 0
        self.put_off = 0


class HostGate:
    """Decides whether a request to a host may be sent now or must wait: for a pause, or for other requests.

    - `most`: how many requests to one host may be in flight at once, unless the caller of `enter` allows more;
      None for no limit
    - `now_ns`: the monotonic clock, in nanoseconds
    """

    def __init__(self, most: int | None, now_ns: Callable[[], int]) -> None:
        self._most = most
        self._now_ns = now_ns
        self._hosts: dict[str, _Host] = {}

    def enter(self, host: str, at_least: int = 0) -> float | None:
        """Count a request that may be sent now, and return None; else return after how many seconds to ask again.

        `at_least` is a number of requests to the host that may be in flight even if `most` is smaller. No request
        may be sent during a pause.
        """
        state = self._hosts.get(host)
        if state is None:
            if len(self._hosts) >= MOST_HOSTS:
                self._forget_idle()
            state = self._hosts[host] = _Host()
        left = (state.paused_until - self._now_ns()) / NANOSECONDS
        if left > 0:
            state.put_off += 1
            return left + min(LONGEST_SPREAD, PACE * state.put_off)
        if self._most is not None and state.in_flight >= max(self._most, at_least):
            return FULL_DELAY
        state.in_flight += 1
        return None

    def leave(self, host: str) -> None:
        """Count the end of a request that `enter` has counted."""
        state = self._hosts[host]
        state.in_flight -= 1
        if not state.in_flight and not state.strikes and state.paused_until <= self._now_ns():
            del self._hosts[host]

    def slow_down(self, host: str, seconds: float | None) -> float:
        """Pause a host for `seconds`, at most one day, and return the length of this pause in seconds.

        If `seconds` is None, the pause doubles with each pause in a row, from one second to a minute. An earlier
        pause that ends later stays. A request to the host must be in flight.
        """
        state = self._hosts[host]
        now = self._now_ns()
        if state.paused_until <= now:  # answers to requests that were sent before the pause count once
            state.strikes += 1
            state.put_off = 0
        own = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (state.strikes - 1))
        pause = own if seconds is None else min(seconds, LONGEST_REQUESTED)
        state.paused_until = max(state.paused_until, now + round(pause * NANOSECONDS))
        return pause

    def recover(self, host: str) -> None:
        """Forget how many pauses a host had in a row, because it has answered with success.

        A pause that has not ended stays. A request to the host must be in flight.
        """
        state = self._hosts[host]
        state.strikes = 0

    def _forget_idle(self) -> None:
        now = self._now_ns()
        self._hosts = {
            host: state for host, state in self._hosts.items() if state.in_flight or state.paused_until > now
        }

    def __len__(self) -> int:
        return len(self._hosts)
