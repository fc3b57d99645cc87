"""One level of the timing wheel: slots of equal width, each a bucket of timers; only slots in use exist.

An *entry* is one integer, `(due << ARRIVAL_BITS) + arrival`: entries sort by (due, arrival), and an entry
shifted right by the level's `shift` is the number of its slot. A *bucket* maps the entries of one slot to
their items. Integers in a few dicts are small and fast, and add nothing for the garbage collector to visit.

Invariants

* `slots` is a heap of exactly the keys of `buckets`.
* A cancelled entry is gone at once: no tombstones. A bucket's storage stays in proportion to its timers.
* A bucket may be *hollow*: emptied by cancels. Nobody wakes up for it. Hollow buckets are cheap and are used
  again; they are dropped when they outnumber the others by more than a constant.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

# Far more than arrivals need, for the sake of hashing: an int hashes to its remainder by 2**61 - 1, so within
# a slot due times add multiples of 2**19, and no pattern of due times makes arrivals in a row collide.
ARRIVAL_BITS = 80

_HOLLOW_ALLOWANCE = 1 << 14
_FEW = 64  # timers in a bucket of which the earliest may be searched at every call


def is_roomy(bucket: dict[int, T]) -> bool:
    """Whether a dict keeps much more storage than it needs; a tight one has at most 56 bytes per entry."""
    return bucket.__sizeof__() > 128 * len(bucket) + 300


class Level(Generic[T]):
    """The slots of one width, found by number."""

    __slots__ = ("_allowance", "_emptied", "buckets", "end", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.end = 0  # the first entry too far away for this level; moved by the wheel, 0 on the last level
        self.buckets: dict[int, dict[int, T]] = {}
        self.slots: list[int] = []
        self._emptied = 0  # how often a cancel left a bucket hollow since the last sweep
        self._allowance = _HOLLOW_ALLOWANCE // 2

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
            self.buckets.clear()  # unlike an emptied dict, a cleared one gives its storage back
        return taken

    def earliest(self) -> int | None:
        """Return a lower bound of the entries here, the earliest one itself if its bucket is small."""
        slots = self.slots
        while slots:
            bucket = self.buckets[slots[0]]
            if bucket:
                return min(bucket) if len(bucket) <= _FEW else slots[0] << self.shift
            del self.buckets[heappop(slots)]
        self.buckets.clear()
        return None

    def pop(self, entry: int, default: object) -> object:
        """Remove an entry and return its item; the default if it is not here."""
        bucket = self.buckets.get(entry >> self.shift)
        if bucket is None or entry not in bucket:
            return default
        item = bucket.pop(entry)
        size = len(bucket)
        if not size & (size - 1):
            self.shrink(entry >> self.shift, bucket)
        return item

    def shrink(self, slot: int, bucket: dict[int, T]) -> None:
        """Give storage back; called when a cancel leaves a power of two or nothing, so amortised O(1)."""
        if not bucket:
            bucket.clear()
            self._emptied += 1
            if self._emptied > self._allowance:
                self._sweep()
        elif is_roomy(bucket):
            self.buckets[slot] = bucket.copy()  # which is tight

    def _sweep(self) -> None:
        """Drop the hollow buckets if they are the majority."""
        live = {slot: bucket for slot, bucket in self.buckets.items() if bucket}
        if len(self.buckets) > 2 * len(live) + _HOLLOW_ALLOWANCE:
            self.buckets = live
            self.slots = list(live)
            heapify(self.slots)
        self._emptied = 0
        self._allowance = (_HOLLOW_ALLOWANCE + len(self.buckets)) // 2
