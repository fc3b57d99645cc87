"""Measures a worker (how many jobs it completes, how soon each starts), and tasks of a pool without a store.

The worker runs in this process.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from random import Random
from threading import Event
from typing import TypeVar

from mainspring.bench.budget import MeasurementBudget
from mainspring.bench.figures import Percentiles, RateFigure
from mainspring.bench.stores import BenchStore
from mainspring.jobs.context import current_job
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime, to_instant
from mainspring.runners.thread_pool import ThreadPool

WORKERS = 4
MOST = 100_000  # how many tasks one round has at most


def posts(budget: MeasurementBudget) -> RateFigure:
    """Measure how fast a pool accepts and runs tasks that do nothing."""
    with ThreadPool(WORKERS, name="bench") as pool:

        def post(count: int) -> None:
            for _ in range(count):
                pool.post(_nothing)
            pool.wait_idle()

        return budget.best_rate(budget.timed(post), first=1_000, most=MOST)


def _nothing() -> None:
    return None


Item = TypeVar("Item")

LOOK_SECONDS = 0.1  # seconds between two checks for a request to stop, during a wait
MOST_SAMPLES = 500
LEAST_SAMPLES = 20
PROBES = 5
SUBMIT_SHARE = 0.4  # the share of a measurement's time for submitting jobs that are due later
SLACK_SECONDS = 0.2


def drain(store: BenchStore, budget: MeasurementBudget) -> RateFigure:
    """Measure how many jobs, which do nothing, a worker completes per second, from its start to its stop."""
    runs: list[None] = []
    all_ran = Event()
    expected = 0

    @store.app.job(name="bench.nothing")
    def nothing() -> None:
        runs.append(None)
        if len(runs) >= expected:
            all_ran.set()

    def work(count: int) -> float:
        nonlocal expected
        expected = len(runs) + count
        all_ran.clear()
        nothing.submit_many([()] * count)
        began = budget.clock.monotonic_ns()
        with store.app.running():
            while not all_ran.wait(LOOK_SECONDS):
                budget.report()
        return budget.since(began)

    return budget.best_rate(work, first=100)


def submit_to_start(store: BenchStore, budget: MeasurementBudget) -> Percentiles:
    """Measure the time from a submit to the start of its job, one job after the other, with an idle worker."""
    starts: SimpleQueue[int] = SimpleQueue()

    @store.app.job(name="bench.start")
    def start() -> None:
        starts.put(budget.clock.monotonic_ns())

    taken: list[float] = []
    with store.app.running():
        start.submit().wait()
        starts.get()  # the first job is not measured, because the worker has just started
        while len(taken) < LEAST_SAMPLES or (len(taken) < MOST_SAMPLES and not budget.is_over):
            began = budget.clock.monotonic_ns()
            handle = start.submit()
            taken.append((_next(starts, budget) - began) / 1e6)
            handle.wait()
            budget.report()
    return Percentiles.of(taken)


def start_minus_due(store: BenchStore, budget: MeasurementBudget) -> Percentiles:
    """Measure how late jobs start that are due at random instants of the next seconds, by the store's clock."""
    app = store.app
    late: SimpleQueue[float] = SimpleQueue()

    @app.job(name="bench.timer")
    def timer() -> None:
        late.put((app.manager().engine.now() - to_instant(current_job().due, "due")) / 1_000)

    with app.running():
        began = budget.clock.monotonic_ns()
        for _ in range(PROBES):
            timer.submit().wait()
        each = budget.since(began) / PROBES
        for _ in range(PROBES):
            late.get()
        count = max(LEAST_SAMPLES, min(MOST_SAMPLES, int(SUBMIT_SHARE * budget.seconds / each)))
        ahead = SLACK_SECONDS + count * each
        chance = Random(count)
        first = app.manager().engine.now() + int(ahead * MICROSECONDS)
        for _ in range(count):
            due = first + int(chance.random() * budget.seconds * MICROSECONDS)
            timer.at(to_datetime(due)).submit()
            budget.report()
        return Percentiles.of([_next(late, budget) for _ in range(count)])


def _next(items: SimpleQueue[Item], budget: MeasurementBudget) -> Item:
    while True:
        try:
            return items.get(timeout=LOOK_SECONDS)
        except Empty:
            budget.report()
