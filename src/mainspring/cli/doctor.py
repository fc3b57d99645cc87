"""`mainspring doctor`: checks the machine, the store and its content, and says what to do about problems."""

from __future__ import annotations

import logging
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from mainspring.cli.app_selection import AppSelection, load_application, require_selection, require_store
from mainspring.cli.commands import Command
from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.options import app_options, json_option
from mainspring.cli.output import GAP, escape_control, print_json, print_line, print_rich
from mainspring.cli.progress import ProgressBar
from mainspring.cli.suggestions import CommandWriter
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
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too, not only for errors.")
@click.option(
    "--thorough", is_flag=True, help="Search the whole file for damage and count all jobs, however long it takes."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Warn if fewer than this number of workers run.",
    metavar="N",
)
@click.option(
    "--monitor", help="The monitoring address of the NATS server, such as http://127.0.0.1:8222.", metavar="URL"
)
@json_option
@app_options
def doctor(
    *,
    strict: bool,
    thorough: bool,
    workers: int | None,
    monitor: str | None,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Check the machine, the store, workers, jobs and schedules.

    It changes nothing. With an application it also checks the handlers and schedules of the application. With a
    URL alone it checks only the store.

    Example: mainspring doctor --app shop:app --strict
    """
    application = load_application(app, url)
    require_store(application, creates_store=True)  # a missing store is shown as a finding
    logging.getLogger("mainspring").addHandler(logging.NullHandler())  # errors are shown as findings
    writer = CommandWriter(application, AppSelection(app, url), require_selection(app, url))
    with ProgressBar("checking", MOST_CHECKS) as bar:
        report = examine(
            application,
            has_handlers=writer.chosen.app is not None,
            monitor=monitor,
            thorough=thorough,
            workers=workers or 0,
            on_step=bar.advance,
        )
    if as_json:
        print_json(_fields(report, writer))
    else:
        _show(report, writer)
    limit = Severity.WARNING if strict else Severity.ERROR
    if report.worst.rank >= limit.rank:
        raise click.exceptions.Exit(ExitCode.FAILURE)


def _fields(report: Report, writer: CommandWriter) -> dict[str, Any]:
    return {
        "store": report.store,
        "worst": report.worst,
        "counts": {severity.value: report.count(severity) for severity in Severity},
        "findings": [
            {name: getattr(finding, name) for name in FIELDS} | {"commands": _commands(finding, writer)}
            for finding in report.findings
        ],
    }


def _commands(finding: Finding, writer: CommandWriter) -> list[str]:
    return [
        writer.run_command(*words[1:]) if words[0] == "run" else writer.command(*words)
        for words in finding.commands
    ]


def _show(report: Report, writer: CommandWriter) -> None:
    """Print each finding with its reason, its remedy and its commands, which are never wrapped; then a summary."""
    names = max(len(finding.check) for finding in report.findings)
    for finding in report.findings:
        grid = Table.grid(padding=(0, len(GAP), 0, 0))
        grid.add_column(width=WIDTH, style=STYLES[finding.severity])
        grid.add_column(width=names)
        grid.add_row(finding.severity, finding.check, _paragraph(finding))
        print_rich(grid)
        for command in _commands(finding, writer):
            indent = " " * (WIDTH + names + 3 * len(GAP))
            print_rich(Text(f"{indent}{escape_control(command)}", style="bold"), wraps=False)
    print_line("")
    print_rich(_summary(report))


def _paragraph(finding: Finding) -> Text:
    text = Text(
        escape_control(finding.what), style="bold" if finding.severity.rank >= Severity.WARNING.rank else ""
    )
    if finding.reason:
        text.append(f"\n{escape_control(finding.reason)}", style="not bold")
    if finding.remedy:
        text.append(f"\n-> {escape_control(finding.remedy)}", style="not bold cyan")
    return text


def _summary(report: Report) -> Text:
    parts = [
        Text(f"{number} {NAMES[severity][number != 1]}", style=STYLES[severity])
        for severity in reversed(Severity)
        if (number := report.count(severity))
    ]
    return Text(f"{report.store}: ").append(Text(", ").join(parts))
