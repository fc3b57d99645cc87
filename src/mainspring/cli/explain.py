"""`mainspring explain`: says why jobs have their status, and what would change it."""

from __future__ import annotations

import click
from rich.text import Text

from mainspring.cli.app_selection import AppSelection, open_app, require_selection
from mainspring.cli.commands import Command
from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.json_fields import explanation_fields
from mainspring.cli.options import app_options, ids_argument, json_option
from mainspring.cli.output import escape_control, print_json, print_line, print_message, print_rich
from mainspring.cli.suggestions import CommandWriter, Suggestion, suggest
from mainspring.errors import JobNotFound
from mainspring.jobs.explanation import Explanation


@click.command("explain", cls=Command)
@ids_argument
@json_option
@app_options
def explain(*, ids: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Explain why jobs have their status, and what would change it.

    Example: mainspring explain order-42
    """
    found: list[tuple[Explanation, Suggestion]] = []
    missing: list[JobNotFound] = []
    with open_app(app, url) as application:
        writer = CommandWriter(application, AppSelection(app, url), require_selection(app, url))
        for job_id in dict.fromkeys(ids):
            try:
                explanation = application.explain(job_id)
                found.append((explanation, suggest(explanation, application.get(job_id), writer)))
            except JobNotFound as error:
                missing.append(error)
    if as_json:
        documents = [explanation_fields(explanation, suggestion) for explanation, suggestion in found]
        if len(ids) > 1:
            print_json(documents)
        elif documents:
            print_json(documents[0])
    for number, (explanation, suggestion) in enumerate([] if as_json else found):
        if number:
            print_line("")
        _print(explanation, suggestion)
    for each in missing:
        print_message(f"mainspring: {each}")
    if missing:
        raise click.exceptions.Exit(ExitCode.FAILURE)


def _print(explanation: Explanation, suggestion: Suggestion) -> None:
    words = explanation.text if suggestion.text is None else f"{explanation.text} {suggestion.text}"
    print_rich(Text(escape_control(words)))
    for command in suggestion.commands:  # never wrapped, so that the user can paste it
        print_rich(Text(f"  {escape_control(command)}", style="bold"), wraps=False)
