"""The delay manager of a pool: it keeps delayed tasks until they are due, then passes them to their runners."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from mainspring.clock import Clock, Duration
from mainspring.runners.task import TracedTask
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry, WheelStatistics


class DelayManager:
    """The delayed tasks of all runners of a pool, on one timing wheel."""

    def __init__(self, clock: Clock, *, name: str) -> None:
        self._clock = clock
        self._timer = Timer(clock, name=name)
        self._calls_lock = RLock()
        self._calls: set[TimerEntry] = set()  # timers of the pool itself; guarded by _calls_lock

    def __len__(self) -> int:
        """Return the number of delayed tasks."""
        return max(0, len(self._timer) - len(self._calls))

    def arm(self, task: TracedTask, due: int) -> None:
        """Pass the task to its runner at `due`, unless it is disarmed before."""
        task.due = due
        task.timer_entry = self._timer.call_at(due, task.become_due)

    def disarm(self, task: TracedTask) -> None:
        """Remove the timer of a delayed task at once."""
        if task.timer_entry is not None:
            self._timer.cancel(task.timer_entry)
            task.timer_entry = None

    def call_after(self, delay_ns: int, callback: Callable[[], object]) -> TimerEntry | None:
        """Call a short callback of the pool itself after a delay, on the timer's thread. None after `close`."""

        def call() -> None:
            with self._calls_lock:
                self._calls.discard(entry)
            callback()

        with self._calls_lock:
            try:
                entry = self._timer.call_at(self._clock.monotonic_ns() + delay_ns, call)
            except RuntimeError:
                return None
            self._calls.add(entry)
            return entry

    def cancel_call(self, entry: TimerEntry) -> bool:
        """Cancel a `call_after`; return True if the call will not be made."""
        with self._calls_lock:
            self._calls.discard(entry)
            return self._timer.cancel(entry)

    def next_due(self) -> int | None:
        """Return the next due time, or a lower bound of it."""
        return self._timer.next_due()

    def statistics(self) -> WheelStatistics:
        """Return the statistics of the wheel, which include the timers of the pool itself."""
        return self._timer.statistics()

    def settle(self, timeout: Duration | None) -> bool:
        """Wait until all tasks due by now have reached their runners; False after `timeout`, in real time."""
        return self._timer.settle(timeout)

    def close(self) -> None:
        """Drop all timers and end the timer's thread."""
        self._timer.close()
