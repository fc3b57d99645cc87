"""The time of an engine under test: moved by hand, or really waited for.

An engine with `Capability.VIRTUAL_TIME` lives by a manual clock: what is due is there, and time stands still while
nobody moves it. Any other has a time and a server of its own: it is given a moment, and looked at again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mainspring.jobs.engine import Capability, Engine
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.patience import eventually

MOST_REAL_SECONDS = 2.0
"""What a test may really wait for an engine that has a time of its own."""


class EngineTime:
    """An open engine, and how to let its time go by. `wakes` counts how often it has woken its workers."""

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
        """The engine's own time."""
        return self.engine.now()

    @property
    def is_virtual(self) -> bool:
        """Whether the engine lives by the manual clock."""
        return Capability.VIRTUAL_TIME in self.engine.capabilities

    def pass_time(self, duration: float) -> None:
        """Let seconds go by; an engine with a time of its own is really waited for, if they are few."""
        if self.is_virtual:
            self.clock.jump(duration)
            return
        self._waited += duration
        if self._waited > MOST_REAL_SECONDS:
            pytest.fail(
                f"this test lets {self._waited:g} seconds go by, and without virtual time at most "
                f"{MOST_REAL_SECONDS:g} are waited for: mark it with @needs(Capability.VIRTUAL_TIME), and let the "
                f"class of an engine without it say lacks = frozenset({{Capability.VIRTUAL_TIME}})"
            )
        time.sleep(duration)  # noqa: TID251 - there is no other way to let the time of a real server go by

    def eventually(self, check: Callable[[], bool]) -> bool:
        """Check; an engine with a time of its own is looked at until the check holds, for up to a minute."""
        return check() if self.is_virtual else eventually(check)

    def is_since(self, before: int, instant: int | None) -> bool:
        """Say whether something happened between then and now; on virtual time they may be one instant."""
        return instant is not None and before <= instant <= self.now

    def is_woken(self, since: int) -> bool:
        """Say whether workers were woken since there were so many `wakes`."""
        return self.eventually(lambda: self.wakes > since)
