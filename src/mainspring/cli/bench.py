"""`mainspring bench`: measures the speed of Mainspring on this machine, without touching the user's jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import click

from mainspring.app import Mainspring
from mainspring.bench.budget import BenchStopped, MeasurementBudget
from mainspring.bench.figures import Result, machine
from mainspring.bench.stores import SqliteStores, StoreFactory, stores_of
from mainspring.bench.suite import MEASUREMENTS, Measurement, describe, run_measurements
from mainspring.cli.app_selection import find_selection, load_application
from mainspring.cli.commands import Command
from mainspring.cli.deferred_signals import ALL_SIGNALS, DeferredSignals
from mainspring.cli.options import NumberRange, app_options, json_option
from mainspring.cli.output import Cell, escape_control, print_json, print_line, print_message, print_table
from mainspring.cli.progress import StepProgress

CAVEAT = (
    "Other programs on this machine, its disk or its servers change these figures: compare runs while it is idle."
)

TITLES = ("WHAT", "FIGURE", "SAMPLES", "HOW")

Figures: TypeAlias = list[tuple[Measurement, Result]]


@click.command("bench", cls=Command)
@click.option(
    "--in",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Measure SQLite in this folder, instead of the engine of your store.",
    metavar="FOLDER",
)
@click.option(
    "--seconds",
    type=NumberRange(0.01, 3_600, kind=float),
    default=2.0,
    help="The duration of each measurement, approximately.",
    metavar="NUMBER",
)
@click.option(
    "--jobs",
    type=NumberRange(100),
    default=20_000,
    help="Store at most this many jobs at once.",
    metavar="NUMBER",
)
@json_option
@app_options
def bench(
    *, folder: Path | None, seconds: float, jobs: int, as_json: bool, app: str | None, url: str | None
) -> None:
    """Measure the speed of Mainspring on this machine, with the engine of your store.

    It takes about twenty seconds and uses temporary stores: your jobs are not touched.

    With SQLite the stores are in a folder beside your file. On NATS they are streams named bench-... Both are
    removed at the end. Without an application or a URL, SQLite in the working directory is measured.

    Example: mainspring bench --url sqlite:////srv/shop/shop.db

    Example: mainspring bench --in /mnt/disk --seconds 0.5 --json
    """
    stores = _store_factory(folder, app, url)
    figures: Figures = []
    with DeferredSignals(signals=ALL_SIGNALS) as signals, StepProgress(seconds, len(MEASUREMENTS)) as meter:
        budget = MeasurementBudget(
            seconds=seconds, jobs=jobs, on_progress=meter.tell, is_stopped=lambda: signals.is_stop_requested
        )
        here, engine = machine(), describe(stores)
        try:
            for figure in run_measurements(stores, budget, meter.begin):
                figures.append(figure)
        except BenchStopped:
            print_message("mainspring: stopped")
    if as_json:
        document = {"machine": here, "engine": engine, "settings": {"seconds": seconds, "jobs": jobs}}
        print_json(
            document | {"complete": not signals.is_stop_requested, "figures": _numbers(figures), "caveat": CAVEAT}
        )
    elif figures:
        _show(here, engine, figures)
    signals.exit_if_requested()


def _store_factory(folder: Path | None, app: str | None, url: str | None) -> StoreFactory:
    if folder is not None:
        if app is not None or url is not None:
            raise click.BadParameter("--in cannot be used with --app or --url; leave --in out, or these")
        return SqliteStores(folder.absolute(), Mainspring())
    if find_selection(app, url) is None:
        return SqliteStores(Path.cwd(), Mainspring())
    return stores_of(load_application(app, url))


def _show(here: dict[str, Any], engine: dict[str, Any], figures: Figures) -> None:
    versions = f"mainspring {here['mainspring']}, {here['python']}, {here['system']} {here['architecture']}"
    print_line(f"{versions}, {here['cpus']} CPUs, load {here['load']}")
    print_line(
        escape_control(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in engine.items() if value))
    )
    print_line("")
    rows: list[list[Cell]] = [[what.title, str(result), result.note, what.how] for what, result in figures]
    print_table(TITLES, rows, uncut=TITLES[:2], droppable=("HOW", "SAMPLES"))
    print_line("")
    print_line(CAVEAT)


def _numbers(figures: Figures) -> dict[str, Any]:
    return {what.name: {**result.numbers, "what": what.title, "how": what.how} for what, result in figures}
