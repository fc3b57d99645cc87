"""Prints the demo: each event as a line, progress bars on a terminal, and the closing table."""

from types import TracebackType

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from mainspring import SystemClock
from mainspring.demo.audit import ClosingFigures, OrderAudit
from mainspring.demo.journal import OrderEvent

BAR_WIDTH = 44
BARS = {
    "placed": (OrderEvent.PLACED, "cyan"),
    "paid in time": (OrderEvent.PAID, "green"),
    "failed and retried": (OrderEvent.REFUSED, "yellow"),
    "canceled": (OrderEvent.CANCELED, "magenta"),
    "parcels mailed": (OrderEvent.MAILED, "blue"),
}


class Screen:
    """Prints the events, the progress bars and the closing table. Bars are drawn on a terminal only."""

    def __init__(self, orders: int, console: Console) -> None:
        self._orders = orders
        self._console = console
        self._clock = SystemClock()
        self._begin = self._clock.monotonic_ns()
        self._live = Live(console=self._console, transient=True, auto_refresh=False)

    def seconds(self) -> float:
        """Return the seconds since the start of the demo."""
        return (self._clock.monotonic_ns() - self._begin) / 1e9

    def show_event(self, sentence: str) -> None:
        """Print a sentence with the seconds since the start of the demo."""
        self._console.print(f" [dim]{self.seconds():5.1f} s[/dim]  {sentence}")

    def show_bars(self, audit: OrderAudit) -> None:
        """Draw the progress bars with the counts of the audit; do nothing if the output is no terminal."""
        if not self._console.is_terminal:
            return
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=21, justify="right")
        grid.add_column(width=BAR_WIDTH)
        grid.add_column(width=7, justify="right")
        for label, (event, colour) in BARS.items():
            count = audit.count(event)
            bar = ProgressBar(
                total=self._orders, completed=count, width=BAR_WIDTH, complete_style=colour, finished_style=colour
            )
            grid.add_row(label, bar, f"{count:,}")
        self._live.update(grid, refresh=True)

    def close(self, figures: ClosingFigures) -> None:
        """Print the closing table, and the broken promises, or that there are none."""
        table = Table(title="At the end of the day", title_justify="left", show_header=False, box=box.ROUNDED)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column()
        for row in _rows(figures):
            table.add_row(*row)
        self._console.print()
        self._console.print(table)
        complaints = figures.complaints
        for complaint in complaints:
            self._console.print(f" [bold red]✗ {complaint}[/]")
        if not complaints:
            self._console.print(
                " [bold green]✓ Nothing was lost or out of order; no order that was paid in time was canceled.[/]"
            )

    def __enter__(self) -> "Screen":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _rows(figures: ClosingFigures) -> list[tuple[str, str, str]]:
    late_and_canceled = figures.paid_late - figures.paid_late_and_kept
    return [
        ("submitted", f"{figures.submitted:,}", "orders, each with a durable time-out"),
        ("paid", f"{figures.paid:,}", "in time: the time-out was called off for good"),
        (
            "paid late",
            f"{figures.paid_late:,}",
            f"the time-out had begun: {late_and_canceled:,} canceled, {figures.paid_late_and_kept:,} kept",
        ),
        ("canceled", f"{figures.cancelled:,}", "by the time-out"),
        (
            "retried",
            f"{figures.retried:,}",
            f"{figures.failed_attempts:,} attempts failed, the service being down",
        ),
        ("dead", f"{figures.dead:,}", "given up after four attempts: dead letters"),
        ("replayed", f"{figures.replayed:,}", "dead letters, when the service was back"),
        ("lost", _judged(figures.lost), "neither paid nor canceled"),
        ("run twice", f"{figures.run_twice:,}", "in flight at the kill -9, so they ran again"),
        (
            "parcels",
            f"{figures.parcels:,}",
            f"mailed, in order per customer; {figures.parcels_held_up:,} charges retried",
        ),
        ("nights", f"{figures.nights:,}", "each with its report, from a cron"),
        ("lateness p50", f"{figures.lateness_p50_ms:,.1f} ms", "start minus due, while a worker was there"),
        ("lateness p99", f"{figures.lateness_p99_ms:,.1f} ms", ""),
        (
            "held up",
            f"{figures.held_up_by_kill:,}",
            f"by the kill, for {figures.held_up_longest_ms:,.0f} ms at most",
        ),
    ]


def _judged(count: int) -> str:
    return f"[bold {'red' if count else 'green'}]{count:,}[/]"
