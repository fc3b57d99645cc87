"""Submitting one by one, each durable when the call returns: one thread, and many that share an fsync."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import perf_counter

from benchmarks.jobs import bare
from benchmarks.jobs.process import submitter
from benchmarks.jobs.rounds import against, best_rates, for_each
from benchmarks.jobs.systems.every import FULL, NORMAL, PEERS
from benchmarks.jobs.systems.system import System
from benchmarks.measure import Section, faster

THREADS = 32
EACH = 300
LOOP = "bare group-commit loop, FULL"
BARE_FULL, BARE_NORMAL = "bare commit, FULL", "bare commit, NORMAL"


def one_thread(system: System, store: Path) -> float:
    with submitter(system, store):
        system.submit(0)
        return _rate(lambda: _submit(system, system.submits), 1, system.submits)


def many_threads(system: System, store: Path) -> float:
    with submitter(system, store):
        system.submit(0)
        return _rate(lambda: _submit(system, EACH), THREADS, EACH)


def _submit(system: System, count: int) -> None:
    for value in range(count):
        system.submit(value)


def _rate(submit: Callable[[], None], threads: int, each: int) -> float:
    submitters = [Thread(target=submit) for _ in range(threads)]
    began = perf_counter()
    for thread in submitters:
        thread.start()
    for thread in submitters:
        thread.join()
    return threads * each / (perf_counter() - began)


def run(rounds: int = 5, peer_rounds: int = 2) -> Section:
    one, many = "one thread", f"{THREADS} threads"
    best = best_rates(
        {
            f"FULL {one}": lambda store: one_thread(FULL, store),
            f"FULL {many}": lambda store: many_threads(FULL, store),
            BARE_FULL: lambda store: bare.commit_rate(store, FULL.submits, "FULL"),
            f"loop {many}": lambda store: bare.group_commit_rate(store, THREADS, EACH),
            BARE_NORMAL: lambda store: bare.commit_rate(store, NORMAL.submits, "NORMAL"),
            f"NORMAL {one}": lambda store: one_thread(NORMAL, store),
            f"NORMAL {many}": lambda store: many_threads(NORMAL, store),
        },
        rounds,
    )
    peers = best_rates(for_each(PEERS, one_thread), peer_rounds)
    full_one, full_many = best[f"FULL {one}"], best[f"FULL {many}"]
    lines = [
        faster(f"{many}, FULL", full_many, full_one, peer_name="ours from one thread", at_least=3.5),
        faster(f"{many}, FULL", full_many, best[f"loop {many}"], peer_name=LOOP, at_least=0.7),
        faster(f"{many}, NORMAL", best[f"NORMAL {many}"], best[f"NORMAL {one}"], peer_name="ours from one thread"),
        faster(f"{one}, FULL", full_one, best[BARE_FULL], peer_name=BARE_FULL, at_least=0.8),
        faster(f"{one}, NORMAL", best[f"NORMAL {one}"], best[BARE_NORMAL], peer_name=BARE_NORMAL, at_least=0.45),
        *against(f"{one}, FULL", full_one, peers),
        *against(f"{one}, NORMAL", best[f"NORMAL {one}"], peers),
    ]
    return Section(
        title=f"Jobs: one-by-one durable submits, best of {rounds} rounds",
        lines=lines,
        text=f"Best of {peer_rounds} rounds for peers. FULL waits for the disk, NORMAL does not.",
    )
