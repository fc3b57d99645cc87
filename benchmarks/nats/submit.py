"""Submitting from one client process, in bulk and one by one."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.jobs.process import submitter
from benchmarks.jobs.rounds import best_rates, rates_in_turn
from benchmarks.jobs.systems.system import System
from benchmarks.measure import Line, Section, faster, paired
from benchmarks.nats import versions
from benchmarks.nats.brokers import on_nats
from benchmarks.nats.systems.asynchronous import WINDOW
from benchmarks.nats.systems.every import OURS, TASKIQ_1
from mainspring.cli.nats_servers import Node

JOBS, SINGLE = 20_000, 2_000
AT_LEAST = 5_000
OF_TASKIQ = 0.7  # it keeps no record of a job


def rate(system: System, send: Callable[[Sequence[int]], None], jobs: int, store: Path, _node: Node) -> float:
    """Return jobs per second; the first one, which makes streams and the like, comes before."""
    with submitter(system, store):
        system.submit(0)
        began = perf_counter()
        send(range(jobs))
        return jobs / (perf_counter() - began)


def one_by_one(values: Sequence[int]) -> None:
    for value in values:
        OURS.submit(value)


def run(jobs: int = JOBS, rounds: int = 5, pairs: int = 15) -> Section:
    bulk, single = "ours in bulk", "ours one by one"
    theirs_bulk, theirs_single = f"taskiq-nats, {WINDOW} at once", "taskiq-nats, one by one"
    best = best_rates(
        {
            bulk: on_nats(partial(rate, OURS, OURS.submit_many, jobs)),
            theirs_bulk: on_nats(partial(rate, TASKIQ_1, TASKIQ_1.submit_many, jobs)),
        },
        rounds,
    )
    singles = rates_in_turn(
        {
            single: on_nats(partial(rate, OURS, one_by_one, SINGLE)),
            theirs_single: on_nats(partial(rate, TASKIQ_1, TASKIQ_1.submit_in_turn, SINGLE)),
        },
        pairs,
    )
    ours = best[bulk]
    return Section(
        title=f"NATS: submit of {jobs:,} from one client process, best of {rounds} rounds",
        lines=[
            Line(what="`submit_many`", ours=f"{ours:,.0f}/s", bound=f"≥ {AT_LEAST:,}/s", is_met=ours >= AT_LEAST),
            faster("`submit_many`", ours, max(singles[theirs_single]), peer_name=theirs_single, at_least=1),
            faster("`submit_many`", ours, best[theirs_bulk], peer_name=theirs_bulk),
            paired(
                f"{SINGLE:,} one by one",
                singles[single],
                singles[theirs_single],
                peer_name=theirs_single,
                at_least=OF_TASKIQ,
            ),
        ],
        text="taskiq has no bulk call: its jobs are sent one after another, or many at once by `asyncio.gather`. "
        "Each of its jobs is a message; each of ours is a message and a record of its state. "
        f"One by one: medians of {pairs} pairs. {versions.on_nats()}.",
    )
