"""The cost of a million jobs that are due in an hour, for a worker that runs other jobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, sleep, time
from typing import NamedTuple

from benchmarks.jobs import drain, pickup, punctuality
from benchmarks.jobs.process import TooSlow, WorkerProcess, fresh_store, submitter
from benchmarks.jobs.systems.every import FULL, OURS, PEERS
from benchmarks.jobs.systems.system import System, batches
from benchmarks.measure import Line, Section, rates, times

PENDING = 1_000_000
HOUR = 3_600.0
FILL_SECONDS = 60
FIRST_SECONDS = 30
REST_SECONDS = 2.0
WATCH_SECONDS = 5.0
MEMORY_LIMIT, FIRST_LIMIT, LOAD_LIMIT, THROUGHPUT_SHARE = 60.0, 0.8, 0.01, 0.8
NOISE_FACTOR, NOISE_MS = 1.5, 1.0


class Burden(NamedTuple):
    """What a worker is like that has run one job and has nothing to do."""

    first_seconds: float
    """From the start of its process to the first job, which was due already."""
    memory: float
    load: float


class Service(NamedTuple):
    """How a worker serves while others are pending."""

    lateness: punctuality.Lateness
    pickup: pickup.Pickups


def fill(system: System, store: Path, count: int) -> tuple[int, float]:
    """Submit jobs that are due in an hour, for a minute at most; return how many and in how many seconds."""
    done = 0
    with submitter(system, store):
        began = perf_counter()
        for batch in batches(range(count)):
            system.submit_many(batch, time() + HOUR)
            done += len(batch)
            if perf_counter() - began > FILL_SECONDS:
                break
        return done, perf_counter() - began


@contextmanager
def working(system: System, store: Path) -> Iterator[WorkerProcess]:
    """Start a worker that finds one due job, and wait until it has run it."""
    with submitter(system, store):
        system.submit(-1)
        with WorkerProcess(system, store) as worker:
            worker.wait_started(1, FIRST_SECONDS)
            yield worker


def burden(worker: WorkerProcess, watch_seconds: float = WATCH_SECONDS) -> Burden:
    """Let a worker come to rest and watch it."""
    first = worker.wait_started(1, 0)[0]
    sleep(REST_SECONDS)
    load = worker.load(watch_seconds)
    return Burden((first.at_ns - worker.began_ns) / 1e9, worker.memory(), load)


def our_burden(store: Path) -> Burden:
    with working(FULL, store) as worker:
        return burden(worker)


def service(system: System, worker: WorkerProcess, jobs: int, window: float) -> Service:
    found = pickup.there(system, worker, pickup.JOBS // 2)
    return Service(punctuality.there(system, worker, jobs, window), found)


def our_service(store: Path) -> Service:
    with working(FULL, store) as worker:
        return service(FULL, worker, punctuality.JOBS // 2, punctuality.WINDOW_SECONDS / 2)


def burden_lines(empty: Burden, full: Burden) -> list[Line]:
    above = full.memory - empty.memory
    return [
        Line(
            what="memory of the worker above an empty one",
            ours=f"{round(above)} MB ({full.memory:.0f} - {empty.memory:.0f})",
            bound=f"< {MEMORY_LIMIT:g} MB",
            is_met=above < MEMORY_LIMIT,
        ),
        Line(
            what="from the start of the process to the first due job",
            ours=f"{full.first_seconds:.2f} s (empty {empty.first_seconds:.2f} s)",
            bound=f"< {FIRST_LIMIT:g} s",
            is_met=full.first_seconds < FIRST_LIMIT,
        ),
        Line(
            what=f"CPU of one core while idle, over {WATCH_SECONDS:g} s",
            ours=f"{full.load:.1%} (empty {empty.load:.1%})",
            bound=f"< {LOAD_LIMIT:.0%}",
            is_met=full.load < LOAD_LIMIT,
        ),
    ]


def throughput_lines(small: Path, large: Path, rounds: int) -> list[Line]:
    lines = []
    for ours in OURS:
        best = rates({"empty": partial(drain.ours, ours, small), "full": partial(drain.ours, ours, large)}, rounds)
        share = best["full"] / best["empty"]
        lines.append(
            Line(
                what=f"{drain.JOBS:,} no-op jobs, {ours.setting}",
                ours=f"{best['full']:,.0f}/s",
                peer=f"{best['empty']:,.0f}/s ours, nothing pending",
                ratio=times(share),
                bound=f"≥ {THROUGHPUT_SHARE:g} x",
                is_met=share >= THROUGHPUT_SHARE,
            )
        )
    return lines


def service_lines(small: Path, large: Path, rounds: int) -> list[Line]:
    empties, fulls = zip(*((our_service(small), our_service(large)) for _ in range(rounds)), strict=True)
    empty_pickup, full_pickup = (min(found.pickup for found in all_) for all_ in (empties, fulls))
    empty_late, full_late = (min(found.lateness for found in all_) for all_ in (empties, fulls))
    return [
        _unchanged("pickup p50, FULL", full_pickup.p50, empty_pickup.p50),
        _unchanged("pickup p99, FULL", full_pickup.p99, empty_pickup.p99),
        _unchanged("start minus due p50, FULL", full_late.p50, empty_late.p50),
        _unchanged("start minus due p99, FULL", full_late.p99, empty_late.p99),
    ]


def _unchanged(what: str, full: float, empty: float) -> Line:
    return Line(
        what=what,
        ours=f"{full:.2f} ms",
        peer=f"{empty:.2f} ms ours, nothing pending",
        ratio=times(empty / full),
        bound=f"≤ {NOISE_FACTOR:g} x + {NOISE_MS:g} ms",
        is_met=full <= NOISE_FACTOR * empty + NOISE_MS,
    )


def peer_line(peer: System) -> Line:
    """Measure a peer with as many pending jobs as it can take."""
    with fresh_store() as store, working(peer, store) as worker:
        empty = burden(worker, watch_seconds=1)
    with fresh_store() as store:
        count, took = fill(peer, store, peer.pending)
        cells = [f"filled in {took:.0f} s"]
        try:
            with working(peer, store) as worker:
                full = burden(worker)
                cells += [
                    f"memory {round(full.memory - empty.memory):+d} MB",
                    f"first {full.first_seconds:.2f} s",
                    f"idle {full.load:.0%}",
                ]
                if peer.notices_others:
                    late, found = service(peer, worker, 200, 2.0)
                    cells.append(f"pickup {found.p50:.0f} / {found.p99:.0f} ms")
                    cells.append(f"start minus due {late.p50:.0f} / {late.p99:.0f} ms")
        except TooSlow as reason:
            cells.append(str(reason))
    return Line(what=f"{peer.title}, {count:,} pending", ours="", peer=", ".join(cells))


def run(rounds: int = 3) -> Section:
    with fresh_store() as small, fresh_store() as large:
        _, took = fill(FULL, large, PENDING)
        size = sum(file.stat().st_size for file in large.parent.iterdir()) / 1e6
        lines = burden_lines(our_burden(small), our_burden(large))
        lines += throughput_lines(small, large, rounds)
        lines += service_lines(small, large, rounds - 1)
    lines += [peer_line(peer) for peer in PEERS]
    return Section(
        title=f"Jobs: {PENDING:,} jobs pending an hour ahead",
        lines=lines,
        text=f"Ours were submitted in {took:.0f} s and take {size:,.0f} MB. Throughput is the best of {rounds}, "
        f"pickup and start minus due of {rounds - 1} rounds, each in turn with a table without them. "
        "A peer that would need more than a minute to fill its store got fewer jobs; its memory is above that of "
        "an empty worker, pickup and start minus due are p50 / p99 of 100 and 200 jobs.",
    )
