"""Start minus due of jobs that are submitted to a running worker some seconds ahead."""

from pathlib import Path

from benchmarks.jobs.punctuality import JOBS, WINDOW_SECONDS, Lateness, of_idle_worker
from benchmarks.jobs.rounds import least
from benchmarks.measure import Line, Section
from benchmarks.nats import versions
from benchmarks.nats.brokers import nats_server
from benchmarks.nats.systems.every import OURS

LIMIT = 15.0


def lateness(store: Path) -> Lateness:
    with nats_server(store):
        return of_idle_worker(OURS, store)


def run(rounds: int = 3) -> Section:
    found = least(lateness, rounds)
    if found is None:
        raise RuntimeError(f"{OURS.title} was not done in time in any of {rounds} rounds")
    return Section(
        title=f"NATS: punctuality, {JOBS:,} jobs over {WINDOW_SECONDS:g} s, p50 / p99 / max",
        lines=[
            Line(
                what="start minus due",
                ours=str(found),
                bound=f"p99 < {LIMIT:g} ms",
                is_met=found.p99 < LIMIT,
            ),
            Line(what="started early", ours=f"{found.early}", bound="0", is_met=not found.early),
        ],
        text="Submitted one by one from another process, some seconds ahead, to a worker that runs. "
        f"Best of {rounds} rounds. {versions.on_nats()}.",
    )
