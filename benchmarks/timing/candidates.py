"""The known designs of a timer store, each as a small class with the interface of the shipped wheel.

They are here to be measured, not to be used: compact, correct, without checks of their input. `LATENESS` says
how much later than its due time a timer may fire. 0 means exactly then, in (due, arrival) order; the others
fire whole ticks, in order of ticks.

Where the original unlinks a canceled timer from an intrusive list, these mark it (its item is taken out) and
skip it later: in Python that is the faster way, and it releases the item just as early.
"""

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, Protocol

Entry = list[Any]  # [due, item] while pending, [due] afterwards

MS = 1_000_000


class Candidate(Protocol):
    LATENESS: int

    def insert(self, due: int, item: object) -> Any: ...
    def cancel(self, entry: Any) -> bool: ...
    def advance(self, now: int) -> list[Any]: ...
    def next_due(self) -> int | None: ...


def mark_canceled(entry: Entry) -> bool:
    if len(entry) == 1:
        return False
    entry.pop()
    return True


def pop_items(entries: list[Entry]) -> list[object]:
    return [entry.pop() for entry in entries if len(entry) == 2]


class BareHeap:
    """heapq with (due, arrival, item) and nothing else: the least a heap costs in Python. Cannot cancel."""

    LATENESS = 0

    def __init__(self, _now: int) -> None:
        self._heap: list[tuple[int, int, object]] = []
        self._arrivals = 0

    def insert(self, due: int, item: object) -> None:
        self._arrivals = arrival = self._arrivals + 1
        heappush(self._heap, (due, arrival, item))

    def cancel(self, entry: object) -> bool:
        raise NotImplementedError

    def advance(self, now: int) -> list[object]:
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            due.append(heappop(heap)[2])
        return due

    def next_due(self) -> int | None:
        return self._heap[0][0] if self._heap else None


class TupleHeap:
    """heapq with (due, arrival, entry); a canceled entry stays until it is on top or most are canceled."""

    LATENESS = 0

    def __init__(self, _now: int) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._arrivals = 0
        self._canceled = 0

    def insert(self, due: int, item: object) -> Entry:
        self._arrivals = arrival = self._arrivals + 1
        entry = [due, item]
        heappush(self._heap, (due, arrival, entry))
        return entry

    def cancel(self, entry: Entry) -> bool:
        if len(entry) == 1:
            return False
        entry.pop()
        self._canceled += 1
        if self._canceled > 64 and self._canceled * 2 > len(self._heap):
            self._heap = [node for node in self._heap if len(node[2]) == 2]
            heapify(self._heap)
            self._canceled = 0
        return True

    def advance(self, now: int) -> list[object]:
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)[2]
            if len(entry) == 2:
                due.append(entry.pop())
            else:
                self._canceled -= 1
        return due

    def next_due(self) -> int | None:
        heap = self._heap
        while heap and len(heap[0][2]) == 1:
            heappop(heap)
            self._canceled -= 1
        return heap[0][0] if heap else None


