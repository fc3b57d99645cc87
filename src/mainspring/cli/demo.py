"""`mainspring demo`: simulates a shop whose unpaid orders time out, in a temporary folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from mainspring.cli.exits import ExitCode, ReaderGone
from mainspring.cli.options import AsJson
from mainspring.cli.output import show_json
from mainspring.cli.stopping import end_tidily
from mainspring.demo.screen import Screen
from mainspring.demo.story import FULL, QUICK, play


class DemoStage(Console):
    """A console that raises `ReaderGone` when its output is closed, as all commands do."""

    def on_broken_pipe(self) -> NoReturn:
        raise ReaderGone


def demo(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A few hundred orders instead of thousands.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a shop whose unpaid orders time out, for a quarter of a minute; nothing is left behind.

    At the end the shop's own books must add up; if not, the exit code is 1.

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
        raise typer.Exit(ExitCode.REFUSED)
