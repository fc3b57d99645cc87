"""A timing wheel: exact order, unlimited range, O(1) insert and cancel. Not thread-safe: callers must lock.

The caller passes `now` and gets the items that are due; the wheel uses no thread and no clock. Times are integers
in nanoseconds.

Three levels hold slots of growing width; the current slot of the nearest level is open, that is, sorted::

    now
     |
    [ open ][  |  |  |  |  |  |  |  ][     |     |     |     ][          |          |  ...
     sorted   near: slots of 268 ms    mid: slots of 73 min     far: slots of 52 days
       ^__________|  ^_____________________|  ^_____________________|
        opened         poured down              poured down          as `now` approaches

Slots are sparse: an empty slot costs neither memory nor time. Near and mid always extend beyond `now` by at
least one whole slot of the level above them; far is unbounded.

Invariants

* The entry of a timer and the position of the wheel alone determine where it is stored: `cancel` needs no search.
* All timers of the open slot are due before any timer of near, those of near before mid, those of mid before far.
* `_open` holds the timers of the open span, and overdue ones. `_front` (sorted when the slot was opened, latest
  first) and `_late` (a heap of the entries inserted since) hold their entries in order. These two may also hold
  canceled entries: at most as many as live ones plus a constant.
* After `advance(now)` every pending timer is due later than `now`, and every slot but the open one begins later.

Example: at 0, a caller inserts a thousand timers for 3 h. They are in slot 2 of mid, which begins at 2:26:36.
`next_due()` returns that time. `advance` to it pours the slot into near: the timers are then in slot 40,233, which
begins at 2:59:59.97. `advance` to that time opens the slot, and `next_due()` returns 3:00:00. (For a slot with few
timers, it returns the earliest due time at once.) So a timer moves at most twice, and sorting is done in small
portions.

A level has slots of equal width, and only slots in use exist. Each slot has a *bucket* of timers. An *entry* is
one integer, `(due << ARRIVAL_BITS) + arrival`: entries sort by (due, arrival), and an entry shifted right by the
level's `shift` is the number of its slot. A bucket maps the entries of one slot to their items. Integers in a few
dicts are small and fast, and the garbage collector has no additional objects to visit.

Invariants of a level

* `slots` is a heap of exactly the keys of `buckets`.
* `cancel` removes an entry at once. The storage of a bucket stays proportional to the number of its timers.
* A bucket that cancels have emptied is *hollow*. `next_due` skips it. Hollow buckets are cheap and are reused; the
  level drops them when they outnumber the others by more than a constant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import neg
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

# More bits than arrivals need, to spread the hashes: an int hashes to its remainder modulo 2**61 - 1, so within
# a slot due times add multiples of 2**19, and no pattern of due times makes consecutive arrivals collide.
ARRIVAL_BITS = 80

_HOLLOW_ALLOWANCE = 1 << 14
_FEW = 64  # largest bucket that `earliest` searches at every call


def is_roomy(bucket: dict[int, T]) -> bool:
    """Return whether a dict has much more storage than it needs; a tight one has at most 56 bytes per entry."""
    return bucket.__sizeof__() > 128 * len(bucket) + 300


class Level(Generic[T]):
    """A level of the wheel: slots of one width, addressed by number."""

    __slots__ = ("_allowance", "_emptied", "buckets", "end", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.end = 0  # the first entry too late for this level; set by the wheel, 0 on the last level
        self.buckets: dict[int, dict[int, T]] = {}
        self.slots: list[int] = []
        self._emptied = 0  # cancels since the last sweep that left a bucket hollow
        self._allowance = _HOLLOW_ALLOWANCE // 2

    def bucket(self, slot: int) -> dict[int, T]:
        """Return the bucket of this slot; create it if there is none."""
        bucket = self.buckets.get(slot)
        if bucket is None:
            bucket = self.buckets[slot] = {}
            heappush(self.slots, slot)
        return bucket

    def pour(self, timers: Iterable[tuple[int, T]]) -> None:
        """Distribute (entry, item) pairs over the slots."""
        buckets, shift = self.buckets, self.shift
        for entry, item in timers:
            bucket = buckets.get(entry >> shift)
            if bucket is None:
                bucket = self.bucket(entry >> shift)
            bucket[entry] = item

    def take(self, until: int) -> list[dict[int, T]]:
        """Remove the slots before `until` and return their buckets, earliest first."""
        slots = self.slots
        taken = []
        while slots and slots[0] < until:
            taken.append(self.buckets.pop(heappop(slots)))
        if taken and not slots:
            self.buckets.clear()  # `clear` frees the storage, `pop` does not
        return taken

    def earliest(self) -> int | None:
        """Return a lower bound of the entries; the earliest entry itself if its bucket is small."""
        slots = self.slots
        while slots:
            bucket = self.buckets[slots[0]]
            if bucket:
                return min(bucket) if len(bucket) <= _FEW else slots[0] << self.shift
            del self.buckets[heappop(slots)]
        self.buckets.clear()
        return None

    def pop(self, entry: int, default: object) -> object:
        """Remove an entry and return its item; return the default if this level does not hold it."""
        slot = entry >> self.shift
        bucket = self.buckets.get(slot)
        if bucket is None:
            return default
        item = bucket.pop(entry, default)
        if item is default:
            return default
        size = len(bucket)
        if not size & (size - 1):
            self.shrink(slot, bucket)
        return item

    def shrink(self, slot: int, bucket: dict[int, T]) -> None:
        """Free storage; called when a cancel leaves a power of two of timers, or none, so amortised O(1)."""
        if not bucket:
            bucket.clear()
            self._emptied += 1
            if self._emptied > self._allowance:
                self._sweep()
        elif is_roomy(bucket):
            self.buckets[slot] = bucket.copy()  # a copy is tight

    def _sweep(self) -> None:
        """Drop the hollow buckets if they outnumber the others by more than a constant."""
        live = {slot: bucket for slot, bucket in self.buckets.items() if bucket}
        if len(self.buckets) > 2 * len(live) + _HOLLOW_ALLOWANCE:
            self.buckets = live
            self.slots = list(live)
            heapify(self.slots)
        self._emptied = 0
        self._allowance = (_HOLLOW_ALLOWANCE + len(self.buckets)) // 2


TimerEntry: TypeAlias = int
"""The key that `insert` returns and `cancel` takes. It keeps nothing alive and is valid for its own wheel only."""


def due_of(entry: TimerEntry) -> int:
    """Return the due time of a timer."""
    return entry >> ARRIVAL_BITS


# Chosen by measurement: docs/decisions/002-timing-wheel.md.
DEFAULT_TICK = 1 << 28
_SLOT_BITS = (0, 14, 24)  # a slot of each level is 2**n ticks wide
_STALE_ALLOWANCE = 64
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelStatistics:
    """A snapshot for monitoring. The tuples have one element per level, nearest first."""

    pending: int
    """Timers that have neither fired nor been canceled."""
    open: int
    """Pending timers that are sorted already: due within the current slot, or overdue."""
    occupancy: tuple[int, ...]
    """All other pending timers, by level."""
    slots: tuple[int, ...]
    """Slots in use, by level."""
    slot_spans: tuple[int, ...]
    """Width of one slot of each level, in nanoseconds."""
    fullest_slot: int
    """Timers in the fullest slot of any level."""
    stale: int
    """Canceled timers whose entries are still in the sorted span."""


class TimingWheel(Generic[T]):
    """A set of timers, ordered by due time.

    `tick` is the width of a near slot, rounded up to a power of two. It affects only the speed: due times are
    exact with every `tick`.
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
        # At least 1, so that True falls into the open span, where `insert` checks its input.
        position = max(now, 1) << ARRIVAL_BITS
        self._open_end = ((position >> tick_shift) + 1) << tick_shift
        self._set_ends(position)

    def __len__(self) -> int:
        return self._arrivals - self._departures

    def insert(self, due: int, item: T) -> TimerEntry:
        """Add a timer. The due time may be in the past: the next `advance` returns the item."""
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
        """Remove a timer and release its item at once. Return True if the timer was pending, else False."""
        try:
            level = self._near if entry < self._near.end else self._level_of(entry)
            _held = level.pop(entry, _MISSING)  # released on return, when the wheel is consistent again
        except TypeError:
            raise TypeError(f"cancel takes the entry that insert returned, not {entry!r}") from None
        if _held is _MISSING:
            return self._cancel_open(entry)
        self._departures += 1
        return True

    def advance(self, now: int) -> list[T]:
        """Move to `now` and return the items with `due <= now`, ordered by due time, then by arrival.

        A `now` before an earlier one does not move the wheel back; items that are due by then are returned.
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

        That is the earliest due time or, if its slot holds many timers, the beginning of that slot. At most four
        such steps lead to the due time. It is later than the last `now`, unless an overdue timer was added since.
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
        """Count the timers and slots of each level. Reads every slot in use."""
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
        self._departures += 1  # the arrival number was taken and stays unused
        return _not_an_int("due", due)

    def _bucket_elsewhere(self, due: int, entry: TimerEntry) -> dict[TimerEntry, T]:
        """Return the bucket for a new entry whose near slot does not exist; create it if necessary.

        That is the open bucket for an entry before the end of the open span, else a slot of the nearest level that
        reaches so far.
        """
        if entry < self._open_end:
            # True, and integers of other libraries that overflow when shifted, always take this branch.
            if type(due) is not int and not _is_int(due):
                raise self._refusal(due)
            heappush(self._late, entry)
            return self._open
        level = self._level_of(entry)
        return level.bucket(entry >> level.shift)

    def _level_of(self, entry: TimerEntry) -> Level[T]:
        """Return the nearest level that reaches so far; an entry beyond the open span is in this level."""
        near, mid, far = self._levels
        if entry < near.end:
            return near
        return mid if entry < mid.end else far

    def _cancel_open(self, entry: TimerEntry) -> bool:
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
        """Leave the open span, which is empty now; add the passed slots to `due` and open the current one."""
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
        """Add the passed slots of every level to `due`, then pour upcoming slots into the level below."""
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
