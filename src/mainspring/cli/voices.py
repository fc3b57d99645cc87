"""The voices of `mainspring run`: a banner on a terminal, plain lines in a pipe, JSON for collectors of logs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mainspring.cli.logs import LogFormat
from mainspring.cli.output import clean, is_terminal, show
from mainspring.foreground.greeting import Greeting, ScheduledNext
from mainspring.foreground.voice import MOST_SCHEDULES, STOPPING, PlainVoice, Voice, next_of

MOST_HANDLERS = 20  # that a banner lists

logger = logging.getLogger("mainspring.worker")


def choose_voice(chosen: LogFormat) -> Voice:
    """Return the voice for what is listened with."""
    if chosen is LogFormat.JSON:
        return JsonVoice()
    return TerminalVoice() if is_terminal() else PlainVoice()


class TerminalVoice:
    """A banner."""

    def greet(self, greeting: Greeting) -> None:
        title = Text.assemble(
            ("Mainspring", "bold cyan"), f" {greeting.version}", (f"  pid {greeting.pid}", "dim")
        )
        facts = _facts()
        facts.add_row("  jobs from", Text(clean(greeting.engine)))
        handlers = [Text.assemble(clean(name), (f"  {clean(queue)}", "dim")) for name, queue in greeting.handlers]
        _add_list(facts, "  handlers", handlers, MOST_HANDLERS)
        facts.add_row("  queues", Text("all" if greeting.queues is None else clean(", ".join(greeting.queues))))
        facts.add_row("  places", greeting.places)
        show(Group(title, facts))

    def tell_ready(self, threads: int, schedules: Sequence[ScheduledNext]) -> None:
        facts = _facts()
        if schedules:
            each = [Text.assemble(clean(one.name), (f"  next {next_of(one)}", "dim")) for one in schedules]
            _add_list(facts, "  schedules", each, MOST_SCHEDULES)
        ready = Text.assemble(
            ("  ready", "bold green"), f": {threads} threads at work; stop with Ctrl+C or SIGTERM"
        )
        show(Group(facts, ready) if schedules else ready)

    def tell_stopping(self) -> None:
        show(Text(STOPPING, style="yellow"))

    def tell_stopped(self) -> None:
        show(Text("stopped"))


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


class JsonVoice:
    """Records among those of the log, with the facts as fields."""

    def greet(self, greeting: Greeting) -> None:
        self._tell(
            "starting",
            f"Mainspring runs jobs from {greeting.engine}",
            engine=greeting.engine,
            version=greeting.version,
            pid=greeting.pid,
            handlers=[{"name": name, "queue": queue} for name, queue in greeting.handlers],
            queues=greeting.queues,
            threads=greeting.threads,
            coroutines=greeting.coroutines,
            processes=greeting.processes,
        )

    def tell_ready(self, threads: int, schedules: Sequence[ScheduledNext]) -> None:
        dates = [{"name": each.name, "next": _date(each)} for each in schedules]
        self._tell("ready", f"{threads} threads at work", schedules=dates)

    def tell_stopping(self) -> None:
        self._tell("stopping", STOPPING)

    def tell_stopped(self) -> None:
        self._tell("stopped", "stopped")

    def _tell(self, event: str, message: str, **facts: Any) -> None:
        logger.info("%s", message, extra={"facts": {"event": event} | facts})


def _date(schedule: ScheduledNext) -> str | None:
    return None if schedule.next_due is None else schedule.next_due.astimezone(UTC).isoformat()
