"""`mainspring explain`: why a job is where it is, and what would change it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from mainspring.cli.documents import explanation_fields
from mainspring.cli.options import App, AsJson, Url
from mainspring.cli.output import clean, show, show_json
from mainspring.cli.target import opened
from mainspring.jobs.explaining import Explanation, Reason
from mainspring.jobs.info import JobInfo

_OTHERS = (Reason.BEHIND, Reason.LIMIT_REACHED, Reason.UNIQUE_BLOCKED)


def explain(
    job_id: Annotated[str, typer.Argument(help="The id of a job.", metavar="ID")],
    *,
    as_json: AsJson = False,
    app: App = None,
    url: Url = None,
) -> None:
    """Say in plain words why a job is where it is, and what would change it.

    Example: mainspring explain order-42
    """
    with opened(app, url) as application:
        explanation = application.explain(job_id)
        commands = commands_for(explanation, application.get(job_id))
    if as_json:
        show_json(explanation_fields(explanation, commands))
        return
    paragraph = Text(clean(str(explanation)))
    for command in commands:
        paragraph.append("\n  ")
        paragraph.append(command, style="bold")
    show(paragraph)


def commands_for(explanation: Explanation, job: JobInfo) -> list[str]:
    """Return the commands that would change something, or tell more."""
    if explanation.reason in _OTHERS or job.replayed_as is not None:
        return [f"mainspring explain {shlex.quote(other)}" for other in explanation.blocked_by]
    make = _COMMANDS.get(explanation.reason)
    return [] if make is None else make(job)


def _retry(job: JobInfo) -> list[str]:
    return [f"mainspring jobs retry {shlex.quote(job.id)}", f"mainspring dlq replay {shlex.quote(job.id)}"]


_COMMANDS: dict[Reason, Callable[[JobInfo], list[str]]] = {
    Reason.PAUSED: lambda job: [f"mainspring queues resume {shlex.quote(job.queue)}"],
    Reason.NO_WORKER: lambda _job: ["mainspring run module:app"],
    Reason.FAILED: _retry,
    Reason.EXPIRED: _retry,
    Reason.QUARANTINED: _retry,
}
