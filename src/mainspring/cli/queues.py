"""`mainspring queues`: how many jobs each has, and whether it is paused."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from mainspring.app import Mainspring
from mainspring.cli.documents import queue_fields
from mainspring.cli.options import App, AsJson, Url
from mainspring.cli.output import Cell, clean, say, show_json, show_table, write
from mainspring.cli.target import opened
from mainspring.jobs.queues import QueueStatistics
from mainspring.jobs.status import JobStatus

LOOK = 1_000  # jobs of each state in which queues are looked for that no handler names
STATES = ("pending", "running", "completed", "failed", "canceled")

Names = Annotated[list[str], typer.Argument(help="The names of queues.", metavar="NAME...")]

queues = typer.Typer(name="queues", help="Count, pause and resume queues.", no_args_is_help=True)


@queues.command("list")
def list_queues(
    names: Annotated[list[str] | None, typer.Argument(help="Only these.", metavar="[NAME...]")] = None,
    *,
    as_json: AsJson = False,
    app: App = None,
    url: Url = None,
) -> None:
    """Count the jobs of queues: those of handlers, schedules, pauses, and of the first 1,000 jobs of each state.

    Example: mainspring queues list
    """
    with opened(app, url) as application:
        found = [application.queue(name).statistics() for name in names or _find(application)]
    if as_json:
        show_json({"queues": [queue_fields(queue) for queue in found]})
    elif found:
        show_table(
            ("QUEUE", "PAUSED", *map(str.upper, STATES)),
            map(_row, found),
            whole=("PAUSED",),
            spare=("CANCELED", "COMPLETED"),
        )
    else:
        say("no queues")


def _row(queue: QueueStatistics) -> list[Cell]:
    paused = Text("paused", style="yellow") if queue.is_paused else Text("-")
    return [queue.name, paused, *(f"{getattr(queue, state):,}" for state in STATES)]


def _find(application: Mainspring) -> list[str]:
    names = {handler.options.queue for handler in application.registry.all()}
    names.update(schedule.queue for schedule in application.schedules.list())
    names.update(application.manager().engine.paused_queues())
    for status in JobStatus:
        names.update(job.queue for job in application.jobs(status=status, limit=LOOK))
    return sorted(names)


@queues.command("pause")
def pause_queues(names: Names, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Let no more jobs of queues start, on all workers; what runs goes on.

    Example: mainspring queues pause mail
    """
    with opened(app, url) as application:
        changed = {name: application.queue(name).pause() for name in names}
    _report(changed, "paused", as_json=as_json)


@queues.command("resume")
def resume_queues(names: Names, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Let jobs of queues start again.

    Example: mainspring queues resume mail
    """
    with opened(app, url) as application:
        changed = {name: application.queue(name).resume() for name in names}
    _report(changed, "resumed", as_json=as_json)


def _report(changed: dict[str, bool], how: str, *, as_json: bool) -> None:
    """Say what is so now; what was so before is no error."""
    if as_json:
        show_json([{"name": name, "changed": is_changed, "outcome": how} for name, is_changed in changed.items()])
        return
    for name, is_changed in changed.items():
        write(f"{clean(name)} {how}" if is_changed else f"{clean(name)} was {how} already")
