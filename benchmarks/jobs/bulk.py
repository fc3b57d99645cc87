"""Bulk submits, compared with raw inserts into the same table and with the bulk calls of other systems."""

from pathlib import Path
from time import perf_counter

from benchmarks.jobs import bare
from benchmarks.jobs.process import submitter
from benchmarks.jobs.rounds import against, best_rates, for_each
from benchmarks.jobs.systems.every import FULL, NORMAL, OURS, PEERS
from benchmarks.jobs.systems.system import BATCH, System
from benchmarks.measure import Section, faster

JOBS = 100_000
RAW = "raw `executemany` of the same rows, FULL"


def rate(system: System, store: Path) -> float:
    """Submit with the bulk call of a system, or fewer jobs one by one if it has none."""
    values = range(JOBS if system.has_bulk else system.submits)
    with submitter(system, store):
        began = perf_counter()
        system.submit_many(values)
        return len(values) / (perf_counter() - began)


def run(rounds: int = 5, peer_rounds: int = 2) -> Section:
    best = best_rates(
        {**for_each(OURS, rate), RAW: lambda store: bare.insert_rate(store, JOBS)},
        rounds,
    )
    peers = best_rates(for_each(PEERS, rate), peer_rounds)
    lines = []
    for ours in (FULL, NORMAL):
        what, bound = f"`submit_many`, {ours.setting}", 0.5 if ours is FULL else None
        lines.append(faster(what, best[ours.title], best[RAW], peer_name=RAW, at_least=bound))
        lines += against(what, best[ours.title], peers, at_least=1)
    without = ", ".join(f"{peer.name} ({peer.submits:,} jobs)" for peer in PEERS if not peer.has_bulk)
    return Section(
        title=f"Jobs: bulk submit of {JOBS:,}, best of {rounds} rounds",
        lines=lines,
        text="The raw inserts are one transaction of rows that lay ready. "
        f"Best of {peer_rounds} rounds for peers, in batches of {BATCH:,} like ours. "
        f"Without a bulk call, and so one by one: {without}.",
    )
