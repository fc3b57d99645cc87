"""The slots of a worker: how many jobs it fetches, and how busy it is.

A worker with eight threads and long jobs fetches eight. With short jobs the threads would idle during each fetch,
so the slots have a window of further jobs. The window doubles while fetched jobs start quickly and more are due.
It halves when jobs had to wait, and closes when a job had to be handed back.

A batch handler gets the jobs of one call, and no more until that call has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mainspring.jobs.engine import Demand

MAX_WINDOW = 512
AHEAD_FACTOR = 4  # jobs held ahead of their due time, for each slot
QUICK_NS = 10_000_000
SLOW_NS = 50_000_000


class ExecutionKind(Enum):
    """Where handlers run."""

    THREADS = "threads"
    LOOP = "loop"
    PROCESSES = "processes"


class Slots:
    """The slots of one kind of execution. Used in the control sequence, except `record_wait`."""

    def __init__(
        self,
        size: int,
        queues: tuple[str, ...] | None,
        *,
        kind: ExecutionKind = ExecutionKind.THREADS,
        max_window: int = MAX_WINDOW,
    ) -> None:
        self.size = size
        """How many jobs run at once."""
        self.batch: int | None = None
        """How many jobs one call takes; None if each job is a call of its own."""
        self._max_window = max_window
        self._queues = queues
        self._window = 0
        self._longest_wait = 0
        self.kind = kind
        self.started = 0
        self.held = 0
        self.used_by_batches = 0
        """How many slots are occupied by calls of batch handlers."""

    def demand(self, types: tuple[str, ...], *, suspects: bool = True) -> Demand:
        """Return how many jobs of these types to fetch, and whether a suspect may be among them."""
        starts = max(0, self.size + 2 * self._window - self.started - self.used_by_batches)
        return Demand(
            types=types,
            starts=starts,
            ahead=max(0, AHEAD_FACTOR * self.size - self.held) if starts else 0,
            queues=self._queues,
            suspects=suspects,
        )

    @property
    def occupied(self) -> int:
        """How many slots are occupied."""
        return self.started + self.used_by_batches

    @property
    def wants_ahead(self) -> bool:
        """Whether at least half of the credit for held jobs is free."""
        return self.held * 2 <= AHEAD_FACTOR * self.size

    def record_wait(self, nanoseconds: int) -> None:
        """Record how long a job waited for its slot. From any thread: losing a value does no harm."""
        self._longest_wait = max(self._longest_wait, nanoseconds)

    def adapt(self, *, is_more: bool) -> None:
        """Resize the window by how long jobs had to wait since the last call."""
        longest, self._longest_wait = self._longest_wait, 0
        if longest > SLOW_NS:
            self._window //= 2
        elif longest < QUICK_NS and is_more:
            self._window = min(self._max_window, max(self.size, 2 * self._window))

    def close_window(self) -> None:
        """Close the window, because a job found no slot in time."""
        self._window = 0
        self._longest_wait = SLOW_NS + 1  # so that the next `adapt` does not open it


class BatchSlots(Slots):
    """The one slot that a batch handler occupies among those of its kind, for as many jobs as one call takes."""

    def __init__(self, batch: int, queues: tuple[str, ...] | None, kind: Slots) -> None:
        super().__init__(batch, queues, kind=kind.kind, max_window=0)
        self.batch = batch
        self._kind_slots = kind
        self._is_waiting_for_slot = False

    def demand(self, types: tuple[str, ...], *, suspects: bool = True) -> Demand:
        """Return how many jobs to fetch for the next call: none during a call, and none before they are due."""
        self._is_waiting_for_slot &= self._kind_slots.occupied >= self._kind_slots.size
        starts = 0 if self.started or self._is_waiting_for_slot else self.size
        return Demand(types=types, starts=starts, ahead=0, queues=self._queues, suspects=suspects)

    @property
    def wants_ahead(self) -> bool:
        """False: a batch handler holds no jobs before they are due."""
        return False

    def close_window(self) -> None:
        """Fetch nothing until a slot of its kind is free, and close the window of that kind."""
        self._is_waiting_for_slot = True
        self._kind_slots.close_window()


@dataclass(frozen=True, slots=True, order=True)
class LongestJob:
    """The job that has run longest."""

    seconds: float
    id: str
    type: str

    def __str__(self) -> str:
        return f"job {self.id} ({self.type}) for {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How busy the slots of one kind are, or the one slot of a batch handler, as text for operators."""

    kind: ExecutionKind
    running: int
    slots: int
    longest: LongestJob | None = None
    is_batch: bool = False

    def __str__(self) -> str:
        if self.is_batch and self.running:
            what = "a call of this batch handler runs here already"
        else:
            what = f"{self.running} of {self.slots} slots ({self.kind.value}) of this worker are occupied"
        return what if self.longest is None else f"{what}, the longest by {self.longest}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.running >= self.slots:
            return "give handlers a timeout=, this worker more slots, or start more workers"
        return "its log may say why; else restart it, and if that helps, please report it"
