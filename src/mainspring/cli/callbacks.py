"""`mainspring callbacks`: lists the paused receivers of callbacks, and lifts their pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import Argument, CommandGroup, Option
from mainspring.cli.json_fields import pause_fields
from mainspring.cli.options import app_options, json_option
from mainspring.cli.output import (
    Cell,
    escape_control,
    format_distance,
    print_json,
    print_line,
    print_message,
    print_table,
)
from mainspring.plurals import format_count

if TYPE_CHECKING:
    from mainspring.jobs.paused_receivers import CallbackPause

callbacks = CommandGroup("callbacks", help="List paused receivers of callbacks, and lift their pauses.")


@callbacks.command("pauses")
@json_option
@app_options
def list_pauses(*, as_json: bool, app: str | None, url: str | None) -> None:
    """List the receivers that get no requests for a while, because they answered 429 or 503.

    A pause concerns a job type at a host, one URL of jobs that name their URL, or the whole host. After its end,
    one request is sent as a probe; the list has the receiver until that has succeeded.

    Example: mainspring callbacks pauses
    """
    with open_app(app, url) as application:
        found = application.callback_pauses()
        now = application.manager().engine.now()
    if as_json:
        print_json({"pauses": [pause_fields(pause) for pause in found]})
    elif found:
        print_table(
            ("HOST", "TYPE", "URL", "ANSWER", "PAUSED", "ENDS", "COUNT"),
            [_row(pause, now) for pause in found],
            uncut=("ENDS", "ANSWER"),
            droppable=("COUNT", "PAUSED", "URL"),
            right_aligned=("COUNT",),
        )
    else:
        print_message("no receiver is paused")


def _row(pause: CallbackPause, now: int) -> list[Cell]:
    return [
        pause.host,
        "all" if pause.type is None else pause.type,
        "-" if pause.url is None else pause.url,
        "none" if pause.status is None else str(pause.status),
        format_distance(pause.since, now, in_short=True),
        "probing" if pause.is_probing else format_distance(pause.until, now, in_short=True),
        str(pause.count),
    ]


@callbacks.command("resume")
@click.argument("host", cls=Argument, metavar="HOST", help="The host, as the list of pauses has it.")
@click.option(
    "--type", "type_", cls=Option, metavar="TYPE", help="Lift only the pauses of this job type, and of the host."
)
@json_option
@app_options
def resume_callbacks(*, host: str, type_: str | None, as_json: bool, app: str | None, url: str | None) -> None:
    """Lift the pauses of a host: its jobs that were put off are due at once.

    Example: mainspring callbacks resume hooks.example.com
    """
    with open_app(app, url) as application:
        lifted = application.resume_callbacks(host, type=type_)
    if as_json:
        print_json({"host": host, "lifted": lifted})
    elif lifted:
        print_line(f"{escape_control(host)} gets requests again; {format_count(lifted, 'pause')} lifted")
    else:
        print_line(f"{escape_control(host)} was not paused; mainspring callbacks pauses shows all pauses")
