"""How many jobs a worker may take: credit for what it can start and for what it may hold ahead of time.

A worker with eight threads and long jobs takes eight. With short jobs that would leave the threads idle while
their next jobs are fetched, so a window opens: it doubles while everything that was taken starts quickly and there
is more, shrinks when jobs had to wait, and closes when one had to be handed back.

A batch handler takes as much as one call of it may have, and then nothing until that call has ended: meanwhile its
next jobs gather.
"""

from __future__ import annotations

from enum import Enum

from mainspring.jobs.engine import Demand

MAX_WINDOW = 512
AHEAD_FACTOR = 4  # jobs held ahead of their due time, for each slot
QUICK_NS = 10_000_000
SLOW_NS = 50_000_000


class Kind(Enum):
    """Where handlers run."""

    THREADS = "threads"
    LOOP = "loop"
    PROCESSES = "processes"


class Slots:
    """The places of one kind of execution. Used from the control sequence, except `waited`."""

    def __init__(
        self, size: int, queues: tuple[str, ...] | None, *, kind: Kind = Kind.THREADS, max_window: int = MAX_WINDOW
    ) -> None:
        self._size = size
        self._max_window = max_window
        self._queues = queues
        self._window = 0
        self._longest_wait = 0
        self.kind = kind
        self.started = 0
        self.held = 0
        self.suspects = 0
        self.lent = 0
        """How many of the places are used by batch handlers."""

    def demand(self, types: tuple[str, ...]) -> Demand:
        """Say what there is room for."""
        starts = max(0, self._size + 2 * self._window - self.started - self.lent)
        return Demand(
            types=types,
            starts=starts,
            ahead=max(0, AHEAD_FACTOR * self._size - self.held) if starts else 0,
            queues=self._queues,
            suspects=self.suspects == 0,
        )

    @property
    def places(self) -> int:
        """How many places are used."""
        return self.started + self.lent

    @property
    def wants_ahead(self) -> bool:
        """Whether at least half of what may be held ahead is free."""
        return self.held * 2 <= AHEAD_FACTOR * self._size

    @property
    def size(self) -> int:
        """How many run at once."""
        return self._size

    @property
    def batch(self) -> int | None:
        """How many jobs are one call; None: a call for each."""
        return None

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


class BatchSlots(Slots):
    """The one place of a batch handler among those of its kind, for as many jobs as one call of it takes."""

    def __init__(self, batch: int, queues: tuple[str, ...] | None, kind: Slots) -> None:
        super().__init__(batch, queues, kind=kind.kind, max_window=0)
        self._among = kind
        self._is_shut = False

    def demand(self, types: tuple[str, ...]) -> Demand:
        """Say what the next call has room for: nothing while there is one, and nothing ahead of its time."""
        self._is_shut &= self._among.places >= self._among.size
        starts = 0 if self.started or self._is_shut else self._size
        return Demand(types=types, starts=starts, ahead=0, queues=self._queues, suspects=self.suspects == 0)

    @property
    def wants_ahead(self) -> bool:
        """Whether it would hold more: it holds nothing."""
        return False

    @property
    def batch(self) -> int:
        """How many jobs are one call."""
        return self._size

    def shut(self) -> None:
        """Ask for nothing until there is a place, and let the others of its kind take no more than there are."""
        self._is_shut = True
        self._among.shut()
