"""The list of all measurements, in the order of the table. Each that needs a store gets its own empty one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from mainspring.bench import execution, submits
from mainspring.bench.budget import MeasurementBudget
from mainspring.bench.figures import Result, file_system
from mainspring.bench.stores import BenchStore, StoreFactory

Measure: TypeAlias = Callable[[StoreFactory, MeasurementBudget], Result | None]
"""A function that measures on stores of a factory; it returns None if these stores have no such figure."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement: its name for scripts, its title, a description of the method, and its function."""

    name: str
    title: str
    how: str
    measure: Measure


def with_store(measure: Callable[[BenchStore, MeasurementBudget], Result | None]) -> Measure:
    """Return a function that creates an empty store with a factory, calls `measure` with it, and removes it."""

    def measure_on_store(stores: StoreFactory, budget: MeasurementBudget) -> Result | None:
        with stores.store() as store:
            return measure(store, budget)

    return measure_on_store


MEASUREMENTS = (
    Measurement("fsync", "an fsync", "4 KiB to a file in this folder", submits.fsync),
    Measurement(
        "tasks",
        "tasks in one process",
        f"ThreadPool({execution.WORKERS}), from post to run, no store",
        lambda _, budget: execution.posts(budget),
    ),
    Measurement(
        "submit", "submits, one by one", "one thread, each stored when it returns", with_store(submits.one_by_one)
    ),
    Measurement(
        "submit_threads",
        f"submits, {submits.THREADS} threads",
        "one by one in each, which share commits",
        with_store(submits.from_threads),
    ),
    Measurement(
        "submit_bulk",
        "submits in bulk",
        f"submit_many, {submits.CHUNK:,} at a time",
        with_store(submits.in_bulk),
    ),
    Measurement(
        "drain",
        "jobs run",
        "no-ops, a worker in this process, from its start to its end",
        with_store(execution.drain),
    ),
    Measurement(
        "latency",
        "submit to start",
        "an idle worker in this process, the submit included",
        with_store(execution.submit_to_start),
    ),
    Measurement(
        "lateness",
        "start minus due",
        "a worker in this process, jobs due within seconds",
        with_store(execution.start_minus_due),
    ),
    Measurement(
        "size",
        "size of a job",
        "in the store, before it runs, with one small argument",
        with_store(submits.size_of_a_job),
    ),
)


def run_measurements(
    stores: StoreFactory, budget: MeasurementBudget, begin: Callable[[str], None]
) -> Iterator[tuple[Measurement, Result]]:
    """Run the measurements one after the other, and yield each one that has a result, with the result.

    `begin` is called with the title of each measurement before it starts. Raises `BenchStopped` if the user asks
    to stop.
    """
    for measurement in MEASUREMENTS:
        begin(measurement.title)
        budget.begin()
        result = measurement.measure(stores, budget)
        if result is not None:
            yield measurement, result


def describe(stores: StoreFactory) -> dict[str, Any]:
    """Return facts about the engine of the stores, and the file system if the stores are in a folder.

    To read the facts, it creates and removes a temporary store.
    """
    with stores.store() as store:
        described: dict[str, Any] = dict(stores.describe(store.app))
    if stores.folder is not None:
        described["file_system"] = file_system(stores.folder)
    return described
