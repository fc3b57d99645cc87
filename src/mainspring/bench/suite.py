"""All measurements, in the order of the table, each on an empty store of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from mainspring.bench import disk, runs, submits, tasks
from mainspring.bench.figures import Result
from mainspring.bench.machine import file_system
from mainspring.bench.pace import Pace
from mainspring.bench.places import Place, Store

Measure: TypeAlias = Callable[[Place, Pace], Result | None]
"""Measures something at a place; None if the place has no such figure."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Something to measure: its name for scripts, and in words what it is and how it is done."""

    name: str
    title: str
    how: str
    measure: Measure


def on_a_store(measure: Callable[[Store, Pace], Result | None]) -> Measure:
    """Give a measurement an empty store, and take it away afterwards."""

    def measure_there(place: Place, pace: Pace) -> Result | None:
        with place.store() as store:
            return measure(store, pace)

    return measure_there


MEASUREMENTS = (
    Measurement("fsync", "an fsync", "4 KiB to a file in this folder", disk.fsync),
    Measurement(
        "tasks",
        "tasks in one process",
        f"ThreadPool({tasks.WORKERS}), from post to run, no store",
        lambda _, pace: tasks.posts(pace),
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
    """Measure one thing after the other; `begin` is told what comes next, `Stopped` ends it."""
    for measurement in MEASUREMENTS:
        begin(measurement.title)
        pace.begin()
        result = measurement.measure(place, pace)
        if result is not None:
            yield measurement, result


def describe(place: Place) -> dict[str, Any]:
    """Say what is measured: the engine, and the file system if there is one."""
    with place.store() as store:
        described: dict[str, Any] = dict(place.describe(store.app))
    if place.folder is not None:
        described["file_system"] = file_system(place.folder)
    return described
