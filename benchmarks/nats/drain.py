"""A backlog of jobs that do nothing, and one worker process, then two: from the first start to the last.

With two, the clock starts when both are there. What runs on NATS is measured until the server has the last
acknowledgement; on Redis the last start has to be enough, because the systems there do not all say when a job is
settled: that favours them.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import monotonic, sleep, time_ns

from benchmarks.jobs.process import TooSlow, submitter
from benchmarks.jobs.rounds import against, best_rates
from benchmarks.jobs.systems.system import System
from benchmarks.measure import Line, Section, faster
from benchmarks.nats import versions
from benchmarks.nats.brokers import on_nats, on_redis
from benchmarks.nats.crew import Crew
from benchmarks.nats.systems.every import BARE, ON_NATS, ON_REDIS, OURS, TASKIQ_1, TASKIQ_100
from mainspring.cli.nats_servers import Node

JOBS = 20_000
SECONDS = 120
LOOK_SECONDS = 0.005
OF_BARE, OF_ONE = 0.6, 1.6


def with_server(system: System, workers: int, jobs: int, store: Path, node: Node) -> float:
    """Return jobs per second, until the server has all acknowledgements."""
    with submitter(system, store):
        system.submit_many(range(jobs))
    with Crew(system, store, workers=workers, jobs=jobs) as crew:
        crew.wait_started(SECONDS)
        return crew.rate(settled_ns(system, node))


def with_redis(system: System, workers: int, jobs: int, store: Path) -> float:
    """Return jobs per second, until the last start."""
    jobs = min(jobs, system.drained)
    with submitter(system, store):
        system.submit_many(range(jobs))
    with Crew(system, store, workers=workers, jobs=jobs) as crew:
        crew.wait_started(SECONDS)
        return crew.rate()


def settled_ns(system: System, node: Node) -> int:
    """Wait until the server has nothing to deliver and waits for no acknowledgement, and say when that was."""
    deadline = monotonic() + SECONDS
    while unsettled(node):
        if monotonic() > deadline:
            raise TooSlow(f"{system.title} had not acknowledged everything after {SECONDS} s")
        sleep(LOOK_SECONDS)
    return time_ns()


def unsettled(node: Node) -> int:
    """Ask the server how many messages are with consumers, or on their way to them."""
    state = node.ask("/jsz?consumers=true")
    if state is None:
        raise RuntimeError("the server does not answer")
    return sum(
        consumer["num_pending"] + consumer["num_ack_pending"]
        for account in state["account_details"]
        for stream in account["stream_detail"]
        for consumer in stream.get("consumer_detail") or ()
    )


def best(workers: int, jobs: int, rounds: int, redis_rounds: int) -> dict[str, float]:
    """Return the best rates of all systems, by their titles."""
    nats = {system.title: on_nats(partial(with_server, system, workers, jobs)) for system in ON_NATS}
    redis = {system.title: on_redis(partial(with_redis, system, workers, jobs)) for system in ON_REDIS}
    return best_rates(nats, rounds) | best_rates(redis, redis_rounds)


def lines_of(what: str, rates: Mapping[str, float]) -> list[Line]:
    """Compare ours with those of the other systems."""
    ours = rates[OURS.title]
    return [
        faster(what, ours, rates[BARE.title], peer_name=BARE.title, at_least=OF_BARE),
        *against(what, ours, {TASKIQ_1.title: rates[TASKIQ_1.title]}, at_least=1),
        *against(what, ours, {TASKIQ_100.title: rates[TASKIQ_100.title]}),
        *against(what, ours, {system.title: rates[system.title] for system in ON_REDIS}, at_least=1),
    ]


def run(jobs: int = JOBS, rounds: int = 2, redis_rounds: int = 1) -> Section:
    one, two = (best(workers, jobs, rounds, redis_rounds) for workers in (1, 2))
    slow = [f"{system.name} {system.drained:,}" for system in ON_REDIS if system.drained < jobs]
    fewer = f", with fewer jobs for the slow: {', '.join(slow)}" if slow else ""
    return Section(
        title=f"NATS: {jobs:,} no-op jobs submitted beforehand, best of {rounds} rounds",
        lines=[
            *lines_of("one worker process", one),
            *lines_of("two worker processes", two),
            faster(
                "two worker processes", two[OURS.title], one[OURS.title], peer_name="ours, one", at_least=OF_ONE
            ),
        ],
        text="On NATS until the server has the last acknowledgement, on Redis until the last start. Ours and the "
        "bare loop keep the state of every job; taskiq keeps none. "
        f"Best of {redis_rounds} rounds on Redis{fewer}. "
        f"{versions.on_nats()}; {versions.on_redis()}.",
    )
