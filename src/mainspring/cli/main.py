"""The commands, put together."""

from __future__ import annotations

import sys

import typer

from mainspring.cli.nats import nats
from mainspring.cli.run import run
from mainspring.errors import MainspringError

commands = typer.Typer(
    name="mainspring",
    help="One scheduler for Python, from a thread pool to a cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
commands.command()(run)
commands.add_typer(nats)


@commands.callback()
def _mainspring() -> None:
    """One scheduler for Python, from a thread pool to a cluster."""


def main() -> None:
    """Run a command; an error of ours is one line on stderr and exit code 1."""
    try:
        commands()
    except MainspringError as error:
        sys.stderr.write(f"mainspring: {error}\n")
        sys.exit(1)
