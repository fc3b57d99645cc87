"""`mainspring demo`: simulates a shop whose unpaid orders time out, in a temporary folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import NoReturn

import click
from rich.console import Console

from mainspring.cli.commands import Command
from mainspring.cli.exits import ExitCode, ReaderGone
from mainspring.cli.options import json_option
from mainspring.cli.output import show_json
from mainspring.cli.stopping import end_tidily
from mainspring.demo.screen import Screen
from mainspring.demo.story import FULL, QUICK, play


class DemoStage(Console):
    """A console that raises `ReaderGone` when its output is closed, as all commands do."""

    def on_broken_pipe(self) -> NoReturn:
        raise ReaderGone


@click.command("demo", cls=Command)
@click.option("--quick", is_flag=True, help="Simulate a few hundred orders instead of thousands.")
@json_option
def demo(*, quick: bool, as_json: bool) -> None:
    """Run a demonstration: a shop whose unpaid orders time out.

    It takes about fifteen seconds, in a temporary folder. At the end it checks the books of the shop; if an order
    was lost, the exit code is 1.

    Example: mainspring demo --quick
    """
    end_tidily()
    plan = QUICK if quick else FULL
    screen = Screen(plan.orders, DemoStage(highlight=False, stderr=as_json))
    figures = play(plan, screen)
    screen.close(figures)
    if as_json:
        show_json({**asdict(figures), "complaints": figures.complaints})
    if figures.complaints:
        raise click.exceptions.Exit(ExitCode.REFUSED)
