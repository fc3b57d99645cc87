"""The timing wheel against the known designs: `python -m benchmarks.timing.compare [timers [repeats]]`.

Every candidate is first checked against a sorted list. Then all candidates run each workload in turn, and the
best time of each counts. The garbage collector is on, as it is in a program. A ratio is the heap's time (or
memory) divided by the candidate's: above 1 is better than a heap.
"""

import asyncio
import gc
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import sqrt
from time import perf_counter
from typing import Any, TypeAlias

from benchmarks.timing.candidates import (
    MS,
    BareHeap,
    Candidate,
    HashedRounds,
    KafkaWheels,
    ListLevels,
    SparseTicks,
    TokioWheel,
    TupleHeap,
)
from mainspring.timing import TimingWheel

SECOND = 1000 * MS
HOUR = 3600 * SECOND
YEAR = 8766 * HOUR
START = 1_234_567 * SECOND + 890  # two weeks after boot, on no slot's boundary

Make: TypeAlias = Callable[[int], Candidate]


class Shipped(TimingWheel[Any]):
    LATENESS = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    workload: str
    seconds: float | None = None
    ratio: float | None = None
    bytes_per_timer: float | None = None


HEAP, BARE_HEAP, HASHED = "heap", "heap that cannot cancel", "hashed, 512 x 100 ms"
LOOP = "asyncio `call_later`"
CANDIDATES: dict[str, Make] = {
    HEAP: TupleHeap,
    BARE_HEAP: BareHeap,
    HASHED: HashedRounds,
    "Kafka, 20 x 1 ms and up": KafkaWheels,
    "tokio, 6 x 64 x 1 ms": TokioWheel,
    "sparse ticks of 1 ms": SparseTicks,
    "levels of lists": ListLevels,
    "**shipped wheel**": Shipped,
}


def item() -> None:
    """What the timers carry: a function, as in a program."""


@cache
def delays(count: int, span: int) -> list[int]:
    choose = random.Random(count).randrange
    return [choose(1, span) for _ in range(count)]


