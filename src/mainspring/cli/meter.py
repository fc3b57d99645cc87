"""A progress bar for work that is measured in time: what is going on, how fast it was, how long still.

Like the bar for counted work it is drawn on stderr, and only if that is a terminal.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Meter:
    """Steps of so many seconds each: `begin` one, then `tell` how many of its seconds are over."""

    def __init__(self, seconds: float, steps: int) -> None:
        self._seconds = seconds
        self._begun = 0
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description:<22}"),
            BarColumn(),
            TextColumn("[cyan]{task.fields[rate]:>12}"),
            TextColumn("left:"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=seconds * steps, rate="")

    def begin(self, what: str) -> None:
        """Begin the next step."""
        self._progress.update(self._task, description=what, completed=self._begun * self._seconds, rate="")
        self._begun += 1

    def tell(self, spent: float, per_second: float | None) -> None:
        """Say how many seconds of this step are over, and how fast it was."""
        completed = (self._begun - 1) * self._seconds + spent
        if per_second is None:
            self._progress.update(self._task, completed=completed)
        else:  # drawn at once, between two rounds: on a busy machine the thread that draws comes too late
            self._progress.update(self._task, completed=completed, rate=f"{per_second:,.0f}/s", refresh=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
