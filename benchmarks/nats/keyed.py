"""Sequences and limits on NATS: one worker and two, handlers that do nothing and handlers that wait."""

import gc
from statistics import median

from benchmarks.jobs.process import fresh_store
from benchmarks.measure import Line, Section, paired
from benchmarks.nats.brokers import nats_server
from benchmarks.nats.keyed_rows import ROWS, Row, measure

QUICK, WAITING = 1.0, 1.3
"""How much faster two workers must be than one: with handlers that do nothing, and with handlers that wait."""


def rate_of(row: Row) -> float:
    """Measure a row on a server of its own."""
    with fresh_store() as store, nats_server(store) as node:
        return measure(node.url, row)


def rates_of_rounds(rounds: int) -> dict[str, list[float]]:
    """Measure all rows in turn, every second round in the reverse order.

    So the rows of one worker and of two follow each other at once: a busy minute hits both.
    """
    found: dict[str, list[float]] = {row.name: [] for row in ROWS}
    for number in range(rounds):
        for row in ROWS if number % 2 else reversed(ROWS):
            gc.collect()
            found[row.name].append(rate_of(row))
    return found


def line_of(row: Row, rates: dict[str, list[float]]) -> Line:
    """Compare two workers with one; report one worker."""
    what = f"{row.jobs:,} jobs, {row.name}"
    if row.workers == 1:
        return Line(what=what, ours=f"{median(rates[row.name]):,.0f}/s")
    alone = row.name.removesuffix(", two workers")
    bound = WAITING if row.wait_ms else QUICK
    return paired(what, rates[row.name], rates[alone], peer_name="ours, one worker", at_least=bound)


def run(rounds: int = 11) -> Section:
    rates = rates_of_rounds(rounds)
    return Section(
        title=f"NATS: jobs in sequences and under limits, medians of {rounds} rounds",
        lines=[line_of(row, rates) for row in ROWS],
        text="The limit is `Concurrency(2, by=...)`. A worker is a process with 8 threads. A rate counts from the "
        "moment at which every worker has run a job. The ratio is the median of those within rounds, with the "
        "smallest and the largest. `python -m benchmarks.compare --keyed OLD NEW` compares two versions.",
    )
