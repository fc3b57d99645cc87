"""The entry point of `mainspring`: the list of all commands, `--version`, and `main`."""

from __future__ import annotations

import sys
from typing import Annotated, ClassVar

import typer

from mainspring.cli.exits import EXIT_CODES, run_to_exit
from mainspring.cli.lazy_commands import OnDemand
from mainspring.cli.options import App, Url


class LazyCommands(OnDemand):
    """All commands in the order of the help, each with the first paragraph of its own help."""

    summaries: ClassVar = {
        "run": "Run jobs until SIGTERM or Ctrl+C; a second signal hands back what runs at once.",
        "healthcheck": "Exit with 0 if workers run on this machine and all of them are well; else with 1, and say "
        "why not.",
        "submit": "Submit a job, durable when its id is printed; or a file of jobs, all checked before the first "
        "is stored.",
        "jobs": "List, look at, call off, put off and repeat jobs.",
        "dlq": "Dead letters: jobs that were given up.",
        "schedules": "List, preview, pause and resume what recurs.",
        "queues": "Count, pause and resume queues.",
        "explain": "Say in plain words why a job is where it is, and what would change it.",
        "events": "Print what happens to jobs from now on, a line each; nothing is kept of what was before.",
        "doctor": "Check the machine, the store, workers, jobs and schedules; nothing is changed.",
        "migrate": "Move pending jobs, dead letters, schedules, pauses and limits from a SQLite file to NATS.",
        "nats": "NATS servers for trying out, and rights for real ones.",
        "bench": "Measure your machine and engine in about twenty seconds, on stores of its own: your jobs are "
        "not touched.",
        "demo": "Watch a shop whose unpaid orders time out, for a quarter of a minute; nothing is left behind.",
    }


commands = typer.Typer(
    name="mainspring",
    cls=LazyCommands,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _say_version(*, is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version  # noqa: PLC0415 - only --version needs it

        typer.echo(f"mainspring {version('mainspring')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Say the version, and end.",
        callback=lambda value: _say_version(is_asked=value),
        is_eager=True,
    ),
]


@commands.callback()
def _mainspring(*, app: App = None, url: Url = None, _version: Version = False) -> None:
    """One scheduler for Python, from a thread pool to a cluster.

    Which application or store is meant is said by --app or --url,
    else by MAINSPRING_APP or MAINSPRING_URL,
    else by app or url in the section tool.mainspring of pyproject.toml.

    Example: mainspring jobs list --app shop:app --status failed
    """


def main() -> None:
    """Run the command that the command line names; report an error as one line on stderr and an exit code."""
    sys.exit(run_to_exit(commands))
