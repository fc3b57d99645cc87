"""Controls the time of an engine under test: moves a manual clock, or waits in real time.

An engine with `Capability.VIRTUAL_TIME` uses a manual clock: due jobs are available at once, and time moves only
when the test moves it. Any other engine has its own time, and perhaps a server; tests wait and poll it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mainspring.jobs.engine import Capability, Engine
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.polling import eventually

MAX_REAL_SECONDS = 2.0
"""The longest real time that a test may let pass for an engine with its own time."""
VIRTUAL_ATTEMPTS, VIRTUAL_STEP = 50, 0.2
"""How often `eventually_in_time` checks in virtual time, and how many seconds it lets pass in between."""


class EngineTime:
    """An open engine, and methods that let its time pass. `wakes` counts how often it woke its workers."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.wakes = 0
        self._waited = 0.0
        engine.open(self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def now(self) -> int:
        """The time of the engine, in microseconds."""
        return self.engine.now()

    @property
    def is_virtual(self) -> bool:
        """Whether the engine uses the manual clock."""
        return Capability.VIRTUAL_TIME in self.engine.capabilities

    def pass_time(self, duration: float) -> None:
        """Let seconds pass: on the manual clock, or in real time, then at most `MAX_REAL_SECONDS` in a test."""
        if self.is_virtual:
            self.clock.jump(duration)
            return
        self._waited += duration
        if self._waited > MAX_REAL_SECONDS:
            pytest.fail(
                f"this test waits for {self._waited:g} seconds, and without virtual time the limit is "
                f"{MAX_REAL_SECONDS:g}: mark it with @needs(Capability.VIRTUAL_TIME), and let the "
                f"class of an engine without it say lacks = frozenset({{Capability.VIRTUAL_TIME}})"
            )
        time.sleep(duration)  # noqa: TID251 - there is no other way to let time pass on a real server

    def eventually(self, check: Callable[[], bool]) -> bool:
        """Return the result of a check. Without virtual time, repeat it for up to a minute until it is True."""
        return check() if self.is_virtual else eventually(check)

    def eventually_in_time(self, check: Callable[[], bool]) -> bool:
        """Repeat a check until it is True while time passes: virtual seconds, or up to a minute of real time."""
        if not self.is_virtual:
            return eventually(check)
        for _ in range(VIRTUAL_ATTEMPTS):
            if check():
                return True
            self.pass_time(VIRTUAL_STEP)
        return False

    def is_since(self, before: int, instant: int | None) -> bool:
        """Return whether an instant is between `before` and now. In virtual time the two may be equal."""
        return instant is not None and before <= instant <= self.now

    def is_woken(self, since: int) -> bool:
        """Return whether the engine has woken its workers since `wakes` had this value."""
        return self.eventually(lambda: self.wakes > since)
