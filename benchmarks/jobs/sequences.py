"""Sequences: a hundred thousand keys that rest, submitting with keys, and working through few and many of them."""

from pathlib import Path
from threading import Thread
from time import perf_counter, time
from typing import NamedTuple

from benchmarks.jobs import drain, million
from benchmarks.jobs.process import fresh_store, submitter
from benchmarks.jobs.rounds import best_rates, for_each
from benchmarks.jobs.systems.variants import FEW_KEYS, MANY_KEYS, ONE_KEY, PLAIN, Keyed
from benchmarks.measure import Line, Section, faster, percentile, times
from mainspring.jobs.engine import Demand, Engine
from mainspring.jobs.records import Outcome, OutcomeKind, WorkerInfo

KEYS, EACH = 100_000, 2
SUBMITS = 20_000
THREADS, FROM_EACH = 32, 200
WAITING, TURNS = 100_000, 300
UNCHANGED_FACTOR, UNCHANGED_MS = 2.0, 1.0
KEYLESS = "ours, without a key"


class Turns(NamedTuple):
    """Milliseconds of takes of one job, and of settling it, which lets the next one of its key go."""

    take_p50: float
    take_p99: float
    settle_p50: float
    settle_p99: float


# -- at rest


def fill(store: Path) -> None:
    """Store keys whose jobs are due in an hour."""
    system = Keyed(KEYS)
    with submitter(system, store):
        system.submit_many(range(KEYS * EACH), time() + million.HOUR)


def burden_lines() -> list[Line]:
    with fresh_store() as small, fresh_store() as large:
        fill(large)
        return million.burden_lines(million.our_burden(small), million.our_burden(large))


# -- submitting


def bulk_rate(system: Keyed, store: Path) -> float:
    with submitter(system, store):
        began = perf_counter()
        system.submit_many(range(SUBMITS))
        return SUBMITS / (perf_counter() - began)


def single_rate(system: Keyed, store: Path) -> float:
    """Submit one by one from many threads, each with other values."""
    with submitter(system, store):
        system.submit(0)
        threads = [Thread(target=_submit, args=(system, place * FROM_EACH)) for place in range(THREADS)]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return THREADS * FROM_EACH / (perf_counter() - began)


def _submit(system: Keyed, first: int) -> None:
    for value in range(first, first + FROM_EACH):
        system.submit(value)


def submit_lines(rounds: int) -> list[Line]:
    bulk = best_rates(for_each((PLAIN, MANY_KEYS), bulk_rate), rounds)
    single = best_rates(for_each((PLAIN, MANY_KEYS), single_rate), rounds)
    return [
        faster(
            f"submit of {SUBMITS:,}, as many keys", bulk[MANY_KEYS.title], bulk[PLAIN.title], peer_name=KEYLESS
        ),
        faster(
            f"one-by-one submits of {THREADS} threads, a key for each",
            single[MANY_KEYS.title],
            single[PLAIN.title],
            peer_name=KEYLESS,
        ),
    ]


# -- working through them


def drain_lines(rounds: int) -> list[Line]:
    best = best_rates(for_each((PLAIN, MANY_KEYS, FEW_KEYS), drain.ours), rounds)
    return [
        faster(
            f"{drain.JOBS:,} no-op jobs over {system.keys:,} keys",
            best[system.title],
            best[PLAIN.title],
            peer_name=KEYLESS,
        )
        for system in (MANY_KEYS, FEW_KEYS)
    ]


def turns(system: Keyed, count: int, store: Path) -> Turns:
    """Take and settle jobs one at a time, with so many waiting."""
    with submitter(system, store):
        system.submit_many(range(count))
        engine = system.app.manager().engine
        with engine.unit(durable=False):
            worker = engine.enroll(WorkerInfo("benchmark", 1, (system.job.name,)))
        found = [turn(engine, worker, system.job.name) for _ in range(TURNS)]
        with engine.unit(durable=False):
            engine.leave(worker)
    takes, settles = zip(*found, strict=True)
    return Turns(
        percentile(takes, 0.5), percentile(takes, 0.99), percentile(settles, 0.5), percentile(settles, 0.99)
    )


def _turns_of(count: int) -> Turns:
    with fresh_store() as store:
        return turns(ONE_KEY, count, store)


def turn(engine: Engine, worker: int, name: str) -> tuple[float, float]:
    """Return the milliseconds of taking a job and of settling it, commits included, fsyncs not."""
    demand = Demand(types=(name,), starts=8, ahead=0)
    began = perf_counter()
    with engine.unit(durable=False):
        leases = engine.take(worker, [demand], lead=0, start_lead=0).leases
    taken = perf_counter()
    with engine.unit(durable=False):
        engine.settle(worker, [Outcome(lease, OutcomeKind.COMPLETED) for lease in leases])
    settled = perf_counter()
    if len(leases) != 1:
        raise RuntimeError(f"one job of a key may run at a time, and {len(leases)} were taken")
    return (taken - began) * 1e3, (settled - taken) * 1e3


def turn_lines(rounds: int) -> list[Line]:
    found = [(_turns_of(TURNS), _turns_of(WAITING)) for _ in range(rounds)]
    short, long = map(min, zip(*found, strict=True))
    few = f"{TURNS} waiting"
    return [
        _unchanged(f"take with {WAITING:,} waiting for one key, p50", long.take_p50, short.take_p50, few),
        _unchanged(f"take with {WAITING:,} waiting for one key, p99", long.take_p99, short.take_p99, few),
        _unchanged("settle, which lets the next of them go, p50", long.settle_p50, short.settle_p50, few),
        _unchanged("settle, which lets the next of them go, p99", long.settle_p99, short.settle_p99, few),
    ]


def _unchanged(what: str, long: float, short: float, beside: str) -> Line:
    return Line(
        what=what,
        ours=f"{long:.2f} ms",
        peer=f"{short:.2f} ms ours, {beside}",
        ratio=times(short / long),
        bound=f"≤ {UNCHANGED_FACTOR:g} x + {UNCHANGED_MS:g} ms",
        is_met=long <= UNCHANGED_FACTOR * short + UNCHANGED_MS,
    )


def run(rounds: int = 3) -> Section:
    lines = [*burden_lines(), *submit_lines(rounds), *drain_lines(rounds), *turn_lines(2)]
    return Section(
        title=f"Jobs: sequences, {KEYS:,} keys at rest, best of {rounds} rounds",
        lines=lines,
        text=f"FULL. The first three lines: {EACH} jobs for each of {KEYS:,} keys, due in an hour. Takes and "
        "settles are those of the engine, committed and not fsynced, one job at a time, best of 2 rounds. A key "
        "runs one job at a time, so with few keys a worker has small batches to take and to settle.",
    )
