"""`mainspring run`: a worker in the foreground."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Annotated

import typer

from mainspring.app import Mainspring
from mainspring.cli.exits import code_of
from mainspring.cli.logs import LogFormat, LogLevel, start_logging
from mainspring.cli.options import HEALTH, App, HealthDir, Url, to_duration
from mainspring.cli.target import choose, find_application
from mainspring.cli.voices import choose_voice
from mainspring.errors import MainspringError
from mainspring.foreground.foreground import Foreground


def run(
    reference: Annotated[
        str | None, typer.Argument(help="The application, as module:name; else --app.", metavar="MODULE:APP")
    ] = None,
    *,
    queues: Annotated[str | None, typer.Option(help="Only these queues, separated by commas.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for handlers.", min=1)] = None,
    processes: Annotated[int | None, typer.Option(help="Processes for handlers that run in one.", min=1)] = None,
    stall_after: Annotated[
        str | None,
        typer.Option(
            help="Unhealthy if work could start and nobody takes any for so long: 90s, 5m; 0 never.",
            metavar="DURATION",
            rich_help_panel=HEALTH,
        ),
    ] = None,
    health_dir: HealthDir = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Lines for people, or a JSON object in each.", rich_help_panel=HEALTH)
    ] = LogFormat.CONSOLE,
    log_level: Annotated[
        LogLevel, typer.Option(help="What is left out: everything below.", rich_help_panel=HEALTH)
    ] = LogLevel.INFO,
    app: App = None,
    url: Url = None,
) -> None:
    """Run jobs until SIGTERM or Ctrl+C; a second signal hands back what runs at once.

    Example: mainspring run shop:app --queues orders,mail --threads 16
    """
    start_logging(log_format, log_level)
    try:
        application = _find(reference, app, url)
        if queues is not None:
            application.queues = _names(queues)
        if threads is not None:
            application.threads = threads
        if processes is not None:
            application.processes = replace(application.processes, count=processes)
        if stall_after is not None:
            application.stall_after = to_duration(stall_after)
        voice = choose_voice(log_format)
        Foreground(application, environment=os.environ, health_dir=health_dir, voice=voice).run()
    except MainspringError as error:
        if log_format is not LogFormat.JSON:
            raise
        logging.getLogger("mainspring.cli").critical("%s", error)
        raise typer.Exit(code_of(error)) from error


def _find(reference: str | None, app: str | None, url: str | None) -> Mainspring:
    if reference is not None and app is not None and reference != app:
        raise typer.BadParameter(f"which application: {reference!r}, or --app {app!r}? give one of them")
    given = app if reference is None else reference
    if choose(given, url).app is None:
        raise typer.BadParameter("a worker needs handlers: give --app module:app beside the URL")
    return find_application(given, url)


def _names(queues: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in queues.split(",") if name.strip())
    if not names:
        raise typer.BadParameter(f"{queues!r} names no queue; leave --queues out to serve all")
    return names
