"""`mainspring schedules`: what recurs, when next, and a pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from mainspring.app import Mainspring
from mainspring.cli.documents import rule_text, schedule_fields
from mainspring.cli.exits import ExitCode
from mainspring.cli.options import App, AsJson, Url
from mainspring.cli.output import Cell, at, clean, say, show_json, show_table, write
from mainspring.cli.preview import full_name, preview
from mainspring.cli.target import opened
from mainspring.cli.wording import in_words
from mainspring.errors import ScheduleNotFound
from mainspring.jobs.recurrence.schedule_info import ScheduleInfo

Names = Annotated[list[str], typer.Argument(help="The names of schedules.", metavar="NAME")]

schedules = typer.Typer(
    name="schedules", help="List, preview, pause and resume what recurs.", no_args_is_help=True
)
schedules.command()(preview)


@schedules.command("list")
def list_schedules(*, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """List the stored schedules; those that are declared in code are stored when a worker starts.

    Example: mainspring schedules list
    """
    with opened(app, url) as application:
        found = application.schedules.list()
    if as_json:
        show_json({"schedules": [schedule_fields(schedule) for schedule in found]})
    elif found:
        show_table(
            ("NAME", "NEXT (UTC)", "RULE", "QUEUE", "HANDLER", "LAST (UTC)"),
            map(_row, found),
            whole=("NAME", "NEXT (UTC)"),
            spare=("HANDLER", "LAST (UTC)", "QUEUE"),
        )
    else:
        say("no schedules; those that are declared in code are stored when a worker starts")


def _row(schedule: ScheduleInfo) -> list[Cell]:
    due = Text("paused", style="yellow") if schedule.is_paused else at(schedule.next_due)
    rule = rule_text(schedule.rule)
    return [schedule.name, due, rule, schedule.queue, schedule.type, at(schedule.last_due)]


@schedules.command("pause")
def pause_schedules(names: Names, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Let schedules rest; jobs that they have made are not touched.

    Example: mainspring schedules pause nightly_report
    """
    with opened(app, url) as application:
        outcomes = _each(application, names, application.schedules.pause)
    _report(outcomes, "paused", as_json=as_json)


@schedules.command("resume")
def resume_schedules(names: Names, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Let schedules go on with their first occurrence from now on.

    Example: mainspring schedules resume nightly_report
    """
    with opened(app, url) as application:
        outcomes = _each(application, names, application.schedules.resume)
    _report(outcomes, "resumed", as_json=as_json)


def _each(
    application: Mainspring, names: list[str], change: Callable[[str], bool]
) -> dict[str, bool | ScheduleNotFound]:
    outcomes: dict[str, bool | ScheduleNotFound] = {}
    for name in names:
        try:
            outcomes[name] = change(full_name(application, name))
        except ScheduleNotFound as error:
            outcomes[name] = error
    return outcomes


def _report(outcomes: dict[str, bool | ScheduleNotFound], how: str, *, as_json: bool) -> None:
    if as_json:
        show_json(
            [
                {
                    "name": name,
                    "changed": outcome is True,
                    "outcome": how if isinstance(outcome, bool) else in_words(outcome),
                }
                for name, outcome in outcomes.items()
            ]
        )
    else:
        for name, outcome in outcomes.items():
            if isinstance(outcome, ScheduleNotFound):
                say(f"mainspring: {in_words(outcome)}")
            else:
                write(f"{clean(name)} {how}" if outcome else f"{clean(name)} was {how} already")
    if any(isinstance(outcome, ScheduleNotFound) for outcome in outcomes.values()):
        raise typer.Exit(ExitCode.REFUSED)
