"""A timing wheel: exact order, unlimited range, O(1) insert and cancel. Single-threaded: callers lock.

It takes `now`, returns what is due, and knows no thread and no clock. Times are integers in nanoseconds.

Three levels hold slots of growing width; the current slot of the nearest level is open, that is, sorted::

    now
     |
    [ open ][  |  |  |  |  |  |  |  ][     |     |     |     ][          |          |  ...
     sorted   near: slots of 268 ms    mid: slots of 73 min     far: slots of 52 days
       ^__________|  ^_____________________|  ^_____________________|
        opened         poured down              poured down          as time comes close

Slots are sparse: an empty one costs neither memory nor time. Near and mid always reach at least one whole
slot of the level above them beyond `now`; far has no end.

Invariants

* Where a timer is follows from its entry and the position of the wheel alone, so cancelling needs no search.
* Open, near, mid, far: all timers of one are due before any timer of the next.
* The timers of the open span, and overdue ones, are in `_open`. Their entries in order are in `_front`
  (sorted when the slot was opened, latest first) and in `_late` (a heap of what came since). Those two may
  also hold entries that were cancelled, at most as many as live ones and a constant.
* After `advance(now)` all that is pending is due later, and every slot but the open one begins later.

Example: at 0, a thousand timers are set for 3 h. They lie in mid, in slot 2, which begins at 2:26:36.
`next_due()` says so; `advance` then pours that slot into near, where they lie in slot 40,233, which begins at
2:59:59.97. Advanced to that, the slot opens, and from now on `next_due()` says 3:00:00. (Of a slot with few
timers it knows the earliest at once.) So a timer moves twice at most, and sorting is done in small portions.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import neg
from typing import Generic, TypeAlias, TypeVar

from mainspring.timing.levels import ARRIVAL_BITS, Level, is_roomy

T = TypeVar("T")

TimerEntry: TypeAlias = int
"""What `insert` returns and `cancel` takes: a key that keeps nothing alive, good for its own wheel only."""

# Chosen by measurement: docs/decisions/002-timing-wheel.md.
DEFAULT_TICK = 1 << 28
_SLOT_BITS = (0, 14, 24)  # a slot of each level is 2**n ticks wide
_STALE_ALLOWANCE = 64
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelStatistics:
    """A snapshot for monitoring. The tuples have one element per level, nearest first."""

    pending: int
    """Timers that have neither fired nor been cancelled."""
    open: int
    """Of these, the ones that are sorted already: due within the current slot, or overdue."""
    occupancy: tuple[int, ...]
    """The others, by level."""
    slots: tuple[int, ...]
    """Slots in use, by level."""
    slot_spans: tuple[int, ...]
    """Width of one slot of each level, in nanoseconds."""
    fullest_slot: int
    """Timers in the fullest slot of any level."""
    stale: int
    """Cancelled timers that are still in the sorted span."""


class TimingWheel(Generic[T]):
    """Timers, found by due time.

    `tick` is the width of a near slot, rounded up to a power of two. It tunes the speed; due times are exact
    whatever it is.
    """

    __slots__ = (
        "_arrivals",
        "_departures",
        "_front",
        "_late",
        "_levels",
        "_near",
        "_open",
        "_open_end",
        "_pour_at",
    )

    def __init__(self, now: int = 0, tick: int = DEFAULT_TICK) -> None:
        for name, value in (("now", now), ("tick", tick)):
            if not _is_int(value):
                raise _not_an_int(name, value)
        if tick < 1:
            raise ValueError(f"tick must be at least 1 nanosecond, not {tick}; leave it out for the default")
        tick_shift = ARRIVAL_BITS + (tick - 1).bit_length()
        self._levels = tuple(Level[T](tick_shift + bits) for bits in _SLOT_BITS)
        self._near = self._levels[0]
        self._open: dict[TimerEntry, T] = {}
        self._front: list[TimerEntry] = []
        self._late: list[TimerEntry] = []
        self._arrivals = 0
        self._departures = 0
        # At least 1, so that True falls into the open span, where insert looks for bad input.
        position = max(now, 1) << ARRIVAL_BITS
        self._open_end = ((position >> tick_shift) + 1) << tick_shift
        self._set_ends(position)

    def __len__(self) -> int:
        return self._arrivals - self._departures

    def insert(self, due: int, item: T) -> TimerEntry:
        """Add a timer. A due time in the past is fine: the next `advance` returns it."""
        self._arrivals = arrival = self._arrivals + 1
        try:
            entry = (due << ARRIVAL_BITS) + arrival
        except TypeError:
            raise self._refusal(due) from None
        near = self._near
        bucket = near.buckets.get(entry >> near.shift)
        if bucket is None:
            bucket = self._bucket_elsewhere(due, entry)
        bucket[entry] = item
        return entry

    def cancel(self, entry: TimerEntry) -> bool:
        """Remove a timer and release its item now. True once, and only while it is pending."""
        near = self._near
        try:
            bucket = near.buckets.get(entry >> near.shift)
        except TypeError:
            raise TypeError(f"cancel takes the entry that insert returned, not {entry!r}") from None
        if bucket is None:
            return self._cancel_elsewhere(entry)
        _held = bucket.pop(entry, _MISSING)  # released on return, when the wheel is consistent again
        if _held is _MISSING:
            return False
        self._departures += 1
        size = len(bucket)
        if not size & (size - 1):
            near.shrink(entry >> near.shift, bucket)
        return True

    def advance(self, now: int) -> list[T]:
        """Move to `now` and return the items with `due <= now`, by due time, equal ones by arrival.

        A `now` before an earlier one moves nothing back; what is due by then is returned as ever.
        """
        if type(now) is not int and not _is_int(now):
            raise _not_an_int("now", now)
        limit = (now + 1) << ARRIVAL_BITS
        due = self._take_open(limit) if self._open else []
        if limit > self._open_end:
            self._turn_to(now << ARRIVAL_BITS, due)
            if self._open:
                due += self._take_open(limit)
        self._departures += len(due)
        return due

    def next_due(self) -> int | None:
        """Return when to call `advance` next; None if nothing is pending.

        That is the earliest due time, or earlier: the beginning of its slot, if the slot holds many timers.
        Four steps at most lead to it. Later than the last `now`, unless something overdue came since.
        """
        waiting, front, late = self._open, self._front, self._late
        if waiting:
            while front and front[-1] not in waiting:
                front.pop()
            while late and late[0] not in waiting:
                heappop(late)
            return min(front[-1:] + late[:1]) >> ARRIVAL_BITS
        for level in self._levels:
            earliest = level.earliest()
            if earliest is not None:
                return earliest >> ARRIVAL_BITS
        return None

    def statistics(self) -> WheelStatistics:
        """Count what is where. Costs a look at every slot in use."""
        sizes = [[len(bucket) for bucket in level.buckets.values() if bucket] for level in self._levels]
        return WheelStatistics(
            pending=len(self),
            open=len(self._open),
            occupancy=tuple(sum(level) for level in sizes),
            slots=tuple(len(level) for level in sizes),
            slot_spans=tuple(1 << level.shift - ARRIVAL_BITS for level in self._levels),
            fullest_slot=max((size for level in sizes for size in level), default=0),
            stale=len(self._front) + len(self._late) - len(self._open),
        )

    def _refusal(self, due: object) -> TypeError:
        self._departures += 1  # the arrival number was drawn and stays unused
        return _not_an_int("due", due)

    def _bucket_elsewhere(self, due: int, entry: TimerEntry) -> dict[TimerEntry, T]:
        """Find or make the bucket for a new entry that falls into no existing near slot."""
        if entry < self._open_end:
            # True, and integers of other libraries that overflow when shifted, always come this way.
            if type(due) is not int and not _is_int(due):
                raise self._refusal(due)
            heappush(self._late, entry)
            return self._open
        for level in self._levels:
            if entry < level.end:
                break
        return level.bucket(entry >> level.shift)

    def _cancel_elsewhere(self, entry: TimerEntry) -> bool:
        for level in self._levels[1:]:
            _held = level.pop(entry, _MISSING)
            if _held is not _MISSING:
                self._departures += 1
                return True
        _held = self._open.pop(entry, _MISSING)
        if _held is _MISSING:
            return False
        self._departures += 1
        if len(self._front) + len(self._late) > 2 * len(self._open) + _STALE_ALLOWANCE:
            self._open = waiting = self._open.copy()
            self._front = [entry for entry in self._front if entry in waiting]
            self._late = [entry for entry in self._late if entry in waiting]
            heapify(self._late)
        return True

    def _take_open(self, limit: TimerEntry) -> list[T]:
        """Remove the open timers before `limit` and return their items in order."""
        waiting, front, late = self._open, self._front, self._late
        has_stale = len(front) + len(late) > len(waiting)
        due: list[TimerEntry] = []
        if front and front[-1] < limit:
            start = bisect_right(front, -limit, key=neg)
            due = front[start:]
            due.reverse()
            del front[start:]
        if late and late[0] < limit:
            while late and late[0] < limit:
                due.append(heappop(late))
            due.sort()
        if not due:
            return []
        if has_stale:
            due = [entry for entry in due if entry in waiting]
        items = list(map(waiting.pop, due))
        if is_roomy(waiting):
            self._open = waiting.copy()
        return items

    def _turn_to(self, position: TimerEntry, due: list[T]) -> None:
        """Leave the open span, from which all is taken; add whole slots to `due` and open the current one."""
        near = self._near
        if position >= self._pour_at:
            self._pour_down(position, due)
        slot = position >> near.shift
        opened = near.buckets.get(slot)
        whole = near.take(slot + 1)
        if opened is None:
            self._open, self._front = {}, []
        else:
            whole.pop()
            self._open, self._front = opened, sorted(opened, reverse=True)
        self._late.clear()
        self._open_end = (slot + 1) << near.shift
        _collect(whole, due)

    def _pour_down(self, position: TimerEntry, due: list[T]) -> None:
        """Add the whole slots of every level to `due`, then pour those that time comes close to."""
        for level in self._levels:
            _collect(level.take(position >> level.shift), due)
        for upper, lower in pairwise(reversed(self._levels)):
            for bucket in upper.take((position >> upper.shift) + 2):
                lower.pour(bucket.items())
            _collect(lower.take(position >> lower.shift), due)
        self._set_ends(position)

    def _set_ends(self, position: TimerEntry) -> None:
        for level, above in pairwise(self._levels):
            level.end = ((position >> above.shift) + 2) << above.shift
        self._pour_at = ((position >> self._levels[1].shift) + 1) << self._levels[1].shift


def _collect(buckets: Iterable[dict[TimerEntry, T]], due: list[T]) -> None:
    for bucket in buckets:
        due += map(bucket.__getitem__, sorted(bucket))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _not_an_int(name: str, value: object) -> TypeError:
    return TypeError(f"{name} must be an int of nanoseconds, not {value!r}; use int(seconds * 1e9)")
