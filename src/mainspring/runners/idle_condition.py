"""A condition for waiting until a component is idle.

A thread that changes the state calls `announce`. While no thread waits, this call only reads `waiters`. No
wake-up is lost: a waiter first increments `waiters` and then checks the state; the other thread first changes
the state and then reads `waiters`. One of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

from mainspring.clock import Clock
from mainspring.runners.worker import current_worker


class IdleCondition:
    """A condition on which threads wait until a component is idle. `announce` costs little if no thread waits."""

    __slots__ = ("_changed", "_clock", "waiters")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()
        self.waiters = 0
        """The number of waiting threads: changed under the lock, read without it.

        At 0, `announce` does nothing.
        """

    def announce(self) -> None:
        """Make the waiting threads check their condition again."""
        if self.waiters:
            with self._changed:
                self._changed.notify_all()

    def wait(self, is_reached: Callable[[], bool], deadline_ns: int | None, clock: Clock | None = None) -> bool:
        """Wait until `is_reached` returns True; return False if the deadline passes first.

        The deadline is by `clock`, or by the clock of this condition if None. Without a deadline, wait for ever. A
        wait inside of a task counts as `blocking()`.
        """
        clock = clock or self._clock
        worker = current_worker()
        if worker is None:
            return self._wait(is_reached, deadline_ns, clock)

        def is_over() -> bool:
            return is_reached() or (deadline_ns is not None and clock.monotonic_ns() >= deadline_ns)

        with worker.waiting(is_over), worker.blocking():
            return self._wait(is_reached, deadline_ns, clock)

    def _wait(self, is_reached: Callable[[], bool], deadline_ns: int | None, clock: Clock) -> bool:
        with self._changed:
            self.waiters += 1
            try:
                while not is_reached():
                    if not clock.wait(self._changed, deadline_ns):
                        return is_reached()
                return True
            finally:
                self.waiters -= 1
