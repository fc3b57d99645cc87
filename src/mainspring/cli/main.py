"""The commands, put together."""

from __future__ import annotations

import sys

import typer

from mainspring.cli.dlq import dlq
from mainspring.cli.events import events
from mainspring.cli.exits import EXIT_CODES, run_to_exit
from mainspring.cli.explain import explain
from mainspring.cli.jobs import jobs
from mainspring.cli.nats import nats
from mainspring.cli.options import App, Url
from mainspring.cli.queues import queues
from mainspring.cli.run import run
from mainspring.cli.schedules import schedules
from mainspring.cli.submit import submit

SUMMARY = "One scheduler for Python, from a thread pool to a cluster."

commands = typer.Typer(
    name="mainspring",
    help=SUMMARY,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
commands.command()(run)
commands.command()(submit)
commands.add_typer(jobs)
commands.add_typer(dlq)
commands.add_typer(schedules)
commands.add_typer(queues)
commands.command()(explain)
commands.command()(events)
commands.add_typer(nats)


@commands.callback()
def _mainspring(*, app: App = None, url: Url = None) -> None:
    """One scheduler for Python, from a thread pool to a cluster.

    Commands find the application, or the store, by --app or --url, else in the environment (MAINSPRING_APP,
    MAINSPRING_URL), else in pyproject.toml ([tool.mainspring]: app, url).

    Example: mainspring jobs list --app shop:app --status failed
    """


def main() -> None:
    """Run a command; what goes wrong is one line on stderr, and an exit code."""
    sys.exit(run_to_exit(commands))
