"""A timer: one thread that sleeps until the wheel's next due time and then calls the callbacks that are due.

The thread starts when the first callback is added. It wakes up only for callbacks, so an idle timer uses no CPU
time. The thread calls the callbacks one after another, in the order of due time and arrival, and holds no lock
during a call. So callbacks must be short. Slow work belongs on a runner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Condition, RLock, Thread, current_thread
from typing import TypeAlias

from mainspring.clock import Clock, Duration, SystemClock, deadline_after
from mainspring.timing.wheel import TimerEntry, TimingWheel, WheelStatistics

Callback: TypeAlias = Callable[[], object]

logger = logging.getLogger("mainspring.timing")


class Timer:
    """A timer that calls callbacks at given instants of a clock."""

    def __init__(self, clock: Clock, *, name: str) -> None:
        self._clock = clock
        self._name = name
        # Guards all attributes below. Re-entrant, because a signal handler or a finalizer may set a timer at any
        # time.
        self.lock = RLock()
        self._changed = Condition(self.lock)  # `with self.lock` is faster than `with self._changed`
        self._wheel: TimingWheel[Callback] = TimingWheel(now=clock.monotonic_ns())
        self._thread: Thread | None = None
        self._wakes_at: int | None = None  # the instant until which the thread sleeps
        self._is_calling = False
        self._is_closed = False

    def call_at(self, due: int, callback: Callback) -> TimerEntry:
        """Arrange one call of `callback` when the monotonic clock reads `due` (ns); return an entry for `cancel`.

        The thread of the timer makes the call; the first arranged call starts the thread. If `due` has passed, the
        call is made as soon as possible. Raises `RuntimeError` if the timer is closed.
        """
        with self.lock:
            if self._is_closed:
                raise RuntimeError(f"timer {self._name!r} is closed and takes no more callbacks")
            if self._thread is None:
                thread = Thread(target=self._run, name=f"{self._name}-timer", daemon=True)
                thread.start()  # the new thread waits for the lock, which this thread holds
                self._thread = thread
            entry = self._wheel.insert(due, callback)
            if self._wakes_at is None or due < self._wakes_at:
                self._changed.notify_all()
            return entry

    def cancel(self, entry: TimerEntry) -> bool:
        """Cancel a call; return True if that prevents the call.

        Return False if the call was made, is just being made or was canceled before, or if the timer is closed.
        """
        with self.lock:
            return self._wheel.cancel(entry)

    def discard(self, entry: TimerEntry) -> bool:
        """Cancel a call, as `cancel` does, for a caller that holds `lock`."""
        return self._wheel.cancel(entry)

    def next_due(self) -> int | None:
        """Return the monotonic time (ns) at which the thread must wake up next; None if no call is pending.

        This time is never later than the due time of the earliest call.
        """
        with self._changed:
            return self._wheel.next_due()

    def statistics(self) -> WheelStatistics:
        """Return the statistics of the wheel. After `close`, the wheel is empty."""
        with self._changed:
            return self._wheel.statistics()

    def __len__(self) -> int:
        return len(self._wheel)

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._collect()
                if due is None:
                    return
                self._is_calling = True
            self._call(due)
            del due

    def _call(self, callbacks: list[Callback]) -> None:
        for callback in callbacks:
            try:
                callback()
            except BaseException:  # a failed callback must not end the thread
                logger.exception("a callback of timer %r failed; the timer goes on with the others", self._name)

    def _collect(self) -> list[Callback] | None:
        """Sleep until callbacks are due, remove them from the wheel and return them; None if the timer is closed.

        The caller must hold the lock.
        """
        self._is_calling = False
        while not self._is_closed:
            now = self._clock.monotonic_ns()
            due = self._wheel.advance(now)
            if due:
                return due
            self._wakes_at = self._wheel.next_due()
            self._changed.notify_all()  # wake the threads that wait in `settle`
            self._clock.wait(self._changed, self._wakes_at)
        self._changed.notify_all()
        return None

    def settle(self, timeout: Duration | None) -> bool:
        """Wait until all callbacks that are due now have been called; return False after `timeout` of real time.

        A `timeout` of None waits without limit. Return True at once if the timer is closed, if no call was
        arranged yet, and inside a callback of this timer, because the callback would wait for itself.
        """
        if current_thread() is self._thread:
            return True
        real = SystemClock()
        deadline = deadline_after(real, timeout)
        now = self._clock.monotonic_ns()
        with self._changed:
            while self._thread is not None and not self._is_closed and self._has_due(now):
                if not real.wait(self._changed, deadline):
                    return False
        return True

    def _has_due(self, now: int) -> bool:
        next_due = self._wheel.next_due()
        return self._is_calling or (next_due is not None and next_due <= now)

    def close(self) -> None:
        """Drop all pending calls and end the thread, without waiting for a call that is in progress."""
        with self._changed:
            self._is_closed = True
            self._wheel = TimingWheel(now=self._clock.monotonic_ns())
            self._changed.notify_all()