class HashedRounds:
    """One ring of slots, every timer in slot `tick % slots`, looked at once per turn. Netty's defaults."""

    LATENESS = TICK = 100 * MS
    SLOTS = 512

    def __init__(self, now: int) -> None:
        self._slots: list[list[Entry]] = [[] for _ in range(self.SLOTS)]
        self._tick = now // self.TICK

    def insert(self, due: int, item: object) -> Entry:
        tick = max(-(-due // self.TICK), self._tick + 1)
        entry = [tick, item]
        self._slots[tick % self.SLOTS].append(entry)
        return entry

    def cancel(self, entry: Entry) -> bool:
        return mark_canceled(entry)

    def advance(self, now: int) -> list[object]:
        due: list[object] = []
        for tick in range(self._tick + 1, now // self.TICK + 1):
            slot = self._slots[tick % self.SLOTS]
            if slot:
                due += [entry.pop() for entry in slot if entry[0] == tick and len(entry) == 2]
                slot[:] = [entry for entry in slot if len(entry) == 2]
            self._tick = tick
        return due

    def next_due(self) -> int | None:
        return (self._tick + 1) * self.TICK if any(self._slots) else None


class KafkaWheels:
    """Wheels of 20 slots from 1 ms up, each turn of one a slot of the next; a heap of the buckets in use."""

    LATENESS = TICK = MS
    SLOTS = 20

    def __init__(self, now: int) -> None:
        self._clock = now // self.TICK
        self._widths = [1]  # of a slot of each wheel, in ticks; wheels are added on demand
        self._buckets: dict[tuple[int, int], list[Entry]] = {}  # by (expiration, slot width)
        self._queue: list[tuple[int, int]] = []

    def insert(self, due: int, item: object) -> Entry:
        entry = [max(-(-due // self.TICK), self._clock + 1), item]
        self._add(entry)
        return entry

    def _add(self, entry: Entry) -> None:
        tick, clock, slots = entry[0], self._clock, self.SLOTS
        for width in self._widths:
            if tick < (clock // width + slots) * width:
                break
        else:
            width = self._widths[-1]
            while tick >= (clock // width + slots) * width:
                width *= slots
                self._widths.append(width)
        key = (tick // width * width, width)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = []
            heappush(self._queue, key)
        bucket.append(entry)

    def cancel(self, entry: Entry) -> bool:
        return mark_canceled(entry)

    def advance(self, now: int) -> list[object]:
        due: list[object] = []
        until, queue = now // self.TICK, self._queue
        while queue and queue[0][0] <= until:
            key = heappop(queue)
            self._clock = max(self._clock, key[0])
            for entry in self._buckets.pop(key):
                if len(entry) == 2:
                    if entry[0] <= self._clock:
                        due.append(entry.pop())
                    else:
                        self._add(entry)
        self._clock = max(self._clock, until)
        return due

    def next_due(self) -> int | None:
        return self._queue[0][0] * self.TICK if self._queue else None


class TokioWheel:
    """Six levels of 64 slots from 1 ms upwards; a bitmap per level finds the next slot in use."""

    LATENESS = TICK = MS
    LEVELS, BITS = 6, 6

    def __init__(self, now: int) -> None:
        self._elapsed = now // self.TICK
        self._slots: list[list[list[Entry]]] = [[[] for _ in range(64)] for _ in range(self.LEVELS)]
        self._occupied = [0] * self.LEVELS

    def insert(self, due: int, item: object) -> Entry:
        entry = [max(-(-due // self.TICK), self._elapsed + 1), item]
        self._add(entry)
        return entry

    def _add(self, entry: Entry) -> None:
        tick = entry[0]
        level = min(((self._elapsed ^ tick | 63).bit_length() - 1) // 6, 5)
        slot = tick >> level * 6 & 63
        self._slots[level][slot].append(entry)
        self._occupied[level] |= 1 << slot

    def cancel(self, entry: Entry) -> bool:
        return mark_canceled(entry)

    def _next(self) -> tuple[int, int, int] | None:
        """When, on which level and in which slot the next bucket expires."""
        for level, occupied in enumerate(self._occupied):
            if occupied:
                shift = level * 6
                current = self._elapsed >> shift & 63
                rotated = occupied >> current | occupied << 64 - current & (1 << 64) - 1
                if level == 5 and rotated & 1:  # a whole turn away: the range of 2 years is exceeded
                    rotated = rotated & ~1 or 1 << 64
                slot = current + (rotated & -rotated).bit_length() - 1
                return (self._elapsed >> shift + 6 << shift + 6) + (slot << shift), level, slot & 63
        return None

    def advance(self, now: int) -> list[object]:
        due: list[object] = []
        until = now // self.TICK
        while (found := self._next()) and found[0] <= until:
            self._elapsed, level, slot = found
            bucket = self._slots[level][slot]
            self._slots[level][slot] = []
            self._occupied[level] &= ~(1 << slot)
            for entry in bucket:
                if len(entry) == 2:
                    if entry[0] <= self._elapsed:
                        due.append(entry.pop())
                    else:
                        self._add(entry)
        self._elapsed = max(self._elapsed, until)
        return due

    def next_due(self) -> int | None:
        found = self._next()
        return found[0] * self.TICK if found else None


class SparseTicks:
    """A dict from tick to bucket and a heap of the ticks in use; no levels."""

    LATENESS = TICK = MS

    def __init__(self, _now: int) -> None:
        self._buckets: dict[int, list[Entry]] = {}
        self._ticks: list[int] = []

    def insert(self, due: int, item: object) -> Entry:
        entry = [due, item]
        tick = -(-due // self.TICK)
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = [entry]
            heappush(self._ticks, tick)
        else:
            bucket.append(entry)
        return entry

    def cancel(self, entry: Entry) -> bool:
        return mark_canceled(entry)

    def advance(self, now: int) -> list[object]:
        due: list[object] = []
        until, ticks = now // self.TICK, self._ticks
        while ticks and ticks[0] <= until:
            due += pop_items(self._buckets.pop(heappop(ticks)))
        return due

    def next_due(self) -> int | None:
        return self._ticks[0] * self.TICK if self._ticks else None


class _Slot(list[Entry]):
    __slots__ = ("cancelled",)
    cancelled: int

    def sorted_live(self) -> list[Entry]:
        live = [entry for entry in self if len(entry) == 2] if self.cancelled else self
        live.sort(key=itemgetter(0))
        return live


class ListLevels:
    """The shipped wheel's levels, but with entries [due, item] in lists, and tombstones that are counted."""

    LATENESS = 0
    SHIFTS = (30, 42, 54)

    def __init__(self, now: int) -> None:
        self._levels: list[dict[int, _Slot]] = [{} for _ in self.SHIFTS]
        self._slots: list[list[int]] = [[] for _ in self.SHIFTS]
        self._front: list[Entry] = []
        self._head = 0
        self._late: list[tuple[int, int, Entry]] = []
        self._arrivals = 0
        self._move_to(now)

    def _move_to(self, now: int) -> None:
        self._open_end = (now >> 30) + 1 << 30
        self._ends = [(now >> 42) + 2 << 42, (now >> 54) + 2 << 54]

    def insert(self, due: int, item: object) -> Entry:
        entry = [due, item]
        slot = self._levels[0].get(due >> 30)
        if slot is not None:
            slot.append(entry)
        elif due < self._open_end:
            self._arrivals = arrival = self._arrivals + 1
            heappush(self._late, (due, arrival, entry))
        else:
            self._add(bisect_right(self._ends, due), (entry,))
        return entry

    def _add(self, level: int, entries: tuple[Entry, ...] | list[Entry]) -> None:
        slots, shift = self._levels[level], self.SHIFTS[level]
        for entry in entries:
            number = entry[0] >> shift
            slot = slots.get(number)
            if slot is None:
                slot = slots[number] = _Slot()
                slot.cancelled = 0
                heappush(self._slots[level], number)
            slot.append(entry)

    def cancel(self, entry: Entry) -> bool:
        if len(entry) == 1:
            return False
        entry.pop()
        due = entry[0]
        slot = self._levels[0].get(due >> 30) or self._slot_elsewhere(due)
        if slot is not None:
            slot.cancelled = canceled = slot.cancelled + 1
            if canceled + canceled > len(slot):
                slot[:] = [entry for entry in slot if len(entry) == 2]
                slot.cancelled = 0
        return True

    def _slot_elsewhere(self, due: int) -> _Slot | None:
        return self._levels[1].get(due >> 42) or self._levels[2].get(due >> 54)

    def advance(self, now: int) -> list[object]:
        due = self._take_open(now)
        if now >= self._open_end:
            for level in range(3):
                due += self._take_whole(level, now)
            for level in (2, 1):
                for slot in self._take(level, (now >> self.SHIFTS[level]) + 2):
                    self._add(level - 1, slot)
                due += self._take_whole(level - 1, now)
            for slot in self._take(0, (now >> 30) + 1):
                self._front, self._head = slot.sorted_live(), 0
            self._move_to(now)
            due += self._take_open(now)
        return pop_items(due)

    def _take(self, level: int, until: int) -> list[_Slot]:
        numbers, taken = self._slots[level], []
        while numbers and numbers[0] < until:
            taken.append(self._levels[level].pop(heappop(numbers)))
        return taken

    def _take_whole(self, level: int, now: int) -> list[Entry]:
        return [e for slot in self._take(level, now >> self.SHIFTS[level]) for e in slot.sorted_live()]

    def _take_open(self, now: int) -> list[Entry]:
        start, late = self._head, self._late
        self._head = bisect_right(self._front, now, start, key=itemgetter(0))
        due = self._front[start : self._head]
        if late and late[0][0] <= now:
            while late and late[0][0] <= now:
                due.append(heappop(late)[2])
            due.sort(key=itemgetter(0))
        return due

    def next_due(self) -> int | None:
        first: int | None = self._front[self._head][0] if self._head < len(self._front) else None
        if self._late and (first is None or self._late[0][0] < first):
            first = self._late[0][0]
        if first is not None:
            return first
        for numbers, shift in zip(self._slots, self.SHIFTS, strict=True):
            if numbers:
                return numbers[0] << shift
        return None
