"""The delay manager of a pool: keeps delayed tasks until they are due, and then passes them to their runners."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from mainspring.clock import Clock
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry


class DelayManager(Timer):
    """Keeps the delayed tasks of all runners of a pool on one timing wheel.

    When a task is due, the timer calls the task, which queues itself on its runner. `lock` also guards the set of
    delayed tasks that each runner has.
    """

    def __init__(self, clock: Clock, *, name: str) -> None:
        super().__init__(clock, name=name)
        self.canceled = 0  # how many delayed tasks were canceled; guarded by `lock`
        self._calls_lock = RLock()
        self._calls: set[TimerEntry] = set()  # timers of the pool itself; guarded by `_calls_lock`

    def __len__(self) -> int:
        """Return the number of delayed tasks."""
        return max(0, super().__len__() - len(self._calls))

    def call_after(self, delay_ns: int, callback: Callable[[], object]) -> TimerEntry | None:
        """Call a short callback of the pool itself after a delay, on the timer's thread.

        Return an entry for `cancel_call`, or None if the timer is closed.
        """

        def call() -> None:
            with self._calls_lock:
                self._calls.discard(entry)
            callback()

        with self._calls_lock:
            try:
                entry = self.call_at(self._clock.monotonic_ns() + delay_ns, call)
            except RuntimeError:
                return None
            self._calls.add(entry)
            return entry

    def cancel_call(self, entry: TimerEntry) -> bool:
        """Cancel a call of `call_after`; return True if the callback will not be called."""
        with self._calls_lock:
            self._calls.discard(entry)
            return self.cancel(entry)
