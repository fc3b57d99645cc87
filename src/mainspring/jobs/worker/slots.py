"""The slots of a worker: they decide how many jobs it fetches, and show how busy it is.

A worker with eight threads and long jobs fetches eight jobs. With short jobs the threads would be idle during each
fetch, so the worker prefetches a window of further jobs. The window doubles while fetched jobs start quickly and
more are due. It halves when jobs had to wait, and closes when a job had to be handed back.

A batch handler gets the jobs of one call, and no more until that call has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mainspring.jobs.engine import Demand

MAX_WINDOW = 512
AHEAD_FACTOR = 4  # how many jobs are held before their due time, for each slot
QUICK_NS = 10_000_000
SLOW_NS = 50_000_000


class ExecutionKind(Enum):
    """Where handlers run: on threads, on an event loop, or in child processes.

    Callbacks have an event loop of their own, so that a coroutine that blocks its loop delays none of them.
    """

    THREADS = "threads"
    LOOP = "loop"
    PROCESSES = "processes"
    CALLBACKS = "callbacks"


class Slots:
    """The slots of a worker for one kind of execution: how many jobs run, are leased before their due time, and
    should be fetched.

    Only the control layer uses them, except for `record_wait`.
    """

    def __init__(
        self,
        size: int,
        queues: tuple[str, ...] | None,
        *,
        kind: ExecutionKind = ExecutionKind.THREADS,
        max_window: int = MAX_WINDOW,
    ) -> None:
        self.size = size
        """How many jobs can run at once."""
        self.batch: int | None = None
        """How many jobs one call of a batch handler takes; None if each job is a call of its own."""
        self._max_window = max_window
        self._queues = queues
        self._window = 0
        self._longest_wait = 0
        self.kind = kind
        self.started = 0
        self.started_at_most_once = 0
        """How many of the started jobs must not start a second time."""
        self.held = 0
        self.used_by_batches = 0
        """How many slots the running calls of batch handlers occupy."""

    def demand(
        self, types: tuple[str, ...], *, suspects: bool = True, at_most_once: tuple[str, ...] = ()
    ) -> Demand:
        """Return how many jobs of these types the worker should fetch, and whether it accepts a job with two
        crashes (a suspect).

        Of the types `at_most_once`, the worker starts at most as many due jobs as there are slots: the number of
        jobs to prefetch (the window) does not apply to them.
        """
        starts = max(0, self.size + 2 * self._window - self.started - self.used_by_batches)
        return Demand(
            types=types,
            starts=starts,
            ahead=max(0, AHEAD_FACTOR * self.size - self.held) if starts else 0,
            queues=self._queues,
            suspects=suspects,
            at_most_once=at_most_once,
            at_most_once_starts=max(0, self.size - self.started_at_most_once) if at_most_once else 0,
        )

    @property
    def occupied(self) -> int:
        """How many slots the started jobs and the running calls of batch handlers need.

        It is more than `size` if some of them wait for a slot.
        """
        return self.started + self.used_by_batches

    @property
    def wants_ahead(self) -> bool:
        """Whether the worker has leased at most half of the jobs that it may lease before their due time."""
        return self.held * 2 <= AHEAD_FACTOR * self.size

    def record_wait(self, nanoseconds: int) -> None:
        """Record how long a job waited for its slot. Any thread may call it: a lost value does no harm."""
        if nanoseconds > self._longest_wait:  # noqa: PLR1730 - `max` takes three times as long
            self._longest_wait = nanoseconds

    def adapt(self, *, is_more: bool) -> None:
        """Grow or shrink the window (how many jobs to prefetch), by how long jobs had to wait since the last call.

        The window grows only if `is_more`: more jobs are due than were fetched.
        """
        longest, self._longest_wait = self._longest_wait, 0
        if longest > SLOW_NS:
            self._window //= 2
        elif longest < QUICK_NS and is_more:
            self._window = min(self._max_window, max(self.size, 2 * self._window))

    def close_window(self) -> None:
        """Prefetch no more jobs, because a job found no slot in time. A later `adapt` may change that."""
        self._window = 0
        self._longest_wait = SLOW_NS + 1  # so that the next `adapt` does not open the window


class BatchSlots(Slots):
    """The slot of one batch handler, which takes all jobs of one call.

    This is one of the slots of its kind of execution, such as threads.
    """

    def __init__(self, batch: int, queues: tuple[str, ...] | None, kind: Slots) -> None:
        super().__init__(batch, queues, kind=kind.kind, max_window=0)
        self.batch = batch
        self._kind_slots = kind
        self._is_waiting_for_slot = False

    def demand(
        self, types: tuple[str, ...], *, suspects: bool = True, at_most_once: tuple[str, ...] = ()
    ) -> Demand:
        """Return how many due jobs to fetch for the next call of the batch handler.

        It is 0 while a call runs, and after `close_window` until a slot of the handler's kind is free.
        """
        self._is_waiting_for_slot &= self._kind_slots.occupied >= self._kind_slots.size
        starts = 0 if self.started or self._is_waiting_for_slot else self.size
        return Demand(
            types=types,
            starts=starts,
            ahead=0,
            queues=self._queues,
            suspects=suspects,
            at_most_once=at_most_once,
            at_most_once_starts=starts,
        )

    @property
    def wants_ahead(self) -> bool:
        """False: no jobs are leased for a batch handler before their due time."""
        return False

    def close_window(self) -> None:
        """Fetch nothing for this handler until a slot is free, and prefetch no more jobs for its kind of slots."""
        self._is_waiting_for_slot = True
        self._kind_slots.close_window()


@dataclass(frozen=True, slots=True, order=True)
class LongestJob:
    """The job that has run longest in slots of one kind."""

    seconds: float
    id: str
    type: str

    def __str__(self) -> str:
        return f"job {self.id} ({self.type}) for {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How busy the slots of one kind, or of one batch handler, are, as text for operators."""

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
        """What an operator can do about a stall of these slots."""
        if self.running >= self.slots:
            return "give handlers a timeout=, this worker more slots, or start more workers"
        return "the log of the worker may say why; if not, restart the worker, and if that helps, please report it"
