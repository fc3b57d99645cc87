"""`mainspring run`: runs a worker in the foreground.

It prints a banner on a terminal, plain lines in a pipe, or JSON for log collectors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mainspring.app import Mainspring
from mainspring.cli.exits import code_of
from mainspring.cli.logs import LogFormat, LogLevel, start_logging
from mainspring.cli.options import HEALTH, App, HealthDir, Url, to_duration
from mainspring.cli.output import clean, is_terminal, show
from mainspring.cli.target import choose, find_application
from mainspring.errors import MainspringError
from mainspring.foreground.foreground import Foreground
from mainspring.foreground.greeting import (
    MOST_SCHEDULES,
    STOPPING,
    Greeting,
    PlainVoice,
    ScheduledNext,
    Voice,
    next_of,
)

MOST_HANDLERS = 20  # listed in the banner

logger = logging.getLogger("mainspring.worker")


def choose_voice(chosen: LogFormat) -> Voice:
    """Return the voice for the log format, and for a terminal or a pipe."""
    if chosen is LogFormat.JSON:
        return JsonVoice()
    return TerminalVoice() if is_terminal() else PlainVoice()


class TerminalVoice:
    """Prints a banner and coloured messages on a terminal."""

    def greet(self, greeting: Greeting) -> None:
        title = Text.assemble(
            ("Mainspring", "bold cyan"), f" {greeting.version}", (f"  pid {greeting.pid}", "dim")
        )
        facts = _facts()
        facts.add_row("  jobs from", Text(clean(greeting.engine)))
        handlers = [Text.assemble(clean(name), (f"  {clean(queue)}", "dim")) for name, queue in greeting.handlers]
        _add_list(facts, "  handlers", handlers, MOST_HANDLERS)
        facts.add_row("  queues", Text("all" if greeting.queues is None else clean(", ".join(greeting.queues))))
        facts.add_row("  places", greeting.places)
        show(Group(title, facts))

    def tell_ready(self, threads: int, schedules: Sequence[ScheduledNext]) -> None:
        facts = _facts()
        if schedules:
            each = [Text.assemble(clean(one.name), (f"  next {next_of(one)}", "dim")) for one in schedules]
            _add_list(facts, "  schedules", each, MOST_SCHEDULES)
        ready = Text.assemble(
            ("  ready", "bold green"), f": {threads} threads at work; stop with Ctrl+C or SIGTERM"
        )
        show(Group(facts, ready) if schedules else ready)

    def tell_stopping(self) -> None:
        show(Text(STOPPING, style="yellow"))

    def tell_stopped(self) -> None:
        show(Text("stopped"))


def _facts() -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    return facts


def _add_list(facts: Table, title: str, texts: Sequence[Text], most: int) -> None:
    more = [Text(f"and {len(texts) - most} more", style="dim")] if len(texts) > most else []
    lines = [*texts[:most], *more] or [Text("none", style="yellow")]
    for place, line in enumerate(lines):
        facts.add_row(title if place == 0 else "", line)


class JsonVoice:
    """Writes the messages as JSON log records, with the facts as fields."""

    def greet(self, greeting: Greeting) -> None:
        self._tell(
            "starting",
            f"Mainspring runs jobs from {greeting.engine}",
            engine=greeting.engine,
            version=greeting.version,
            pid=greeting.pid,
            handlers=[{"name": name, "queue": queue} for name, queue in greeting.handlers],
            queues=greeting.queues,
            threads=greeting.threads,
            coroutines=greeting.coroutines,
            processes=greeting.processes,
        )

    def tell_ready(self, threads: int, schedules: Sequence[ScheduledNext]) -> None:
        dates = [{"name": each.name, "next": _date(each)} for each in schedules]
        self._tell("ready", f"{threads} threads at work", schedules=dates)

    def tell_stopping(self) -> None:
        self._tell("stopping", STOPPING)

    def tell_stopped(self) -> None:
        self._tell("stopped", "stopped")

    def _tell(self, event: str, message: str, **facts: Any) -> None:
        logger.info("%s", message, extra={"facts": {"event": event} | facts})


def _date(schedule: ScheduledNext) -> str | None:
    return None if schedule.next_due is None else schedule.next_due.astimezone(UTC).isoformat()


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
            help="Unhealthy if jobs could start and no worker claims any for so long: 90s, 5m; 0 never.",
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
