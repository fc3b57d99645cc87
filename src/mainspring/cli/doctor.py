"""`mainspring doctor`: is the machine, the store and what is in it in order, and if not, what to do."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mainspring.cli.exits import ExitCode
from mainspring.cli.options import App, AsJson, Url
from mainspring.cli.output import GAP, clean, is_terminal, show, show_json, write
from mainspring.cli.progress import Bar
from mainspring.cli.target import choose, find_application, require_store
from mainspring.doctor import Finding, Report, Severity, examine
from mainspring.doctor.examination import MOST_CHECKS

STYLES = {Severity.OK: "green", Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}
NAMES = {
    Severity.ERROR: ("error", "errors"),
    Severity.WARNING: ("warning", "warnings"),
    Severity.INFO: ("note", "notes"),
    Severity.OK: ("check in order", "checks in order"),
}
FIELDS = ("check", "severity", "what", "reason", "remedy")
WIDTH = max(map(len, Severity))


def doctor(
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings count as errors.")] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Look for damage and count jobs, however long it takes.")
    ] = False,
    monitor: Annotated[
        str | None,
        typer.Option("--monitor", help="The monitoring address of the NATS server.", metavar="URL"),
    ] = None,
    as_json: AsJson = False,
    app: App = None,
    url: Url = None,
) -> None:
    """Check the machine, the store, workers, jobs and schedules; nothing is changed.

    With an application its handlers and schedules are checked, too; with a URL alone, what is in the store.

    Example: mainspring doctor --app shop:app --strict
    """
    application = find_application(app, url)
    require_store(application, makes_store=True)  # if there is none, that is a finding
    logging.getLogger("mainspring").addHandler(logging.NullHandler())  # what goes wrong is a finding
    with Bar("checking", MOST_CHECKS) as bar:
        report = examine(
            application,
            has_handlers=choose(app, url).app is not None,
            monitor=monitor,
            thorough=thorough,
            on_step=bar.advance,
        )
    if as_json:
        show_json(_fields(report))
    else:
        _show(report)
    limit = Severity.WARNING if strict else Severity.ERROR
    if report.worst.rank >= limit.rank:
        raise typer.Exit(ExitCode.REFUSED)


def _fields(report: Report) -> dict[str, Any]:
    return {
        "store": report.store,
        "worst": report.worst,
        "counts": {severity.value: report.count(severity) for severity in Severity},
        "findings": [{name: getattr(finding, name) for name in FIELDS} for finding in report.findings],
    }


def _show(report: Report) -> None:
    """Write a line for what is in order, and a paragraph with reason and remedy for the rest."""
    if is_terminal():
        grid = Table.grid(padding=(0, len(GAP)))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        for finding in report.findings:
            grid.add_row(
                Text(finding.severity, style=STYLES[finding.severity]), finding.check, _paragraph(finding)
            )
        show(Group(grid, Text(), _summary(report)))
        return
    names = max(len(finding.check) for finding in report.findings)
    indent = "\n" + " " * (WIDTH + names + 2 * len(GAP))
    for finding in report.findings:
        paragraph = _paragraph(finding).plain.replace("\n", indent)
        write(f"{finding.severity:<{WIDTH}}{GAP}{finding.check:<{names}}{GAP}{paragraph}")
    write(f"\n{_summary(report).plain}")


def _paragraph(finding: Finding) -> Text:
    is_problem = finding.severity.rank >= Severity.WARNING.rank
    text = Text(clean(finding.what), style="bold" if is_problem else "")
    if finding.reason:
        text.append(f"\n{clean(finding.reason)}", style="not bold")
    if finding.remedy:
        text.append(f"\n-> {clean(finding.remedy)}", style="not bold cyan")
    return text


def _summary(report: Report) -> Text:
    parts = [
        Text(f"{number} {NAMES[severity][number != 1]}", style=STYLES[severity])
        for severity in reversed(Severity)
        if (number := report.count(severity))
    ]
    return Text(f"{report.store}: ").append(Text(", ").join(parts))
