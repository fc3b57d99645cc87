"""Sequences and limits on NATS: one worker and two, handlers that do nothing and handlers that wait."""

from functools import partial

from benchmarks.jobs.process import fresh_store
from benchmarks.measure import Line, Section, faster, rates
from benchmarks.nats.brokers import nats_server
from benchmarks.nats.keyed_rows import ROWS, Row, measure

QUICK, WAITING = 1.0, 1.3
"""How much faster two workers must be than one: with handlers that do nothing, and with handlers that wait."""


def rate_of(row: Row) -> float:
    """Measure a row on a server of its own."""
    with fresh_store() as store, nats_server(store) as node:
        return measure(node.url, row)


def line_of(row: Row, best: dict[str, float]) -> Line:
    """Compare two workers with one; report one worker."""
    what = f"{row.jobs:,} jobs, {row.name}"
    if row.workers == 1:
        return Line(what=what, ours=f"{best[row.name]:,.0f}/s")
    alone = row.name.removesuffix(", two workers")
    bound = WAITING if row.wait_ms else QUICK
    return faster(what, best[row.name], best[alone], peer_name="ours, one worker", at_least=bound)


def run(rounds: int = 3) -> Section:
    best = rates({row.name: partial(rate_of, row) for row in ROWS}, rounds)
    return Section(
        title=f"NATS: jobs in sequences and under limits, best of {rounds} rounds",
        lines=[line_of(row, best) for row in ROWS],
        text="The limit is `Concurrency(2, by=...)`. A worker is a process with 8 threads. A rate counts from the "
        "moment at which every worker has run a job. `python -m benchmarks.compare --keyed OLD NEW` compares two "
        "versions.",
    )
