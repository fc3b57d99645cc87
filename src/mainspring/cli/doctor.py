"""`mainspring doctor`: checks the machine, the store and its content, and says what to do about problems."""

from __future__ import annotations

import logging
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from mainspring.cli.commands import Command
from mainspring.cli.exits import ExitCode
from mainspring.cli.options import app_options, json_option
from mainspring.cli.output import GAP, clean, show, show_json, write
from mainspring.cli.progress import Bar
from mainspring.cli.remedies import Terminal
from mainspring.cli.target import Target, choose, find_application, require_store
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


@click.command("doctor", cls=Command)
@click.option("--strict", is_flag=True, help="Exit with 1 also for warnings.")
@click.option(
    "--thorough", is_flag=True, help="Search the whole file for damage and count all jobs, however long it takes."
)
@click.option("--monitor", help="The monitoring address of the NATS server.", metavar="URL")
@json_option
@app_options
def doctor(
    *, strict: bool, thorough: bool, monitor: str | None, as_json: bool, app: str | None, url: str | None
) -> None:
    """Check the machine, the store, workers, jobs and schedules.

    It changes nothing. With an application it also checks the handlers and schedules of the application. With a
    URL alone it checks only the store.

    Example: mainspring doctor --app shop:app --strict
    """
    application = find_application(app, url)
    require_store(application, makes_store=True)  # a missing store is reported as a finding
    logging.getLogger("mainspring").addHandler(logging.NullHandler())  # errors are reported as findings
    terminal = Terminal(application, Target(app, url), choose(app, url))
    with Bar("checking", MOST_CHECKS) as bar:
        report = examine(
            application,
            has_handlers=terminal.chosen.app is not None,
            monitor=monitor,
            thorough=thorough,
            on_step=bar.advance,
        )
    if as_json:
        show_json(_fields(report, terminal))
    else:
        _show(report, terminal)
    limit = Severity.WARNING if strict else Severity.ERROR
    if report.worst.rank >= limit.rank:
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _fields(report: Report, terminal: Terminal) -> dict[str, Any]:
    return {
        "store": report.store,
        "worst": report.worst,
        "counts": {severity.value: report.count(severity) for severity in Severity},
        "findings": [
            {name: getattr(finding, name) for name in FIELDS} | {"commands": _commands(finding, terminal)}
            for finding in report.findings
        ],
    }


def _commands(finding: Finding, terminal: Terminal) -> list[str]:
    return [terminal.worker() if words == ("run",) else terminal.command(*words) for words in finding.commands]


def _show(report: Report, terminal: Terminal) -> None:
    """Print the findings: a line for each, then its reason and remedy, then commands, which are never wrapped."""
    names = max(len(finding.check) for finding in report.findings)
    for finding in report.findings:
        grid = Table.grid(padding=(0, len(GAP), 0, 0))
        grid.add_column(width=WIDTH, style=STYLES[finding.severity])
        grid.add_column(width=names)
        grid.add_row(finding.severity, finding.check, _paragraph(finding))
        show(grid)
        for command in _commands(finding, terminal):
            indent = " " * (WIDTH + names + 3 * len(GAP))
            show(Text(f"{indent}{clean(command)}", style="bold"), wraps=False)
    write("")
    show(_summary(report))


def _paragraph(finding: Finding) -> Text:
    text = Text(clean(finding.what), style="bold" if finding.severity.rank >= Severity.WARNING.rank else "")
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
