"""A page of jobs, or of dead letters, as a table; and how to get the next one.

On a terminal times are also told as they are seen from now: what there is no room for goes first.
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
    """The columns of a table by their titles."""

    columns: dict[str, Column]
    seen_from_now: str
    """The column for terminals only: in a pipe it would be another text with every run."""
    whole: tuple[str, ...]
    spare: tuple[str, ...]
    if_any: tuple[str, ...] = ()
    """Columns that are left out if no job of the page has something to say there."""


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
    """Print a page; `none` is what to say of an empty one."""
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