def check(make: Make, *, can_cancel: bool = True, operations: int = 4000) -> None:
    """Insert, cancel, advance at random: nothing early, nothing later than allowed, exact ones in order."""
    choose = random.Random(operations)
    wheel, now = make(START), START
    lateness = wheel.LATENESS
    pending: dict[int, int] = {}
    entries: list[Any] = []
    for number in range(operations):
        due = now + choose.randrange(choose.choice([1, 50 * MS, SECOND, HOUR]))
        entries.append(wheel.insert(due, number))
        pending[number] = due
        if can_cancel and choose.random() < 0.4:
            victim = choose.randrange(number + 1)
            assert wheel.cancel(entries[victim]) == (pending.pop(victim, None) is not None)
        if choose.random() < 0.2:
            now += choose.choice([MS, choose.randrange(SECOND), choose.randrange(HOUR // 4)])
            fired = wheel.advance(now)
            must = sorted((due, number) for number, due in pending.items() if due <= now - lateness)
            assert {number for _, number in must} <= set(fired)
            assert all(pending.pop(number) <= now for number in fired)
            assert lateness or fired == [number for _, number in must]
    assert sorted(wheel.advance(now + 2 * HOUR)) == sorted(pending)


def all_fire(make: Make, count: int) -> float:
    dues = [START + delay for delay in delays(count, HOUR)]
    wheel = make(START)
    insert, advance, fired = wheel.insert, wheel.advance, 0
    began = perf_counter()
    for due in dues:
        insert(due, item)
    for now in range(START + SECOND, START + HOUR + SECOND, SECOND):
        fired += len(advance(now))
    took = perf_counter() - began
    assert count * 0.999 <= fired <= count  # a late one may be left over
    return took


def cancel_at_once(make: Make, count: int) -> float:
    dues = [START + delay for delay in delays(count, HOUR)]
    wheel = make(START)
    insert, cancel = wheel.insert, wheel.cancel
    began = perf_counter()
    for due in dues:
        cancel(insert(due, item))
    return perf_counter() - began


def cancel_all(make: Make, count: int) -> float:
    dues = [START + delay for delay in delays(count, HOUR)]
    wheel = make(START)
    insert, cancel = wheel.insert, wheel.cancel
    began = perf_counter()
    entries = [insert(due, item) for due in dues]
    for entry in entries:
        cancel(entry)
    return perf_counter() - began


def loop_cancel_at_once(count: int) -> float:
    seconds = [delay / SECOND for delay in delays(count, HOUR)]
    loop = asyncio.new_event_loop()
    call_later = loop.call_later
    began = perf_counter()
    for delay in seconds:
        call_later(delay, item).cancel()
    took = perf_counter() - began
    loop.close()
    return took


def loop_cancel_all(count: int) -> float:
    seconds = [delay / SECOND for delay in delays(count, HOUR)]
    loop = asyncio.new_event_loop()
    call_later = loop.call_later
    began = perf_counter()
    handles = [call_later(delay, item) for delay in seconds]
    for handle in handles:
        handle.cancel()
    took = perf_counter() - began
    loop.close()
    return took


def mostly_canceled(make: Make, count: int) -> float:
    """Time-outs of 1 to 5 s, 100 in each millisecond; 95 of them are canceled 20 ms later."""
    dues = [SECOND + delay for delay in delays(count, 4 * SECOND)]
    wheel, now = make(START), START
    insert, cancel, advance = wheel.insert, wheel.cancel, wheel.advance
    batches: list[list[Any]] = []
    began = perf_counter()
    for step, first in enumerate(range(0, count, 100)):
        batches.append([insert(now + delay, item) for delay in dues[first : first + 100]])
        if step >= 20:
            for entry in batches[step - 20][5:]:
                cancel(entry)
            batches[step - 20] = []
        now += MS
        advance(now)
    advance(now + 10 * SECOND)
    return perf_counter() - began


def sparse(make: Make, count: int) -> float:
    """A tenth of the timers over 10 years, each reached by following `next_due`."""
    dues = [START + delay for delay in delays(count // 10, 10 * YEAR)]
    wheel = make(START)
    insert, advance, next_due, fired = wheel.insert, wheel.advance, wheel.next_due, 0
    began = perf_counter()
    for due in dues:
        insert(due, item)
    while (now := next_due()) is not None:
        fired += len(advance(now))
    took = perf_counter() - began
    assert fired == len(dues)
    return took


def steady(make: Make, count: int) -> float:
    """All pending, due within 20 s; then 2 s in steps of 1 ms, in which as many come as go."""
    span, rate = 20 * SECOND, count // 10_000
    fresh = delays(2000 * rate, span)
    wheel, now = make(START), START
    insert, advance = wheel.insert, wheel.advance
    for delay in delays(count, span):
        insert(now + int(span * (1 - sqrt(delay / span))), item)
    gc.collect()
    began = perf_counter()
    for first in range(0, len(fresh), rate):
        for delay in fresh[first : first + rate]:
            insert(now + delay, item)
        now += MS
        advance(now)
    return perf_counter() - began


def short(make: Make, count: int) -> float:
    """A quarter of the timers, 100 in each millisecond, due within 100 ms: mostly in the open slot."""
    wheel, now = make(START), START
    insert, advance = wheel.insert, wheel.advance
    fresh = delays(count // 4, 100 * MS)
    began = perf_counter()
    for first in range(0, len(fresh), 100):
        for delay in fresh[first : first + 100]:
            insert(now + delay, item)
        now += MS
        advance(now)
    return perf_counter() - began


def bytes_per_timer(make: Make, count: int, span: int) -> float:
    """What a pending timer costs: its due time and all that is kept for it, without the item."""
    gc.collect()
    tracemalloc.start()
    wheel = make(START)
    insert = wheel.insert
    for number in range(count):
        insert(START + 1 + number * 0x9E3779B97F4A7C15 % span, item)  # scattered over the span
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / count


WORKLOADS: dict[str, tuple[Callable[[Make, int], float], set[str]]] = {  # and who cannot take part
    "all fire": (all_fire, set()),
    "cancel at once": (cancel_at_once, {BARE_HEAP}),
    "insert all, cancel all": (cancel_all, {BARE_HEAP}),
    "95 % canceled": (mostly_canceled, {BARE_HEAP}),
    "sparse, 10 years": (sparse, {HASHED}),  # it would walk through 3 billion slots
    "steady, all pending": (steady, set()),
    "delays < 100 ms": (short, set()),
}
LOOP_WORKLOADS = {"cancel at once": loop_cancel_at_once, "insert all, cancel all": loop_cancel_all}
SPANS = {"memory, 1 hour": HOUR, "memory, 10 years": 10 * YEAR}


def timings(workload: str, scale: int, repeats: int) -> Iterator[Row]:
    run_one, absent = WORKLOADS[workload]
    runs = {name: partial(run_one, make, scale) for name, make in CANDIDATES.items() if name not in absent}
    if workload in LOOP_WORKLOADS:
        runs[LOOP] = partial(LOOP_WORKLOADS[workload], scale)
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run_it in runs.items():
            gc.collect()
            best[name] = min(best[name], run_it())
    for name, seconds in best.items():
        yield Row(name=name, workload=workload, seconds=seconds, ratio=best[HEAP] / seconds)


def memory(workload: str, scale: int) -> Iterator[Row]:
    used = {name: bytes_per_timer(make, scale, SPANS[workload]) for name, make in CANDIDATES.items()}
    for name, size in used.items():
        yield Row(name=name, workload=workload, bytes_per_timer=size, ratio=used[HEAP] / size)


def run(scale: int = 1_000_000, repeats: int = 1) -> list[Row]:
    for name, make in CANDIDATES.items():
        check(make, can_cancel=name != BARE_HEAP)
    rows = [row for workload in WORKLOADS for row in timings(workload, scale, repeats)]
    delays.cache_clear()
    return rows + [row for workload in SPANS for row in memory(workload, scale)]


def markdown(rows: list[Row]) -> str:
    """One line per candidate, one column per workload."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    cells = {(row.name, row.workload): _cell(row) for row in rows}
    lines = [["candidate", "late by up to", *workloads], ["---"] * (len(workloads) + 2)]
    lines += [
        [name, _lateness(name), *(cells.get((name, workload), "") for workload in workloads)]
        for name in dict.fromkeys(row.name for row in rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _lateness(name: str) -> str:
    if name not in CANDIDATES:
        return ""
    lateness = CANDIDATES[name](START).LATENESS
    return f"{lateness // MS} ms" if lateness else "exact"


def _cell(row: Row) -> str:
    if row.bytes_per_timer is not None:
        return f"{row.bytes_per_timer:.0f} B"
    return f"{row.seconds:.2f} s ({row.ratio:.1f})"


def main() -> None:
    arguments = [int(argument) for argument in sys.argv[1:3]]
    print(markdown(run(*arguments)))


if __name__ == "__main__":
    main()
