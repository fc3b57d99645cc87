"""Prints a page of jobs or dead letters as a table, and says how to get the next page.

On a terminal a column with the time relative to now is added. If a terminal is too narrow, the columns listed in
`spare` are dropped first, in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from mainspring.cli.documents import job_fields
from mainspring.cli.output import Cell, at, is_terminal, say, seen, show_json, show_table, styled
from mainspring.jobs.info import JobInfo, JobPage

Column: TypeAlias = Callable[[JobInfo, int], Cell]


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table, by title."""

    columns: dict[str, Column]
    seen_from_now: str
    """The column shown on terminals only: it is relative to now, so in a pipe it would differ with every run."""
    whole: tuple[str, ...]
    spare: tuple[str, ...]
    if_any: tuple[str, ...] = ()
    """Columns left out if they are empty for every job of the page."""


def _error(job: JobInfo, _: int) -> str:
    return "" if job.error is None else job.error.partition("\n")[0]


_KIND: dict[str, Column] = {
    "HANDLER": lambda job, _: job.type,
    "QUEUE": lambda job, _: job.queue,
    "STARTS": lambda job, _: str(job.starts),
    "ERROR": _error,
}
JOBS = Layout(
    {
        "ID": lambda job, _: job.id,
        "STATUS": lambda job, _: styled(job.status),
        "DUE": lambda job, now: seen(job.due, now, in_short=True),
        "DUE (UTC)": lambda job, _: at(job.due),
        "REPLAYED AS": lambda job, _: job.replayed_as or "",
        **_KIND,
    },
    seen_from_now="DUE",
    whole=("ID", "STATUS", "DUE", "DUE (UTC)", "REPLAYED AS"),
    spare=("DUE (UTC)", "QUEUE", "STARTS", "ERROR", "DUE", "HANDLER"),
    if_any=("REPLAYED AS",),
)
LETTERS = Layout(
    {
        "ID": lambda job, _: job.id,
        "FAILED": lambda job, now: seen(job.finished, now, in_short=True),
        "FAILED (UTC)": lambda job, _: at(job.finished),
        **_KIND,
    },
    seen_from_now="FAILED",
    whole=("ID", "FAILED", "FAILED (UTC)"),
    spare=("FAILED (UTC)", "QUEUE", "STARTS", "FAILED", "HANDLER", "ERROR"),
)


def show_page(page: JobPage, now: int, layout: Layout, *, as_json: bool, none: str) -> None:
    """Print a page; `none` is the message for an empty one."""
    if as_json:
        show_json({"jobs": [job_fields(job) for job in page], "next": page.next})
        return
    if page:
        columns = {
            title: column
            for title, column in layout.columns.items()
            if (is_terminal() or title != layout.seen_from_now)
            and (title not in layout.if_any or any(column(job, now) for job in page))
        }
        rows = [[column(job, now) for column in columns.values()] for job in page]
        show_table(tuple(columns), rows, whole=layout.whole, spare=layout.spare, numbers=("STARTS",))
    else:
        say(none)
    if page.next is not None:
        say(f"there are more: --after {page.next}")
