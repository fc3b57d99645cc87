"""How many jobs a worker may take: credit for what it can start and for what it may hold ahead of time.

A worker with eight threads and long jobs takes eight. With short jobs that would leave the threads idle while
their next jobs are fetched, so a window opens: it doubles while everything that was taken starts quickly and there
is more, shrinks when jobs had to wait, and closes when one had to be handed back.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.jobs.engine import Demand

MAX_WINDOW = 512
AHEAD_FACTOR = 4  # jobs held ahead of their due time, for each slot
QUICK_NS = 10_000_000
SLOW_NS = 50_000_000


class Slots:
    """The places of one kind of execution. Used from the control sequence, except `waited`."""

    def __init__(
        self,
        size: int,
        types: Callable[[], tuple[str, ...]],
        queues: tuple[str, ...] | None,
        *,
        max_window: int = MAX_WINDOW,
    ) -> None:
        self._size = size
        self._max_window = max_window
        self._types = types
        self._queues = queues
        self._window = 0
        self._longest_wait = 0
        self.started = 0
        self.held = 0
        self.suspects = 0

    def demand(self) -> Demand:
        """Say what there is room for."""
        starts = max(0, self._size + 2 * self._window - self.started)
        return Demand(
            types=self._types(),
            starts=starts,
            ahead=max(0, AHEAD_FACTOR * self._size - self.held) if starts else 0,
            queues=self._queues,
            suspects=self.suspects == 0,
        )

    @property
    def wants_ahead(self) -> bool:
        """Whether at least half of what may be held ahead is free."""
        return self.held * 2 <= AHEAD_FACTOR * self._size

    @property
    def size(self) -> int:
        """How many run at once."""
        return self._size

    def waited(self, nanoseconds: int) -> None:
        """Note how long a job had to wait for its slot; from any thread, a lost note does no harm."""
        self._longest_wait = max(self._longest_wait, nanoseconds)

    def adapt(self, *, is_more: bool) -> None:
        """Open or close the window by what happened since the last time."""
        longest, self._longest_wait = self._longest_wait, 0
        if longest > SLOW_NS:
            self._window //= 2
        elif longest < QUICK_NS and is_more:
            self._window = min(self._max_window, max(self._size, 2 * self._window))

    def shut(self) -> None:
        """Close the window: a job found no slot in time."""
        self._window = 0
        self._longest_wait = SLOW_NS + 1  # and do not open it at once
