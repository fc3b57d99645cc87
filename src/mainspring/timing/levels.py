"""One level of the timing wheel: sparse slots of equal width, each a bucket of timers.

An *entry* is one integer, `due << ARRIVAL_BITS | arrival`: entries sort by (due, arrival), and shifting one
right by the level's `shift` gives its slot. A *bucket* maps the entries of one slot to their items.

Invariants

* `slots` is a heap of exactly the keys of `buckets`; nothing is ever paid for a slot that holds no bucket.
* An entry is in at most one bucket. Removing it removes it for good: no tombstones.
* A bucket may be *hollow* (emptied by cancels). It is never reported as the first slot, and hollow buckets are
  at most as many as the others plus a constant.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

ARRIVAL_BITS = 60
"""Room for the arrival number: a million inserts a second fill it in 36,000 years."""

_HOLLOW_ALLOWANCE = 4096
_SMALL = 64
_MISSING = object()


def is_roomy(bucket: dict[int, T]) -> bool:
    """Does this dict hold on to much more storage than its entries need? (A tight one has 24 to 56 bytes each.)"""
    return bucket.__sizeof__() > 128 * len(bucket) + 300


class Level(Generic[T]):
    """The slots of one width, found by number; only those in use exist."""

    __slots__ = ("_allowance", "buckets", "emptied", "end", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.end = 0  # the first entry too far away for this level; the wheel moves it
        self.buckets: dict[int, dict[int, T]] = {}
        self.slots: list[int] = []
        self.emptied = 0  # how often a cancel left a bucket hollow since the last sweep
        self._allowance = _HOLLOW_ALLOWANCE

    def bucket(self, slot: int) -> dict[int, T]:
        """Return the bucket of this slot, created on demand."""
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
            self.buckets.clear()  # an emptied dict keeps its storage, a cleared one does not
        return taken

    def earliest(self) -> int | None:
        """Return a lower bound of the entries here, the earliest one itself if its bucket is small."""
        slots = self.slots
        while slots:
            bucket = self.buckets[slots[0]]
            if bucket:
                return min(bucket) if len(bucket) <= _SMALL else slots[0] << self.shift
            del self.buckets[heappop(slots)]
        return None

    def discard(self, entry: int) -> bool:
        """Remove an entry and release its item; False if it is not here."""
        bucket = self.buckets.get(entry >> self.shift)
        if bucket is None:
            return False
        _held = bucket.pop(entry, _MISSING)  # released on return, when all is consistent
        if _held is _MISSING:
            return False
        size = len(bucket)
        if not size & (size - 1):
            self.shrink(entry >> self.shift, bucket)
        return True

    def shrink(self, slot: int, bucket: dict[int, T]) -> None:
        """Give storage back; called when a cancel leaves a power of two or nothing, so amortised O(1)."""
        if not bucket:
            bucket.clear()
            self.emptied += 1
            if self.emptied > self._allowance:
                self._sweep()
        elif is_roomy(bucket):
            self.buckets[slot] = bucket.copy()  # which is tight

    def _sweep(self) -> None:
        """Drop the hollow buckets if they are the majority."""
        live = {slot: bucket for slot, bucket in self.buckets.items() if bucket}
        if len(self.buckets) > 2 * len(live) + _HOLLOW_ALLOWANCE:
            self.buckets.clear()  # in place: the wheel holds on to this dict
            self.buckets.update(live)
            self.slots = list(live)
            heapify(self.slots)
        self.emptied = 0
        self._allowance = _HOLLOW_ALLOWANCE + len(self.buckets) // 2
