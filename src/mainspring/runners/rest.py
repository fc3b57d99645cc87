"""Waiting for something to come to rest, at no cost while nobody waits.

Those who come to rest call `announce`, which is one comparison unless somebody waits. A waiter first makes
itself known and then looks; whoever comes to rest first changes its state and then looks for waiters: one of
the two sees the other.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

from mainspring.clock import Clock
from mainspring.runners.worker import current_worker


class Rest:
    """A condition that is notified only if somebody listens."""

    __slots__ = ("_changed", "_clock", "_waiters")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()
        self._waiters = 0  # guarded by _changed; read without it by `announce`

    def announce(self) -> None:
        """Let those who wait look again."""
        if self._waiters:
            with self._changed:
                self._changed.notify_all()

    def wait(self, is_reached: Callable[[], bool], deadline_ns: int | None, clock: Clock | None = None) -> bool:
        """Wait until `is_reached` answers True; False if the deadline, by `clock`, passed first."""
        clock = clock or self._clock
        worker = current_worker()
        if worker is None:
            return self._wait(is_reached, deadline_ns, clock)

        def is_over() -> bool:
            return is_reached() or (deadline_ns is not None and clock.monotonic_ns() >= deadline_ns)

        with worker.waiting(is_over), worker.standing_in():
            return self._wait(is_reached, deadline_ns, clock)

    def _wait(self, is_reached: Callable[[], bool], deadline_ns: int | None, clock: Clock) -> bool:
        with self._changed:
            self._waiters += 1
            try:
                while not is_reached():
                    if not clock.wait(self._changed, deadline_ns):
                        return is_reached()
                return True
            finally:
                self._waiters -= 1
