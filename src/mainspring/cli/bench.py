"""`mainspring bench`: measures the speed of this machine and engine, without touching the user's jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import click

from mainspring.app import Mainspring
from mainspring.bench.figures import Result, machine
from mainspring.bench.pace import Pace, Stopped
from mainspring.bench.places import InFolder, Place, place_of
from mainspring.bench.suite import MEASUREMENTS, Measurement, describe, measured
from mainspring.cli.commands import Command
from mainspring.cli.options import NumberRange, app_options, json_option
from mainspring.cli.output import Cell, clean, say, show_json, show_table, write
from mainspring.cli.progress import Meter
from mainspring.cli.stopping import ALL, Stopping
from mainspring.cli.target import find_application, find_target

CAVEAT = (
    "Other programs on this machine, its disk or its servers change these figures: compare runs on a quiet one."
)

TITLES = ("WHAT", "FIGURE", "SAMPLES", "HOW")

Figures: TypeAlias = list[tuple[Measurement, Result]]


@click.command("bench", cls=Command)
@click.option(
    "--in",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Measure SQLite in this folder instead of beside your store.",
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
    """Measure the speed of this machine and engine.

    It takes about twenty seconds and uses stores of its own: your jobs are not touched.

    With SQLite the stores are in a folder beside your file. On NATS they are streams named bench-... Both are
    removed at the end. Without an application or a URL, SQLite in the working directory is measured.

    Example: mainspring bench --url sqlite:////srv/shop/shop.db

    Example: mainspring bench --in /mnt/disk --seconds 0.5 --json
    """
    place = _place(folder, app, url)
    figures: Figures = []
    with Stopping(signals=ALL) as stopping, Meter(seconds, len(MEASUREMENTS)) as meter:
        pace = Pace(seconds=seconds, jobs=jobs, tell=meter.tell, is_stopped=lambda: stopping.is_asked)
        here, engine = machine(), describe(place)
        try:
            for figure in measured(place, pace, meter.begin):
                figures.append(figure)
        except Stopped:
            say("mainspring: stopped")
    if as_json:
        document = {"machine": here, "engine": engine, "settings": {"seconds": seconds, "jobs": jobs}}
        show_json(document | {"complete": not stopping.is_asked, "figures": _numbers(figures), "caveat": CAVEAT})
    elif figures:
        _show(here, engine, figures)
    stopping.end_if_asked()


def _place(folder: Path | None, app: str | None, url: str | None) -> Place:
    if folder is not None:
        if app is not None or url is not None:
            raise click.BadParameter("--in names a place of its own; leave out --app and --url, or --in")
        return InFolder(folder.absolute(), Mainspring())
    if find_target(app, url) is None:
        return InFolder(Path.cwd(), Mainspring())
    return place_of(find_application(app, url))


def _show(here: dict[str, Any], engine: dict[str, Any], figures: Figures) -> None:
    versions = f"mainspring {here['mainspring']}, {here['python']}, {here['system']} {here['architecture']}"
    write(f"{versions}, {here['cpus']} CPUs, load {here['load']}")
    write(clean(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in engine.items() if value)))
    write("")
    rows: list[list[Cell]] = [[what.title, str(result), result.note, what.how] for what, result in figures]
    show_table(TITLES, rows, whole=TITLES[:2], spare=("HOW", "SAMPLES"))
    write("")
    write(CAVEAT)


def _numbers(figures: Figures) -> dict[str, Any]:
    return {what.name: {**result.numbers, "what": what.title, "how": what.how} for what, result in figures}
