"""Ready queues of tasks and sequences: first-in-first-out, and by priority with ageing.

Both queues implement one small protocol, hold tasks as well as sequences, and need no lock: every step is one
atomic call on a `deque`. Order is stable. A deque frees its blocks as it empties, so a burst of a million tasks
leaves no memory allocated.

Ageing: strict priority causes starvation, so an entry that has waited for `AGEING_NS` goes before more urgent
ones. BEST_EFFORT entries carry the time at which they were queued. Plain USER_VISIBLE tasks do not (reading the
clock for each would cost a tenth of a post): for them the queue records since when their lane has been passed
over. After `AGEING_NS` it serves all entries that wait at that moment, alternating with more urgent ones.

Compaction: a tombstone (a canceled task) stays in its queue until a worker pops it. While all workers are busy,
`compact` removes the tombstones, also in one atomic call.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, filterfalse, takewhile
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mainspring.clock import NANOSECONDS
from mainspring.runners.task import Priority, Task, TaskTraits

if TYPE_CHECKING:
    from mainspring.runners.worker import WorkerThread

AGEING_NS = NANOSECONDS // 2  # half a second, so that with short tasks every entry starts within about a second


class QueueEntry(Protocol):
    """An entry of a ready queue: a task, or a sequence that needs a worker to run a few of its tasks (a slice)."""

    @property
    def queued_at(self) -> int | None:
        """The time at which the entry was queued.

        It is None for tasks other than BEST_EFFORT in an unobserved pool.
        """

    @property
    def runs_made(self) -> int:
        """The number of tasks that a sequence has run; 0 for a task."""

    def run_on(self, worker: WorkerThread) -> bool | None:
        """Run this entry on a worker: a task, or a few tasks of a sequence (a slice).

        Return False if the task was claimed before.
        """

    def is_live(self) -> bool:
        """Return whether this entry has anything left to run."""

    def is_tombstone(self) -> bool:
        """Return whether this entry is a claimed task, which can be removed from the queue.

        It never becomes live again.
        """

    def peek_traits(self) -> TaskTraits | None:
        """Return the traits, such as the priority, of this entry's next task; None if it has no task left."""


Entry = TypeVar("Entry", bound=QueueEntry)


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

    def peek_traits(self) -> TaskTraits | None:
        """Return the traits, such as the priority, of the task that would run next; None if there is none.

        The result may be outdated at once, because other threads push and pop.
        """

    def compact(self) -> int:
        """Remove the tombstones (canceled tasks) from the queue and return their number.

        Other threads may push and pop at the same time.
        """

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


def first_traits(lane: deque[Entry]) -> TaskTraits | None:
    """Return the traits of the first task in a lane (tasks of one priority) that can still run; else None."""
    try:
        traits = lane[0].peek_traits()
    except IndexError:
        return None
    if traits is None:  # a tombstone
        found = (entry.peek_traits() for entry in lane.copy())
        traits = next((traits for traits in found if traits is not None), None)
    return traits


_has_global_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)


def compact_lane(lane: deque[Entry]) -> int:
    """Remove the tombstones (canceled tasks) of a lane (the tasks of one priority), and return their number.

    The order of other entries stays.

    On a Python without the global lock, remove nothing and return 0.
    """
    return _remove_all(lane, _find_tombstones(lane.copy()))


def _find_tombstones(entries: deque[Entry]) -> set[Entry]:
    """Return the tombstones (canceled tasks) among entries; none if this build of Python has no global lock: see
    `_remove_all`.
    """
    return {entry for entry in entries if entry.is_tombstone()} if _has_global_lock() else set()


def _remove_all(lane: deque[Entry], removed: set[Entry]) -> int:
    """Remove entries from a lane (the tasks of one priority) in one atomic call; return how many were still in it.

    `extend` appends a mark. Then it moves each entry from the left end of the lane to the right end, except those
    to remove, until it reaches the mark. All iterators and functions that it calls are written in C, and none of
    them allocates an object that the garbage collector tracks. So the interpreter cannot switch threads meanwhile,
    and no thread sees a lane that lacks an entry. The set keeps the removed entries alive, so that no finalizer
    runs. Without the global lock of the interpreter, the call is not atomic.
    """
    if not removed:
        return 0
    lengths: list[int] = []
    mark: Any = Task()
    lane.extend(
        chain(
            _call(lengths.append, map(len, (lane,))),
            _call(lane.append, (mark,)),
            filterfalse(removed.__contains__, iter(lane.popleft, mark)),
            _call(lengths.append, map(len, (lane,))),
        )
    )
    before, after = lengths
    return before - after


def _call(function: Callable[[Any], None], argument: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator that yields nothing, and calls `function` with each item of `argument` when read."""
    return filter(None, map(function, argument))


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

    def peek_traits(self) -> TaskTraits | None:
        return first_traits(self._entries)

    def compact(self) -> int:
        return compact_lane(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)


class PriorityTaskQueue:
    """A queue with one lane (a deque) for each priority: the most urgent task comes first, then the earliest.

    A less urgent task that has waited for long goes first, so that it does not starve.
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
        if not self._was_passed_over_for_long(now):
            return False
        if self._aged_until is None:
            self._aged_until = self._visible[-1]  # all entries that wait now count as aged
        self._transfer_age(head)
        return True

    def _was_passed_over_for_long(self, now: int) -> bool:
        return self._aged_until is not None or now - self._passed_over_since >= AGEING_NS

    def _transfer_age(self, head: QueueEntry) -> None:
        """Pass the age of the first visible entry, which will be popped now, on to the next one.

        If there is no next entry, or the first is the last that has aged, forget the age.
        """
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

    def peek_traits(self) -> TaskTraits | None:
        found = (first_traits(lane) for lane in (self._next_lane(), *self.lanes))
        return next((traits for traits in found if traits is not None), None)

    def _next_lane(self) -> deque[QueueEntry]:
        """Return the lane (the tasks of one priority) that `pop` would take an entry from, without a change of
        what the queue has recorded.
        """
        lane = next((lane for lane in self.lanes if lane), self._background)
        if self._urgent_is_next:
            return lane
        now = self._now()
        if self._background_has_aged(now):
            return self._background
        if lane is self._urgent and self._visible:
            head = self._visible[0]
            if (head, head.runs_made) == self._passed_over and self._was_passed_over_for_long(now):
                return self._visible
        return lane

    def compact(self) -> int:
        waiting = self._visible.copy()
        tombstones = _find_tombstones(waiting)
        removed = _remove_all(self._visible, tombstones)
        if removed:
            self._keep_age(waiting, tombstones)
        return removed + compact_lane(self._urgent) + compact_lane(self._background)

    def _keep_age(self, waiting: Iterable[QueueEntry], removed: set[QueueEntry]) -> None:
        """Pass the age of visible entries that were removed on to others, as if they had been popped.

        The first entry that is left goes on with the age of the first one of before. Of the entries that have
        aged, the last one that is left is the last.
        """
        passed_over, aged_until = self._passed_over, self._aged_until
        if aged_until in removed:
            upto = list(takewhile(lambda entry: entry is not aged_until, waiting))
            self._aged_until = next((entry for entry in reversed(upto) if entry not in removed), None)
            if self._aged_until is None:
                self._passed_over = None  # all of them were removed
                return
        if passed_over is not None and passed_over[0] in removed:
            head = next((entry for entry in waiting if entry not in removed), None)
            self._passed_over = None if head is None else (head, head.runs_made)

    def __len__(self) -> int:
        return len(self._background) + len(self._visible) + len(self._urgent)

    def __bool__(self) -> bool:
        return bool(self._visible or self._urgent or self._background)
