"""The cost of a million jobs that are due in an hour, for a worker and for the server."""

from importlib import import_module  # psutil has no types, and `make check` runs without it
from pathlib import Path
from time import perf_counter, time

from benchmarks.jobs.million import HOUR, MEMORY_LIMIT, PENDING, Burden, burden, working
from benchmarks.jobs.process import fresh_store, submitter
from benchmarks.jobs.systems.system import batches
from benchmarks.measure import Line, Section
from benchmarks.nats import versions
from benchmarks.nats.brokers import nats_server
from benchmarks.nats.systems.every import OURS
from mainspring.cli.nats_servers import Node


def fill(store: Path, count: int) -> float:
    """Submit jobs that are due in an hour, however long that takes, and return the seconds."""
    with submitter(OURS, store):
        began = perf_counter()
        for batch in batches(range(count)):
            OURS.submit_many(batch, time() + HOUR)
        return perf_counter() - began


def our_burden(store: Path) -> Burden:
    """Return what a worker is like that has run one job and has nothing to do."""
    with working(OURS, store) as worker:
        return burden(worker)


def memory_of(node: Node) -> float:
    """Return the resident megabytes of the server."""
    return float(import_module("psutil").Process(node.process.pid).memory_info().rss) / 1e6


def run(pending: int = PENDING) -> Section:
    """Measure with so many jobs; fewer of them take less time."""
    with fresh_store() as store, nats_server(store) as node:
        empty, empty_server = our_burden(store), memory_of(node)
    with fresh_store() as store, nats_server(store) as node:
        took = fill(store, pending)
        full, full_server = our_burden(store), memory_of(node)
        size = sum(file.stat().st_size for file in store.parent.rglob("*") if file.is_file()) / 1e6
    above = full.memory - empty.memory
    return Section(
        title=f"NATS: {pending:,} jobs pending an hour ahead",
        lines=[
            Line(
                what="memory of the worker above an empty one",
                ours=f"{round(above)} MB ({full.memory:.0f} - {empty.memory:.0f})",
                bound=f"< {MEMORY_LIMIT:g} MB",
                is_met=above < MEMORY_LIMIT,
            ),
            Line(
                what="from the start of the process to the first due job",
                ours=f"{full.first_seconds:.2f} s (empty {empty.first_seconds:.2f} s)",
            ),
            Line(what="CPU of one core while idle", ours=f"{full.load:.1%} (empty {empty.load:.1%})"),
            Line(what="memory of the server", ours=f"{full_server:.0f} MB (empty {empty_server:.0f} MB)"),
        ],
        text=f"Submitted in {took:.0f} s; the server's files take {size:,.0f} MB. {versions.on_nats()}.",
    )
