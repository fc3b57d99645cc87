"""Ready queues of tasks and sequences: first-in-first-out, and by priority with ageing.

Both queues implement one small protocol, hold tasks as well as sequences, and need no lock: every step is one
atomic call on a `deque`. Order is stable. A deque frees its blocks as it empties, so a burst of a million tasks
leaves no memory allocated.

Ageing: strict priority causes starvation, so an entry that has waited for `AGEING_NS` goes before more urgent
ones. BEST_EFFORT entries carry the time at which they were queued. Plain USER_VISIBLE tasks do not (reading the
clock for each would cost a tenth of a post): for them the queue records since when their lane has been passed
over. After `AGEING_NS` it serves all entries that wait at that moment, alternating with more urgent ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from mainspring.clock import NANOSECONDS
from mainspring.runners.task import Priority

if TYPE_CHECKING:
    from mainspring.runners.worker import WorkerThread

AGEING_NS = NANOSECONDS // 2  # half a second, so that with short tasks every entry starts within about a second


class QueueEntry(Protocol):
    """An entry of a ready queue: a task, or a sequence that needs a worker for a slice of its tasks."""

    @property
    def queued_at(self) -> int | None:
        """The time at which the entry was queued.

        It is None for tasks other than BEST_EFFORT in an unobserved pool.
        """

    @property
    def runs_made(self) -> int:
        """The number of tasks that this entry has run."""

    def run_on(self, worker: WorkerThread) -> bool | None:
        """Run this entry on a worker; return False if nothing was left to run."""

    def is_live(self) -> bool:
        """Return whether this entry has anything left to run."""


class TaskQueue(Protocol):
    """A queue of ready entries that many threads push to and pop from."""

    lanes: tuple[deque[QueueEntry], deque[QueueEntry], deque[QueueEntry]]
    """The lanes of the queue, the most urgent first, to check quickly whether entries wait.

    A first-in-first-out queue has one lane, listed three times.
    """

    def appender(self, priority: int) -> Callable[[QueueEntry], None]:
        """Return the fastest function that pushes entries of one priority."""

    def push(self, entry: QueueEntry, priority: int) -> None: ...

    def pop(self) -> QueueEntry:
        """Remove and return the entry that runs next; raise `IndexError` if there is none."""

    def pop_up_to(self, limit: int) -> list[QueueEntry]:
        """Remove and return at most `limit` entries, in order. The caller may change the list."""

    def entries(self) -> list[QueueEntry]:
        """Return the waiting entries without removing them."""

    def clear(self) -> list[QueueEntry]:
        """Remove and return all entries."""

    def __len__(self) -> int: ...

    def __bool__(self) -> bool: ...


def _pop_up_to(queue: TaskQueue, limit: int) -> list[QueueEntry]:
    taken: list[QueueEntry] = []
    try:
        while len(taken) < limit:
            taken.append(queue.pop())
    except IndexError:
        pass
    return taken


class FifoTaskQueue:
    """A first-in-first-out queue, which ignores priorities."""

    __slots__ = ("_entries", "lanes", "pop")

    def __init__(self) -> None:
        self._entries: deque[QueueEntry] = deque()
        self.lanes = (self._entries,) * 3
        self.pop: Callable[[], QueueEntry] = self._entries.popleft

    def appender(self, priority: int) -> Callable[[QueueEntry], None]:
        return self._entries.append

    def push(self, entry: QueueEntry, priority: int) -> None:
        self._entries.append(entry)

    def pop_up_to(self, limit: int) -> list[QueueEntry]:
        return _pop_up_to(self, limit)

    def entries(self) -> list[QueueEntry]:
        return list(self._entries.copy())

    def clear(self) -> list[QueueEntry]:
        return _pop_up_to(self, len(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)


class PriorityTaskQueue:
    """A queue with one lane for each priority: the most urgent first, then by arrival.

    Ageing prevents starvation.
    """

    __slots__ = (
        "_aged_until",
        "_background",
        "_now",
        "_passed_over",
        "_passed_over_since",
        "_urgent",
        "_urgent_is_next",
        "_visible",
        "lanes",
    )

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.lanes: tuple[deque[QueueEntry], deque[QueueEntry], deque[QueueEntry]] = (deque(), deque(), deque())
        self._urgent, self._visible, self._background = self.lanes
        # The head of the visible lane when it was first passed over, the time of that, and the last entry that has
        # aged. Workers update these without a lock; a lost update shifts a turn by one and loses no entry.
        self._passed_over: tuple[QueueEntry, int] | None = None
        self._passed_over_since = 0
        self._aged_until: QueueEntry | None = None
        self._urgent_is_next = False

    def appender(self, priority: int) -> Callable[[QueueEntry], None]:
        return self.lanes[Priority.USER_BLOCKING - priority].append

    def push(self, entry: QueueEntry, priority: int) -> None:
        self.lanes[Priority.USER_BLOCKING - priority].append(entry)

    def pop(self) -> QueueEntry:
        if self._urgent:
            if self._visible or self._background:
                return self._pop_with_ageing(self._urgent)
            return self._urgent.popleft()
        if self._visible:
            if self._background:
                return self._pop_with_ageing(self._visible)
            return self._visible.popleft()
        if not self._background:
            self._passed_over = self._aged_until = None  # so that an idle queue keeps no entry alive
        return self._background.popleft()

    def _pop_with_ageing(self, lane: deque[QueueEntry]) -> QueueEntry:
        aged = None if self._urgent_is_next else self._aged_lane(lane)
        # Aged and urgent entries alternate, so that neither delays the other for long.
        self._urgent_is_next = aged is not None
        return (aged or lane).popleft()

    def _aged_lane(self, lane: deque[QueueEntry]) -> deque[QueueEntry] | None:
        now = self._now()
        if self._background_has_aged(now):
            return self._background
        if lane is self._urgent and self._visible_has_aged(now):
            return self._visible
        return None

    def _background_has_aged(self, now: int) -> bool:
        try:
            since = self._background[0].queued_at
        except IndexError:
            return False
        return since is not None and now - since >= AGEING_NS

    def _visible_has_aged(self, now: int) -> bool:
        try:
            head = self._visible[0]
        except IndexError:
            return False
        if (head, head.runs_made) != self._passed_over:
            self._passed_over = (head, head.runs_made)
            self._passed_over_since = now
            self._aged_until = None
            return False
        if self._aged_until is None:
            if now - self._passed_over_since < AGEING_NS:
                return False
            self._aged_until = self._visible[-1]  # all entries that wait now count as aged
        self._transfer_age(head)
        return True

    def _transfer_age(self, head: QueueEntry) -> None:
        """Pass the age of the first entry, which will be popped now, on to the next entry."""
        try:
            next_entry = self._visible[1]
        except IndexError:
            next_entry = head
        if next_entry is head or head is self._aged_until:
            self._passed_over = self._aged_until = None
        else:
            self._passed_over = (next_entry, next_entry.runs_made)

    def pop_up_to(self, limit: int) -> list[QueueEntry]:
        return _pop_up_to(self, limit)

    def entries(self) -> list[QueueEntry]:
        return list(chain.from_iterable(lane.copy() for lane in self.lanes))

    def clear(self) -> list[QueueEntry]:
        return _pop_up_to(self, len(self))

    def __len__(self) -> int:
        return len(self._background) + len(self._visible) + len(self._urgent)

    def __bool__(self) -> bool:
        return bool(self._visible or self._urgent or self._background)
