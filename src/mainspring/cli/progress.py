"""Progress bars: `ProgressBar` for counted work, `StepProgress` for steps of a known duration.

A bar shows the rate and the time left. It is drawn on stderr, and only on a terminal. A `ProgressBar` appears
after a second.
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

SHOW_AFTER_NS = NANOSECONDS  # one second: shorter work shows no bar


class RateColumn(ProgressColumn):
    """A column of a progress bar that shows the items per second."""

    def render(self, task: Task) -> Text:
        """Return the recent rate as text; an empty text before it is known."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="cyan")


class ProgressBar:
    """Counts finished items in a `with` block, and shows a progress bar on a terminal after one second.

    with ProgressBar("submitting", total=5) as bar:
        bar.advance(1)
    """

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
        """The seconds since the bar was created."""
        return (self._clock.monotonic_ns() - self._began_ns) / NANOSECONDS

    def advance(self, count: int = 1) -> None:
        """Add `count` finished items, and draw the bar, if this is a terminal and a second has passed."""
        self.done += count
        if self._progress is None and self._console.is_terminal and self._is_slow():
            self._progress = self._make()
            self._progress.add_task(self._what, total=self._total)
            self._progress.start()
        if self._progress is not None:
            (task,) = self._progress.task_ids
            self._progress.update(task, completed=self.done)

    def _is_slow(self) -> bool:
        return self._clock.monotonic_ns() - self._began_ns >= SHOW_AFTER_NS

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


class StepProgress:
    """Shows the progress of steps that take `seconds` each, on a terminal.

    Call `begin` at the begin of a step, then `tell` with the seconds of the step that have passed.
    """

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
        """Show that the next step begins; `what` is its title."""
        self._progress.update(self._task, description=what, completed=self._begun * self._seconds, rate="")
        self._begun += 1

    def tell(self, spent: float, per_second: float | None) -> None:
        """Show how many seconds of the current step have passed, and the rate; None leaves the rate as it is."""
        completed = (self._begun - 1) * self._seconds + spent
        if per_second is None:
            self._progress.update(self._task, completed=completed)
        else:  # redraw now, because the drawing thread is late on a busy machine
            self._progress.update(self._task, completed=completed, rate=f"{per_second:,.0f}/s", refresh=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
