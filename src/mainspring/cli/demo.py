"""`mainspring demo`: simulates a shop whose unpaid orders time out, in a temporary folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import NoReturn

import click
from rich.console import Console

from mainspring.cli.commands import Command
from mainspring.cli.deferred_signals import ALL_SIGNALS, DeferredSignals
from mainspring.cli.exit_codes import ExitCode, OutputClosed
from mainspring.cli.options import json_option
from mainspring.cli.output import print_json
from mainspring.demo.scenario import FULL, QUICK, run_demo
from mainspring.demo.screen import Screen


class DemoConsole(Console):
    """A console that raises `OutputClosed` if the reader has closed the output, as other commands do."""

    def on_broken_pipe(self) -> NoReturn:
        raise OutputClosed


@click.command("demo", cls=Command)
@click.option("--quick", is_flag=True, help="Simulate a few hundred orders instead of thousands.")
@json_option
def demo(*, quick: bool, as_json: bool) -> None:
    """Run a demonstration: a shop whose unpaid orders time out.

    It takes about fifteen seconds, in a temporary folder. At the end it checks the journal of the shop; if it
    finds a mistake, such as a lost order, the exit code is 1.

    Example: mainspring demo --quick
    """
    plan = QUICK if quick else FULL
    screen = Screen(plan.orders, DemoConsole(highlight=False, stderr=as_json))
    with DeferredSignals(signals=ALL_SIGNALS) as signals:
        figures = run_demo(plan, screen, signals.exit_if_requested)
    signals.exit_if_requested()
    screen.close(figures)
    if as_json:
        print_json({**asdict(figures), "complaints": figures.complaints})
    if figures.complaints:
        raise click.exceptions.Exit(ExitCode.FAILURE)
