"""`mainspring events`: prints the events of jobs as they happen, from all processes that use the store."""

from __future__ import annotations

from datetime import timedelta

import click
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import Command
from mainspring.cli.deferred_signals import DeferredSignals
from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.job_filters import report_unknown_names
from mainspring.cli.json_fields import event_fields
from mainspring.cli.options import NumberRange, app_options, json_option, parse_duration, queue_option, type_option
from mainspring.cli.output import (
    GAP,
    StdoutWatch,
    escape_control,
    format_time,
    is_terminal,
    print_json_line,
    print_line,
    print_message,
    print_rich,
)
from mainspring.jobs.event_stream import JobEvent
from mainspring.jobs.events import EventKind

_STYLES = {
    EventKind.COMPLETED: "green",
    EventKind.FAILED: "red",
    EventKind.RETRIED: "yellow",
    EventKind.RESCUED: "yellow",
    EventKind.CANCELED: "dim",
}
DEFAULT_FOR = timedelta(seconds=5)
TIME = len("12:00:00")


@click.command("events", cls=Command)
@click.option("--follow", "-f", is_flag=True, help="Listen until Ctrl+C.")
@click.option(
    "--for",
    "duration",
    type=parse_duration,
    show_default="5s",
    help="Listen for this long; ignored with --follow.",
    metavar="DURATION",
)
@click.option(
    "--count",
    type=NumberRange(1),
    help="Stop after this many events; exit with 1 if there were fewer.",
    metavar="NUMBER",
)
@click.option("--id", "job_id", help="Only events of this job.", metavar="ID")
@queue_option
@type_option
@json_option
@app_options
def events(
    *,
    follow: bool,
    duration: timedelta | None,
    count: int | None,
    job_id: str | None,
    queue: str | None,
    type: str | None,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Print the events of jobs as they happen.

    Each event is one line. Events from before the command are not printed.

    Example: mainspring events --follow --queue orders --json
    """
    printed = 0
    with open_app(app, url) as application:
        limit = None if follow else duration or DEFAULT_FOR
        stream = application.events(timeout=limit)
        full_type = None if type is None else application.registry.full_name(type)
        wanted = {"job_id": job_id, "queue": queue, "type": full_type}
        with DeferredSignals(on_request=stream.stop) as signals, StdoutWatch(on_closed=stream.stop) as reader:
            print_message(
                "listening" + (", stop with Ctrl+C" if limit is None else f" for {limit.total_seconds():g} s")
            )
            report_unknown_names(application, queue=queue, type=type)
            for event in stream:
                if any(value is not None and getattr(event, name) != value for name, value in wanted.items()):
                    continue
                print_event(event, as_json=as_json)
                printed += 1
                if printed == count:
                    return
        signals.exit_if_requested()
        reader.exit_if_closed()
    if count is not None:
        raise click.exceptions.Exit(ExitCode.FAILURE)


def print_event(event: JobEvent, *, as_json: bool) -> None:
    """Print an event as one line of JSON, or as text with the first line of its text (`note`), such as an error.

    Text is one line. On a terminal, a note that does not fit is printed on a second line, and lines are cut to the
    width.
    """
    if as_json:
        print_json_line(event_fields(event))
        return
    note = "" if event.note is None else escape_control(event.note.partition("\n")[0])
    about = escape_control(f"{event.job_id}  {event.type}  {event.queue}")
    if not is_terminal():
        print_line(f"{format_time(event.at)}  {event.kind:<12}  {about}  {note}".rstrip())
        return
    line = Text(f"{format_time(event.at)[-TIME:]}  ")  # without the date, which the user knows
    line.append(f"{event.kind:<12}  ", style=_STYLES.get(event.kind, ""))
    line.append(about)
    beside = cell_len(line.plain) + len(GAP) + cell_len(note) <= Console().width
    if note and beside:
        line.append(f"{GAP}{note}")
    print_rich(line, crops=True)
    if note and not beside:
        print_rich(Text(f"{' ' * (TIME + len(GAP))}{note}"), crops=True)
