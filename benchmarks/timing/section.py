"""The timing wheel's part of the results: the bounds it is held to, and the table of all candidates."""

import gc
from collections.abc import Callable
from functools import partial

from benchmarks.measure import Line, Section
from benchmarks.timing import compare
from benchmarks.timing.candidates import BareHeap

TIMERS = 1_000_000
FEWER_TIMERS = 200_000  # for the table of all candidates: some need minutes for a million
MEMORY_LIMIT = 160


def best(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Run everything in turn and return the least seconds of each."""
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run_it in runs.items():
            gc.collect()
            seconds[name] = min(seconds[name], run_it())
    return seconds


def against(
    what: str, ours: Callable[[], float], peer_name: str, peer: Callable[[], float], at_least: float
) -> Line:
    seconds = best({"ours": ours, "peer": peer}, rounds=3)
    ratio = seconds["peer"] / seconds["ours"]
    return Line(
        what=what,
        ours=f"{seconds['ours']:.2f} s",
        peer=f"{seconds['peer']:.2f} s {peer_name}",
        ratio=f"{ratio:.1f} x",
        bound=f"≥ {at_least:g} x",
        is_met=ratio >= at_least,
    )


def run() -> Section:
    wheel = compare.Shipped
    size = compare.bytes_per_timer(wheel, TIMERS, compare.HOUR)
    lines = [
        against(
            "insert all + fire all in 3,600 advances",
            partial(compare.all_fire, wheel, TIMERS),
            "`heapq` of tuples",
            partial(compare.all_fire, BareHeap, TIMERS),
            at_least=1.5,
        ),
        against(
            "insert + cancel, each at once",
            partial(compare.cancel_at_once, wheel, TIMERS),
            "asyncio `call_later`",
            partial(compare.loop_cancel_at_once, TIMERS),
            at_least=2,
        ),
        against(
            "insert all, then cancel all",
            partial(compare.cancel_all, wheel, TIMERS),
            "asyncio `call_later`",
            partial(compare.loop_cancel_all, TIMERS),
            at_least=2,
        ),
        Line(
            what="memory per pending timer, entry included, callable not",
            ours=f"{size:.0f} B",
            bound=f"≤ {MEMORY_LIMIT} B",
            is_met=size <= MEMORY_LIMIT,
        ),
    ]
    compare.delays.cache_clear()
    table = compare.markdown(compare.run(FEWER_TIMERS))
    return Section(
        title=f"Timing wheel, {TIMERS:,} timers over an hour, best of 3 rounds",
        lines=lines,
        text=f"All candidates with {FEWER_TIMERS:,} timers, one round: seconds and, in brackets, how many times "
        f"as fast as the heap that can cancel. The decision was made on a million of them: see "
        f"`docs/decisions/002-timing-wheel.md`."
        f"\n\n{table}",
    )
