"""Polls for a condition in tests, with one deadline that is long enough for a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from mainspring.clock import NANOSECONDS, SystemClock

PATIENCE_SECONDS = 60.0
"""Real seconds after which a test stops waiting for something that should take milliseconds."""
FIRST_TICK_SECONDS = 0.001
LONGEST_TICK_SECONDS = 0.05


def eventually(check: Callable[[], bool], patience: float = PATIENCE_SECONDS) -> bool:
    """Call `check` at growing intervals until it returns True; return False if it does not within `patience`
    seconds.
    """
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + round(patience * NANOSECONDS)
    tick, never = FIRST_TICK_SECONDS, Event()
    while not check():
        if clock.monotonic_ns() >= deadline_ns:
            return False
        never.wait(tick)
        tick = min(tick * 1.5, LONGEST_TICK_SECONDS)
    return True
