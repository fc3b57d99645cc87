"""Lists all measurements in the order of the table and runs them, each on its own empty store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from mainspring.bench import runs, submits
from mainspring.bench.figures import Result, file_system
from mainspring.bench.pace import Pace
from mainspring.bench.places import BenchStore, Place

Measure: TypeAlias = Callable[[Place, Pace], Result | None]
"""Measures something at a place; None if the place has no such figure."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement: its name for scripts, its title, a description of how it is done, and its function."""

    name: str
    title: str
    how: str
    measure: Measure


def on_a_store(measure: Callable[[BenchStore, Pace], Result | None]) -> Measure:
    """Wrap a measurement so that it gets an empty store, which is removed afterwards."""

    def measure_there(place: Place, pace: Pace) -> Result | None:
        with place.store() as store:
            return measure(store, pace)

    return measure_there


MEASUREMENTS = (
    Measurement("fsync", "an fsync", "4 KiB to a file in this folder", submits.fsync),
    Measurement(
        "tasks",
        "tasks in one process",
        f"ThreadPool({runs.WORKERS}), from post to run, no store",
        lambda _, pace: runs.posts(pace),
    ),
    Measurement(
        "submit", "submits, one by one", "one thread, each stored when it returns", on_a_store(submits.one_by_one)
    ),
    Measurement(
        "submit_threads",
        f"submits, {submits.THREADS} threads",
        "one by one in each, which share commits",
        on_a_store(submits.from_threads),
    ),
    Measurement(
        "submit_bulk",
        "submits in bulk",
        f"submit_many, {submits.CHUNK:,} at a time",
        on_a_store(submits.in_bulk),
    ),
    Measurement(
        "drain",
        "jobs run",
        "no-ops, a worker in this process, from its start to its end",
        on_a_store(runs.drain),
    ),
    Measurement(
        "latency",
        "submit to start",
        "an idle worker in this process, the submit included",
        on_a_store(runs.submit_to_start),
    ),
    Measurement(
        "lateness",
        "start minus due",
        "a worker in this process, jobs due within seconds",
        on_a_store(runs.start_minus_due),
    ),
    Measurement(
        "size",
        "size of a job",
        "in the store, before it runs, with one small argument",
        on_a_store(submits.size_of_a_job),
    ),
)


def measured(place: Place, pace: Pace, begin: Callable[[str], None]) -> Iterator[tuple[Measurement, Result]]:
    """Run the measurements one after the other; `begin` is called with the title of each before it starts.

    `Stopped` is raised if the user asks to stop.
    """
    for measurement in MEASUREMENTS:
        begin(measurement.title)
        pace.begin()
        result = measurement.measure(place, pace)
        if result is not None:
            yield measurement, result


def describe(place: Place) -> dict[str, Any]:
    """Return the facts about the engine, and the file system if the place has a folder."""
    with place.store() as store:
        described: dict[str, Any] = dict(place.describe(store.app))
    if place.folder is not None:
        described["file_system"] = file_system(place.folder)
    return described
