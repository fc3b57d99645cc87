"""A progress bar for work that takes longer than a second: how many, how fast, how long still.

It is drawn on stderr, and only if that is a terminal: the output stays clean.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mainspring.clock import NANOSECONDS, Clock, SystemClock

PATIENCE_NS = NANOSECONDS  # what is done within a second needs no bar


class RateColumn(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        """Write the speed of the last moments."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="cyan")


class Bar:
    """Counts what is done; appears after a second: `with Bar("submitting", total=5) as bar: bar.advance(1)`."""

    def __init__(self, what: str, total: int, *, clock: Clock | None = None) -> None:
        self._what = what
        self._total = total
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.monotonic_ns()
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self.done = 0

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return (self._clock.monotonic_ns() - self._began_ns) / NANOSECONDS

    def advance(self, count: int = 1) -> None:
        """Count what has been done."""
        self.done += count
        if self._progress is None and self._console.is_terminal and self._is_slow():
            self._progress = self._make()
            self._progress.add_task(self._what, total=self._total)
            self._progress.start()
        if self._progress is not None:
            (task,) = self._progress.task_ids
            self._progress.update(task, completed=self.done)

    def _is_slow(self) -> bool:
        return self._clock.monotonic_ns() - self._began_ns >= PATIENCE_NS

    def _make(self) -> Progress:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            RateColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
        )
        return Progress(*columns, console=self._console, transient=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
