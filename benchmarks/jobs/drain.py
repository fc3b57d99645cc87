"""A backlog of jobs that do nothing, and one worker process: from the first start to the last settled job.

For peers the last start has to be enough, because they do not all say when a job is settled: that favours them.
"""

from pathlib import Path
from time import time_ns

from benchmarks.jobs import bare
from benchmarks.jobs.process import WorkerProcess, submitter
from benchmarks.jobs.rounds import against, best_rates, for_each
from benchmarks.jobs.systems.every import FULL, NORMAL, OURS, PEERS
from benchmarks.jobs.systems.ours import Ours
from benchmarks.jobs.systems.system import System
from benchmarks.measure import Line, Section, faster
from mainspring import JobStatus

JOBS = 20_000
SECONDS = 120
AT_LEAST = 20_000
LOOP = "bare loop of batched claims and settles, FULL"


def ours(system: Ours, store: Path) -> float:
    """Return jobs per second, up to the moment at which the store shows no job that runs."""
    with submitter(system, store):
        system.submit_many(range(JOBS))
        with WorkerProcess(system, store, expected=JOBS) as worker:
            starts = worker.wait_started(JOBS, SECONDS)
            worker.wait_until(lambda: not system.app.jobs(status=JobStatus.RUNNING, limit=1), SECONDS)
            took = time_ns() - starts[0].at_ns
    require_all(system, {start.value for start in starts}, JOBS)
    return JOBS / (took / 1e9)


def peer(system: System, store: Path) -> float:
    """Return jobs per second, from the first start to the last."""
    with submitter(system, store):
        system.submit_many(range(system.drained))
    with WorkerProcess(system, store, expected=system.drained) as worker:
        starts = worker.wait_started(system.drained, SECONDS)
    require_all(system, {start.value for start in starts}, system.drained)
    return system.drained / ((starts[-1].at_ns - starts[0].at_ns) / 1e9)


def require_all(system: System, values: set[int], count: int) -> None:
    """Refuse a figure that is not about all jobs."""
    if len(values) != count:
        raise RuntimeError(f"{system.title} ran {len(values):,} different jobs of {count:,}")


def run(rounds: int = 5, peer_rounds: int = 2) -> Section:
    best = best_rates(
        {**for_each(OURS, ours), LOOP: lambda store: bare.drain_rate(store, JOBS)},
        rounds,
    )
    peers = best_rates(for_each(PEERS, peer), peer_rounds)
    full, normal = best[FULL.title], best[NORMAL.title]
    lines = [
        Line(
            what="all of it, FULL",
            ours=f"{full:,.0f}/s",
            bound=f"≥ {AT_LEAST:,}/s",
            is_met=full >= AT_LEAST,
        ),
        *against("all of it, FULL", full, peers, of_best=6),
        faster("all of it, FULL", full, best[LOOP], peer_name=LOOP),
        *against("all of it, NORMAL", normal, peers),
        faster("all of it, NORMAL", normal, best[LOOP], peer_name=LOOP),
    ]
    fewer = ", ".join(f"{peer.name} {peer.drained:,}" for peer in PEERS if peer.drained < JOBS)
    return Section(
        title=f"Jobs: {JOBS:,} no-op jobs enqueued beforehand, one worker process, best of {rounds} rounds",
        lines=lines,
        text="Ours until the last job is settled, with its state, lease and token; peers until the last start. "
        f"8 threads each (APScheduler 10). Best of {peer_rounds} rounds for peers, with fewer jobs for the slow: "
        f"{fewer}.",
    )
