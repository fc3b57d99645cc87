"""The watchdog: work could start, this worker could run it, and nobody takes any of it.

A backlog is no reason to bark: somebody works it off. So it judges by what it has observed itself, as `Vigil`
does: a mark that stays the same for a while. And jobs that stand in line behind others, which are being taken,
have to wait for their turn. Time in which this process itself, or the engine, did not look is not counted.

Belongs to the control sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mainspring.clock import NANOSECONDS, Clock
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.waiting import MOST_COUNTED, Waiting
from mainspring.jobs.working.occupancy import Occupancy
from mainspring.jobs.working.slots import Kind

LONGEST_GAP_NS = 5 * NANOSECONDS  # of the time between two looks, no more is counted
LONGEST_SILENCE_NS = 3_600 * NANOSECONDS  # between two barks

logger = logging.getLogger("mainspring.worker")


@dataclass(slots=True)
class _Silence:
    """What was seen last, and for how long nothing of it was taken."""

    waiting: Waiting
    kind: Kind
    ns: int = 0

    @property
    def observed(self) -> int:
        """For how long up to the last look of the engine."""
        return self.ns - 1_000 * self.waiting.age


class Watchdog:
    """Watches what waits for this worker."""

    def __init__(
        self,
        clock: Clock,
        *,
        after_ns: int,
        kind_of: Callable[[Waiting], Kind | None],
        occupancy: Callable[[str], Occupancy],
        now: Callable[[], int],
    ) -> None:
        self._clock = clock
        self._after = after_ns
        self._kind_of = kind_of  # where this worker would run it; None: not at all
        self._occupancy = occupancy  # of the places for a handler
        self._now = now  # of the engine
        self._looked = clock.monotonic_ns()
        self._silent: dict[tuple[str, str], _Silence] = {}
        self._stalled: set[tuple[str, str]] = set()
        self._next_bark = 0
        self._pause = 0
        self.complaint: str | None = None
        """What is wrong, in words; None: nothing."""

    def look(self, waiting: Sequence[Waiting]) -> None:
        """Take note of what waits now, and bark if nobody has taken any of it for too long."""
        if self._after == 0:
            return
        now = self._clock.monotonic_ns()
        gap = min(LONGEST_GAP_NS, self._after // 2, now - self._looked)
        self._looked = now
        self._note(waiting, gap)
        stalled = {name: silence for name, silence in self._silent.items() if silence.observed >= self._after}
        if stalled:
            self._complain(stalled, now)
        elif self.complaint is not None:
            logger.info("the stall is over: %s", ", ".join(sorted(name for name, _ in self._stalled)))
            self.complaint = None
            self._stalled = set()

    def _note(self, waiting: Sequence[Waiting], gap: int) -> None:
        before, self._silent = self._silent, {}
        for found in waiting:
            kind = self._kind_of(found)
            if kind is None:
                continue
            last = before.get((found.type, found.queue))
            is_same = last is not None and last.waiting.mark == found.mark
            ns = last.ns + gap if last is not None and is_same else 0
            self._silent[found.type, found.queue] = _Silence(found, kind, ns)
        moved = [silence for name, silence in before.items() if self._has_moved(name, silence)]
        for silence in self._silent.values():
            if any(_stands_before(other, silence) for other in moved):
                silence.ns = 0

    def _has_moved(self, name: tuple[str, str], before: _Silence) -> bool:
        after = self._silent.get(name)
        return after is None or after.waiting.mark != before.waiting.mark

    def _complain(self, stalled: dict[tuple[str, str], _Silence], now: int) -> None:
        self.complaint = self._describe(list(stalled.values()))
        is_news = not self._stalled >= stalled.keys()
        self._stalled = set(stalled)
        if is_news:
            self._pause = self._after
        if is_news or now >= self._next_bark:
            logger.error("%s", self.complaint)
            self._next_bark = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_SILENCE_NS)

    def _describe(self, stalled: list[_Silence]) -> str:
        longest = max(stalled, key=lambda silence: silence.observed)
        what = "; ".join(self._describe_one(silence.waiting) for silence in stalled[:5])
        more = f"; and of {len(stalled) - 5} more handlers" if len(stalled) > 5 else ""
        places = self._occupancy(longest.waiting.type)
        seconds = longest.observed // NANOSECONDS
        return f"nobody has taken any of these for {seconds} s: {what}{more}. {places}; {places.remedy}"

    def _describe_one(self, waiting: Waiting) -> str:
        number = f"{waiting.count} or more" if waiting.count >= MOST_COUNTED else f"{waiting.count}"
        jobs = "job" if waiting.count == 1 else "jobs"
        text = f"{number} due {jobs} of {waiting.type} in queue {waiting.queue}"
        if waiting.oldest is None or waiting.since is None:
            return text
        seconds = max(0, self._now() - waiting.since) // MICROSECONDS
        return f"{text} (the oldest, {waiting.oldest}, for {seconds} s)"


def _stands_before(moved: _Silence, other: _Silence) -> bool:
    """Answer whether jobs that are being taken come before others, which wait for the same places."""
    first, second = moved.waiting.rank, other.waiting.rank
    return moved.kind is other.kind and first is not None and second is not None and first <= second
