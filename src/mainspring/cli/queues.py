"""`mainspring queues`: counts the jobs of each queue, and pauses and resumes queues."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from mainspring.cli.documents import queue_fields
from mainspring.cli.options import App, AsJson, Url
from mainspring.cli.output import Cell, clean, say, show_json, show_table, write
from mainspring.cli.target import opened
from mainspring.jobs.queues import QueueStatistics, count_queues

STATES = ("pending", "running", "completed", "failed", "canceled")

Names = Annotated[list[str], typer.Argument(help="The names of queues.", metavar="NAME")]

queues = typer.Typer(name="queues", help="Count, pause and resume queues.", no_args_is_help=True)


@queues.command("list")
def list_queues(
    names: Annotated[list[str] | None, typer.Argument(help="Only these.", metavar="NAME")] = None,
    *,
    as_json: AsJson = False,
    app: App = None,
    url: Url = None,
) -> None:
    """Count the jobs of queues by state: all queues of jobs, handlers and schedules, and those that are paused.

    FAILED are the dead letters that were not replayed, as in `mainspring dlq list`.

    Example: mainspring queues list
    """
    with opened(app, url) as application:
        chosen = [application.queue(name) for name in names] if names else application.all_queues()
        found = count_queues(application.manager(), [queue.name for queue in chosen])
    if as_json:
        show_json({"queues": [queue_fields(queue) for queue in found]})
    elif found:
        show_table(
            ("QUEUE", "PAUSED", *map(str.upper, STATES)),
            map(_row, found),
            whole=("PAUSED",),
            spare=("CANCELED", "COMPLETED"),
            numbers=tuple(map(str.upper, STATES)),
        )
    else:
        say("no queues")


def _row(queue: QueueStatistics) -> list[Cell]:
    paused = Text("paused", style="yellow") if queue.is_paused else Text("-")
    return [queue.name, paused, *(f"{getattr(queue, state):,}" for state in STATES)]


@queues.command("pause")
def pause_queues(names: Names, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Let no more jobs of queues start, on all workers; what runs goes on.

    Example: mainspring queues pause mail
    """
    with opened(app, url) as application:
        known = {queue.name for queue in application.all_queues()}
        changed = {name: application.queue(name).pause() for name in names}
    _report(changed, "paused", as_json=as_json)
    for name in changed.keys() - known:
        say(f"mainspring: nothing is known of a queue {name!r} yet; mainspring queues list shows the others")


@queues.command("resume")
def resume_queues(names: Names, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Let jobs of queues start again.

    Example: mainspring queues resume mail
    """
    with opened(app, url) as application:
        changed = {name: application.queue(name).resume() for name in names}
    _report(changed, "resumed", as_json=as_json)


def _report(changed: dict[str, bool], how: str, *, as_json: bool) -> None:
    """Print the new state of each queue; a queue that already had it is no error."""
    if as_json:
        show_json([{"name": name, "changed": is_changed, "outcome": how} for name, is_changed in changed.items()])
        return
    for name, is_changed in changed.items():
        write(f"{clean(name)} {how}" if is_changed else f"{clean(name)} was {how} already")
