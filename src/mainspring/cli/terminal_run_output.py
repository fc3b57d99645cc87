"""The output of `mainspring run` on a terminal: a banner and colored messages."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mainspring.cli.output import escape_control, print_rich
from mainspring.foreground.run_output import (
    MAX_SCHEDULES,
    STOPPING,
    Banner,
    HttpNotice,
    NextFiring,
    next_date_of,
)
from mainspring.plurals import format_count

MOST_HANDLERS = 20  # how many handlers the banner lists at most


class TerminalRunOutput:
    """Prints a banner and colored messages on a terminal."""

    def show_banner(self, banner: Banner) -> None:
        title = Text.assemble(("Mainspring", "bold cyan"), f" {banner.version}", (f"  pid {banner.pid}", "dim"))
        facts = _facts()
        facts.add_row("  jobs from", Text(escape_control(banner.engine)))
        handlers = [
            Text.assemble(escape_control(name), (f"  {escape_control(queue)}", "dim"))
            for name, queue in banner.handlers
        ]
        _add_list(facts, "  handlers", handlers, MOST_HANDLERS)
        facts.add_row(
            "  queues", Text("all" if banner.queues is None else escape_control(", ".join(banner.queues)))
        )
        facts.add_row("  slots", banner.slots)
        print_rich(Group(title, facts))

    def show_http(self, notice: HttpNotice) -> None:
        facts = _facts()
        lines = [Text(escape_control(line)) for line in notice.terminal_lines]
        _add_list(facts, "  HTTP", lines, len(lines))
        print_rich(facts)

    def show_ready(self, threads: int, schedules: Sequence[NextFiring]) -> None:
        facts = _facts()
        if schedules:
            each = [
                Text.assemble(escape_control(one.name), (f"  next {next_date_of(one)}", "dim"))
                for one in schedules
            ]
            _add_list(facts, "  schedules", each, MAX_SCHEDULES)
        ready = Text.assemble(
            ("  ready", "bold green"), f": {format_count(threads, 'thread')} at work; stop with Ctrl+C or SIGTERM"
        )
        print_rich(Group(facts, ready) if schedules else ready)

    def show_stopping(self) -> None:
        print_rich(Text(STOPPING, style="yellow"))

    def show_stopped(self) -> None:
        print_rich(Text("stopped"))


def _facts() -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    return facts


def _add_list(facts: Table, title: str, texts: Sequence[Text], most: int) -> None:
    more = [Text(f"and {len(texts) - most} more", style="dim")] if len(texts) > most else []
    lines = [*texts[:most], *more] or [Text("none", style="yellow")]
    for place, line in enumerate(lines):
        facts.add_row(title if place == 0 else "", line)
