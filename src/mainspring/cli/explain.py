"""`mainspring explain`: says why jobs are in their state, and what would change it."""

from __future__ import annotations

import click
from rich.text import Text

from mainspring.cli.commands import Command
from mainspring.cli.documents import explanation_fields
from mainspring.cli.exits import ExitCode
from mainspring.cli.options import app_options, ids_argument, json_option
from mainspring.cli.output import clean, say, show, show_json, write
from mainspring.cli.remedies import Remedy, Terminal, remedy_for
from mainspring.cli.target import Target, choose, opened
from mainspring.errors import JobNotFound
from mainspring.jobs.explanation import Explanation


@click.command("explain", cls=Command)
@ids_argument
@json_option
@app_options
def explain(*, ids: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Explain why a job is in its state, and how to change that.

    Example: mainspring explain order-42
    """
    found: list[tuple[Explanation, Remedy]] = []
    missing: list[JobNotFound] = []
    with opened(app, url) as application:
        terminal = Terminal(application, Target(app, url), choose(app, url))
        for job_id in dict.fromkeys(ids):
            try:
                explanation = application.explain(job_id)
                found.append((explanation, remedy_for(explanation, application.get(job_id), terminal)))
            except JobNotFound as error:
                missing.append(error)
    if as_json:
        documents = [explanation_fields(explanation, remedy) for explanation, remedy in found]
        if len(ids) > 1:
            show_json(documents)
        elif documents:
            show_json(documents[0])
    for number, (explanation, remedy) in enumerate([] if as_json else found):
        if number:
            write("")
        _print(explanation, remedy)
    for each in missing:
        say(f"mainspring: {each}")
    if missing:
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _print(explanation: Explanation, remedy: Remedy) -> None:
    words = explanation.text if remedy.text is None else f"{explanation.text} {remedy.text}"
    show(Text(clean(words)))
    for command in remedy.commands:  # never wrapped, so that it can be pasted
        show(Text(f"  {clean(command)}", style="bold"), wraps=False)
