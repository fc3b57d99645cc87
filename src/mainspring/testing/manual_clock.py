"""A clock for tests that moves only when the test moves it, and drives a whole pool or application.

`advance` steps from event to event: it moves to the next due time, waits until everything that is due there has
run and is idle again, and only then moves on. So an hour of delays and repetitions runs in milliseconds and in
order, on the real threads of a real pool. `jump` moves the time at once and does not wait.

Invariants
- Time moves forward only, and only inside `advance` and `jump`; `step_wall` shifts the wall clock alone.
- A thread that waits with a deadline registers before it reads the time, and `_move_to` sets the time before it
  reads the registered threads. So one of the two always sees the other, and no wake-up is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Condition, Lock

from mainspring.clock import ClockMember, Duration, to_nanoseconds

START = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE_SECONDS = 10.0


class ManualClock:
    """A `Clock` for tests, which moves only when the test moves it: `ThreadPool(clock=ManualClock())`."""

    def __init__(self, start: datetime = START) -> None:
        if not isinstance(start, datetime):
            raise TypeError(f"start must be an aware datetime, got {start!r}")
        if start.tzinfo is None:
            raise ValueError(f"start must be an aware datetime, got {start!r}; add tzinfo=UTC")
        self._wall_start = start.astimezone(UTC)
        self._lock = Lock()  # guards the following attributes
        self._now_ns = 0
        self._wall_shift = timedelta()
        self._members: list[ClockMember] = []
        self._waiting: dict[object, tuple[Condition, int]] = {}

    # -- the Clock protocol

    def monotonic_ns(self) -> int:
        return self._now_ns

    def now(self) -> datetime:
        return self._wall_start + timedelta(microseconds=self._now_ns // 1_000) + self._wall_shift

    def wait(self, condition: Condition, deadline_ns: int | None) -> bool:
        if deadline_ns is None:
            condition.wait()
            return True
        with self._registered(condition, deadline_ns):
            if self._now_ns >= deadline_ns:
                return False
            condition.wait()
            return self._now_ns < deadline_ns

    def attach(self, member: ClockMember) -> None:
        with self._lock:
            self._members.append(member)

    def detach(self, member: ClockMember) -> None:
        with self._lock:
            if member in self._members:
                self._members.remove(member)

    # -- for tests

    def advance(
        self,
        duration: Duration = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Move the time forward by `duration`. When this returns, everything that was due has run, in order.

        `advance(90)`, `advance(timedelta(minutes=1.5))` and `advance(minutes=1, seconds=30)` are the same. If a
        task is not idle within ten real seconds, `TimeoutError` names it.
        """
        units = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        target = self._now_ns + to_nanoseconds(duration, "duration") + to_nanoseconds(units, "the duration")
        self._settle()
        while True:
            step = self._next_due(target)
            if step is None:
                break
            self._move_to(step)
            self._settle()
        self._move_to(target)
        self._settle()

    def jump(self, duration: Duration) -> None:
        """Move the time forward at once, without waiting. For tests in which a task is busy on purpose."""
        self._move_to(self._now_ns + to_nanoseconds(duration, "duration"))

    def step_wall(self, difference: Duration) -> None:
        """Shift the wall clock, as an administrator or a time server does. The monotonic time does not change."""
        shift = difference if isinstance(difference, timedelta) else timedelta(seconds=difference)
        with self._lock:
            self._wall_shift += shift

    def settle(self) -> None:
        """Wait until everything that is due now has run. The time does not move.

        Raises `TimeoutError` after ten real seconds.
        """
        self._settle()

    def _settle(self) -> None:
        # Repeated until nothing changes, because one member may give work to another that was already idle.
        before: object = None
        while (activity := [member.activity() for member in self._present_members()]) != before:
            before = activity
            for member in self._present_members():
                busy = member.settle(PATIENCE_SECONDS)
                if busy is not None:
                    raise TimeoutError(
                        f"not idle after {PATIENCE_SECONDS:g} real seconds: {busy}; "
                        f"use jump() if a task is busy on purpose"
                    )

    def _next_due(self, limit: int) -> int | None:
        """Return the next due time or deadline up to `limit`; None if there is none."""
        with self._lock:
            instants = [deadline for _, deadline in self._waiting.values()]
        instants += [due for member in self._present_members() if (due := member.next_due()) is not None]
        return min((instant for instant in instants if self._now_ns < instant <= limit), default=None)

    def _present_members(self) -> list[ClockMember]:
        with self._lock:
            return list(self._members)

    def _move_to(self, instant: int) -> None:
        with self._lock:
            self._now_ns = max(self._now_ns, instant)
            reached = [condition for condition, deadline in self._waiting.values() if deadline <= self._now_ns]
        for condition in reached:
            with condition:
                condition.notify_all()

    @contextmanager
    def _registered(self, condition: Condition, deadline_ns: int) -> Iterator[None]:
        key = object()
        with self._lock:
            self._waiting[key] = (condition, deadline_ns)
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[key]
