"""Alarms at instants of engine time, rung in the control sequence and never early."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVarTuple

from mainspring.clock import Clock
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Engine
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry

Ts = TypeVarTuple("Ts")


class Alarms:
    """Turns instants of the engine, which may jump, into calls of a timer, which may not."""

    def __init__(self, timer: Timer, clock: Clock, engine: Engine, control: Control) -> None:
        self._timer = timer
        self._clock = clock
        self._engine = engine
        self._control = control

    def at(self, instant: int, call: Callable[[*Ts], None], *arguments: *Ts) -> TimerEntry:
        """Make a call as soon as the engine's time reaches an instant."""

        def ring() -> None:
            if self._engine.now() < instant:  # the clocks differ a little, or the wall clock was set back
                self.at(instant, call, *arguments)
            else:
                call(*arguments)

        due = self._clock.monotonic_ns() + (instant - self._engine.now()) * 1_000
        return self._timer.call_at(due, lambda: self._control.post(ring))

    def after(self, nanoseconds: int, call: Callable[[*Ts], None], *arguments: *Ts) -> TimerEntry:
        """Make a call after a while."""
        due = self._clock.monotonic_ns() + nanoseconds
        return self._timer.call_at(due, lambda: self._control.post(call, *arguments))

    def cancel(self, entry: TimerEntry | None) -> None:
        """Forget an alarm, if it has not rung."""
        if entry is not None:
            self._timer.cancel(entry)
