"""A timing wheel: exact order, unlimited range, O(1) insert and cancel. Not thread-safe: callers must lock.

The caller passes `now` and gets the items that are due; the wheel uses no thread and no clock. Times are integers
in nanoseconds.

The wheel has three levels: near, mid and far. Each level has slots of one width, which grows from level to level.
The current slot of near is open, that is, its timers are sorted::

    now
     |
    [ open ][  |  |  |  |  |  |  |  ][     |     |     |     ][          |          |  ...
     sorted   near: slots of 268 ms    mid: slots of 73 min     far: slots of 52 days
       ^__________|  ^_____________________|  ^_____________________|
        opened         poured down              poured down          as `now` approaches

Only slots in use exist, so an empty slot costs neither memory nor time. Near and mid always extend beyond `now` by
at least one whole slot of the level above them. Far has no end.

Invariants

* The entry of a timer and the position of the wheel determine where the timer is stored. So `cancel` needs no
  search.
* All timers of the open slot are due before any timer of near. All timers of near are due before any timer of mid,
  and all timers of mid before any timer of far.
* `_open` contains the timers of the open slot, and overdue timers. `_front` and `_late` contain the entries of
  these timers in order: `_front` is a list that was sorted when the slot was opened, latest first, and `_late` is
  a heap of the entries that were inserted since. These two may also contain canceled entries: at most as many as
  live entries, plus a constant.
* After `advance(now)`, every pending timer is due later than `now`, and every slot except the open slot begins
  later.

Example: at 0, a caller inserts a thousand timers for 3 h. They are in slot 2 of mid, which begins at 2:26:36, and
`next_due()` returns this time. `advance(2:26:36)` pours the slot into near: the timers are then in slot 40,233 of
near, which begins at 2:59:59.97. `advance(2:59:59.97)` opens this slot, and `next_due()` returns 3:00:00. (For a
slot with few timers, `next_due()` returns the earliest due time at once.) So a timer moves at most twice, and the
wheel sorts timers in small portions.

Each slot has a *bucket* of timers. An *entry* is one integer, `(due << ARRIVAL_BITS) + arrival`. Entries sort by
due time, then by arrival. An entry shifted right by the `shift` of a level is the number of its slot in this
level. A bucket maps the entries of one slot to their items. Integers in a few dicts are small and fast, and the
garbage collector has no additional objects to visit.

Invariants of a level

* `slots` is a heap of exactly the keys of `buckets`.
* `cancel` removes an entry at once. The storage of a bucket stays proportional to the number of its timers.
* A bucket is *hollow* if cancels have emptied it. `next_due` skips hollow buckets. They are cheap and are reused;
  the level drops them when there are more hollow buckets than other buckets, plus a constant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import add, neg
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

# More bits than arrivals need, so that hashes are spread. The hash of an int is its remainder modulo 2**61 - 1. So
# within a slot, due times add multiples of 2**19 to the hash, and consecutive arrivals do not collide, whatever
# their due times are.
ARRIVAL_BITS = 80

_HOLLOW_ALLOWANCE = 1 << 14
_FEW = 64  # the size of the largest bucket that `earliest` searches for its earliest entry


def is_roomy(bucket: dict[int, T]) -> bool:
    """Return whether a dict has much more storage than its entries need, so that a copy would save memory."""
    return bucket.__sizeof__() > 128 * len(bucket) + 300


class Level(Generic[T]):
    """A level of the wheel: slots of one width, addressed by number."""

    __slots__ = ("_allowance", "_emptied", "buckets", "end", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.end = 0  # the first entry that is too late for this level; set by the wheel, 0 on the last level
        self.buckets: dict[int, dict[int, T]] = {}
        self.slots: list[int] = []
        self._emptied = 0  # cancels since the last sweep that left a bucket hollow
        self._allowance = _HOLLOW_ALLOWANCE // 2

    def bucket(self, slot: int) -> dict[int, T]:
        """Return the timers of one slot of this level, a span of time; create an empty dict if there are none."""
        bucket = self.buckets.get(slot)
        if bucket is None:
            bucket = self.buckets[slot] = {}
            heappush(self.slots, slot)
        return bucket

    def pour(self, timers: Iterable[tuple[int, T]]) -> None:
        """Distribute timers, as pairs of entry and item, over the slots of this level."""
        buckets, shift = self.buckets, self.shift
        for entry, item in timers:
            bucket = buckets.get(entry >> shift)
            if bucket is None:
                bucket = self.bucket(entry >> shift)
            bucket[entry] = item

    def take(self, until: int) -> list[dict[int, T]]:
        """Remove the slots (spans of time) whose numbers are below `until`.

        Return their timers, the earliest slot first.
        """
        slots = self.slots
        taken = []
        while slots and slots[0] < until:
            taken.append(self.buckets.pop(heappop(slots)))
        if taken and not slots:
            self.buckets.clear()  # `clear` frees the storage, `pop` does not
        return taken

    def earliest(self) -> int | None:
        """Return a lower bound of all entries of this level (due times); None if the level has no timers.

        If the first slot of time with timers has few, this is the earliest entry itself. Empty slots before it are
        dropped.
        """
        slots = self.slots
        while slots:
            bucket = self.buckets[slots[0]]
            if bucket:
                return min(bucket) if len(bucket) <= _FEW else slots[0] << self.shift
            del self.buckets[heappop(slots)]
        self.buckets.clear()
        return None

    def pop(self, entry: int, default: object) -> object:
        """Remove an entry and return its item; return the default if this level does not contain the entry."""
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
        """Free unused storage of a bucket (the timers of one slot) from which timers were canceled.

        Called when a cancel leaves no timers, or a number of timers that is a power of two. So the amortised cost
        of a cancel is O(1).
        """
        if not bucket:
            bucket.clear()
            self._emptied += 1
            if self._emptied > self._allowance:
                self._sweep()
        elif is_roomy(bucket):
            self.buckets[slot] = bucket.copy()  # a copy has only the storage that it needs

    def _sweep(self) -> None:
        """Drop the buckets that cancels have emptied if they are more than the other buckets, plus a constant."""
        live = {slot: bucket for slot, bucket in self.buckets.items() if bucket}
        if len(self.buckets) > 2 * len(live) + _HOLLOW_ALLOWANCE:
            self.buckets = live
            self.slots = list(live)
            heapify(self.slots)
        self._emptied = 0
        self._allowance = (_HOLLOW_ALLOWANCE + len(self.buckets)) // 2


TimerEntry: TypeAlias = int
"""The key that `insert` returns and `cancel` takes. It references no object; it is valid for one wheel only."""


def due_of(entry: TimerEntry) -> int:
    """Return the due time of the timer with this entry, in nanoseconds."""
    return entry >> ARRIVAL_BITS


# Chosen by measurement: docs/decisions/002-timing-wheel.md.
DEFAULT_TICK = 1 << 28
_SLOT_BITS = (0, 14, 24)  # a slot of each level is 2**n ticks wide
_STALE_ALLOWANCE = 64
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelStatistics:
    """A snapshot of a timing wheel for monitoring. The tuples have one element per level, nearest first."""

    pending: int
    """Timers that have neither fired nor been canceled."""
    open: int
    """Pending timers that are sorted already, because they are due within the current slot or overdue."""
    occupancy: tuple[int, ...]
    """The number of pending timers that are not sorted yet, by level."""
    slots: tuple[int, ...]
    """The number of slots with timers, by level."""
    slot_spans: tuple[int, ...]
    """Width of one slot of each level, in nanoseconds."""
    fullest_slots: tuple[int, ...]
    """Timers in the fullest slot of each level, without the open slot, whose timers are sorted."""
    stale: int
    """Entries of canceled timers that the sorted lists of the open slot still contain."""

    @property
    def fullest_slot(self) -> int:
        """Timers in the fullest slot of all levels, without the open slot; 0 if no slot has timers."""
        return max(self.fullest_slots, default=0)

    def __add__(self, other: WheelStatistics) -> WheelStatistics:
        """Return the statistics of two wheels together: sums, and the larger values of `fullest_slots`.

        Raises `ValueError` if the slots of the wheels are not equally wide.
        """
        if self.slot_spans != other.slot_spans:
            raise ValueError(
                f"the slots of the wheels differ in width: {self.slot_spans} and {other.slot_spans} nanoseconds; "
                "add only statistics of wheels with the same tick"
            )
        return WheelStatistics(
            pending=self.pending + other.pending,
            open=self.open + other.open,
            occupancy=_add_each(self.occupancy, other.occupancy),
            slots=_add_each(self.slots, other.slots),
            slot_spans=self.slot_spans,
            fullest_slots=tuple(map(max, self.fullest_slots, other.fullest_slots)),
            stale=self.stale + other.stale,
        )


def _add_each(these: tuple[int, ...], those: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(add, these, those))


class TimingWheel(Generic[T]):
    """A set of timers, ordered by due time.

    `tick` is the width of a slot in the nearest level, in nanoseconds, rounded up to a power of two. It affects
    only the speed: due times are exact with every `tick`.
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
        # At least 1, so that a due time of True falls into the open slot, where `insert` checks the type.
        position = max(now, 1) << ARRIVAL_BITS
        self._open_end = ((position >> tick_shift) + 1) << tick_shift
        self._set_ends(position)

    def __len__(self) -> int:
        return self._arrivals - self._departures

    def insert(self, due: int, item: T) -> TimerEntry:
        """Add a timer, and return its entry for `cancel`; raise `TypeError` if `due` is no int.

        If the due time is in the past, the next `advance` returns the item.
        """
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
        """Remove a timer and release its item at once. Return True if the timer was pending, otherwise False."""
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
        """Move to `now`; remove and return the items with `due <= now`, ordered by due time, then by arrival.

        If `now` is before the `now` of an earlier call, the wheel does not move back. Items with `due <= now` that
        were inserted since that call are still returned.
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
        """Return the time at which to call `advance` next; None if no timer is pending.

        This is the earliest due time or, if its slot has many timers, the beginning of the slot. At most four
        calls of `advance` lead to the due time. The returned time is later than the last `now`, unless an overdue
        timer was added since.
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
        """Count the timers and slots of each level. The time grows with the number of slots in use."""
        sizes = [[len(bucket) for bucket in level.buckets.values() if bucket] for level in self._levels]
        return WheelStatistics(
            pending=len(self),
            open=len(self._open),
            occupancy=tuple(sum(level) for level in sizes),
            slots=tuple(len(level) for level in sizes),
            slot_spans=tuple(1 << level.shift - ARRIVAL_BITS for level in self._levels),
            fullest_slots=tuple(max(level, default=0) for level in sizes),
            stale=len(self._front) + len(self._late) - len(self._open),
        )

    def _refusal(self, due: object) -> TypeError:
        self._departures += 1  # no timer gets this arrival number
        return _not_an_int("due", due)

    def _bucket_elsewhere(self, due: int, entry: TimerEntry) -> dict[TimerEntry, T]:
        """Return the bucket (timers of one slot) for a new entry whose near slot does not exist.

        Create it if necessary. For an entry before the end of the open slot, this is the open bucket, and the
        entry is added to `_late`. For other entries, it is the bucket of a slot in the nearest level that extends
        to the entry. Raises `TypeError` if `due` is no int.
        """
        if entry < self._open_end:
            # A due time of True, or an integer of another library that overflows when shifted, always comes here.
            if type(due) is not int and not _is_int(due):
                raise self._refusal(due)
            heappush(self._late, entry)
            return self._open
        level = self._level_of(entry)
        return level.bucket(entry >> level.shift)

    def _level_of(self, entry: TimerEntry) -> Level[T]:
        """Return the nearest level that extends to an entry. An entry after the open slot is in this level."""
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
        """Close the open slot, which is empty now, and open the slot of `position`.

        Add the items of all slots between them to `due`.
        """
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
        """Add the items of passed slots of every level to `due`, then pour upcoming slots into the level below."""
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
