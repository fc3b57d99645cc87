"""Waiting in tests for what must happen: one deadline, so generous that a busy machine keeps it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from mainspring.clock import NANOSECONDS, SystemClock

PATIENCE_SECONDS = 60.0
"""Real seconds after which a test gives up on what should take milliseconds."""
FIRST_TICK_SECONDS = 0.001
LONGEST_TICK_SECONDS = 0.05


def eventually(check: Callable[[], bool], patience: float = PATIENCE_SECONDS) -> bool:
    """Look until the check holds, ever less often; False if it does not hold within the deadline."""
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + round(patience * NANOSECONDS)
    tick, never = FIRST_TICK_SECONDS, Event()
    while not check():
        if clock.monotonic_ns() >= deadline_ns:
            return False
        never.wait(tick)
        tick = min(tick * 1.5, LONGEST_TICK_SECONDS)
    return True
