"""Judging whether another worker is silent, by one's own observation and not by the clock on the wall.

A wall clock may be set, and whoever was itself stopped or held up must not blame others. So silence is only what
was observed: a heartbeat that stayed the same while this worker itself kept looking.
"""

from __future__ import annotations

from mainspring.clock import NANOSECONDS, Clock
from mainspring.jobs.engine import STALE

STALE_NS = STALE * 1_000
LONGEST_GAP_NS = 15 * NANOSECONDS  # of the time between two looks, no more is counted
DECLARED_DEAD = 0  # a heartbeat that says so


class Vigil:
    """Watches the heartbeats of others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked = clock.monotonic_ns()
        self._silent: dict[int, tuple[int, int]] = {}  # for each worker: its heartbeat, and for how long the same

    def find_silent(self, heartbeats: dict[int, int]) -> list[int]:
        """Look at the others; return those that have been silent for too long."""
        now = self._clock.monotonic_ns()
        gap = min(LONGEST_GAP_NS, now - self._looked)
        self._looked = now
        before, self._silent = self._silent, {}
        for number, beat in heartbeats.items():
            known, silence = before.get(number, (beat, -gap))
            self._silent[number] = (beat, silence + gap if known == beat else 0)
        return [
            number
            for number, (beat, silence) in self._silent.items()
            if beat == DECLARED_DEAD or silence >= STALE_NS
        ]
