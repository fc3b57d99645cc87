"""Shows jobs to people: a page of jobs or dead letters as a table, and one job with all its details.

On a terminal, a table has a column with the time relative to now. If a terminal is too narrow, the columns listed
in `droppable` are left out first, in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from mainspring.cli.json_fields import job_fields
from mainspring.cli.output import (
    Cell,
    compact_json,
    escape_control,
    format_distance,
    format_time,
    is_terminal,
    print_json,
    print_message,
    print_table,
    styled_status,
    to_text,
)
from mainspring.jobs.info import JobInfo, JobPage, ProgressInfo
from mainspring.plurals import format_count

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mainspring.jobs.manager import JobManager
    from mainspring.jobs.retry import Retry

Column: TypeAlias = Callable[[JobInfo, int], Cell]


class JobTable(Struct, frozen=True):
    """The layout of a table of jobs: its columns by title, and how they adapt to narrow terminals."""

    columns: dict[str, Column]
    relative: str
    """The title of the column that is printed on terminals only.

    It shows a time relative to now, which differs with every run.
    """
    uncut: tuple[str, ...]
    droppable: tuple[str, ...]
    if_filled: tuple[str, ...] = ()
    """The titles of columns that are left out if they are empty for every job of the page."""


def _error(job: JobInfo, _: int) -> str:
    return "" if job.error is None else job.error.partition("\n")[0]


_COMMON_COLUMNS: dict[str, Column] = {
    "HANDLER": lambda job, _: job.type,
    "QUEUE": lambda job, _: job.queue,
    "STARTS": lambda job, _: str(job.starts),
    "ERROR": _error,
}
JOB_TABLE = JobTable(
    {
        "ID": lambda job, _: job.id,
        "STATUS": lambda job, _: styled_status(job.status),
        "DUE": lambda job, now: format_distance(job.due, now, in_short=True),
        "DUE (UTC)": lambda job, _: format_time(job.due),
        "REPLAYED AS": lambda job, _: job.replayed_as or "",
        **_COMMON_COLUMNS,
    },
    relative="DUE",
    uncut=("ID", "STATUS", "DUE", "DUE (UTC)", "REPLAYED AS"),
    droppable=("DUE (UTC)", "QUEUE", "STARTS", "ERROR", "DUE", "HANDLER"),
    if_filled=("REPLAYED AS",),
)
DEAD_LETTER_TABLE = JobTable(
    {
        "ID": lambda job, _: job.id,
        "FAILED": lambda job, now: format_distance(job.finished, now, in_short=True),
        "FAILED (UTC)": lambda job, _: format_time(job.finished),
        **_COMMON_COLUMNS,
    },
    relative="FAILED",
    uncut=("ID", "FAILED", "FAILED (UTC)"),
    droppable=("FAILED (UTC)", "QUEUE", "STARTS", "FAILED", "HANDLER", "ERROR"),
)


def print_page(page: JobPage, now: int, layout: JobTable, *, as_json: bool, none: str) -> None:
    """Print a page of jobs as a table or as JSON, and how to get the next page.

    `none` is the message for an empty page.
    """
    if as_json:
        print_json({"jobs": [job_fields(job) for job in page], "next": page.next, "is_complete": page.is_complete})
        return
    if page:
        columns = {
            title: column
            for title, column in layout.columns.items()
            if (is_terminal() or title != layout.relative)
            and (title not in layout.if_filled or any(column(job, now) for job in page))
        }
        rows = [[column(job, now) for column in columns.values()] for job in page]
        print_table(
            tuple(columns), rows, uncut=layout.uncut, droppable=layout.droppable, right_aligned=("STARTS",)
        )
    else:
        print_message(none if page.is_complete else f"{none} found so far")
    if not page.is_complete:
        print_message(
            f"the search stopped after {page.scanned:,} jobs, at one submitted at {format_time(page.reached)} "
            f"UTC; continue with --after {page.next}"
        )
    elif page.next is not None:
        print_message(f"there are more jobs; for the next page, add --after {page.next}")


def job_detail(job: JobInfo, manager: JobManager) -> RenderableType:
    """Return the text about one job: its fields, attempts and errors; each time is also given relative to now."""
    from rich.console import Group  # noqa: PLC0415 - slow to import, and a list of jobs does not need it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    now, retry = manager.engine.now(), manager.registry.retry_of(job.type, job.headers)
    for name, value in _describe(job, now, retry):
        grid.add_row(name, to_text(value))
    parts: list[RenderableType] = [grid]
    for attempt in job.history:
        title = f"attempt {attempt.number}, {attempt.cause}, ended {_format_instant(attempt.ended, now)}"
        if attempt.worker is not None:
            title += f", worker {escape_control(attempt.worker)}"
        parts += [Text(f"\n{title}", style="bold"), _trace(attempt.error)]
    if job.error is not None and not any(attempt.error == job.error for attempt in job.history):
        parts += [Text("\nerror", style="bold"), _trace(job.error)]
    return Group(*parts)


def _describe(job: JobInfo, now: int, retry: Retry | None) -> Iterator[tuple[str, Cell]]:
    yield "id", job.id
    yield "handler", job.type
    yield "queue", f"{job.queue}, priority {job.priority.name.lower().replace('_', '-')}"
    yield "status", styled_status(job.status)
    yield "arguments", _data(job.arguments)
    yield "created", _format_instant(job.created, now)
    yield "due", _format_instant(job.due, now)
    for name in ("started", "finished", "expires"):
        instant = getattr(job, name)
        if instant is not None:
            is_late = name == "started" and job.lateness is not None
            late = f", {job.lateness:.3f} s after its due time" if is_late else ""
            yield name, f"{_format_instant(instant, now)}{late}"
    yield "attempts", _attempts(job)
    if retry is not None:
        yield "retry policy", str(retry)
    yield from _describe_more(job)


def _describe_more(job: JobInfo) -> Iterator[tuple[str, Cell]]:
    if job.result is not None:
        yield "result", _data(job.result)
    if job.warning is not None:
        yield "warning", job.warning
    if job.progress is not None:
        yield "progress", _progress(job.progress)
    if job.stop_requested:
        yield "stop", "was asked for"
    for name in ("worker", "schedule", "sequence", "unique_key", "origin", "replayed_as"):
        value = getattr(job, name)
        if value is not None:
            yield name.replace("_", " "), str(value)
    for limit in job.limits:
        yield "limit", limit
    for header, value in job.headers.items():
        yield f"header {escape_control(header)}", value


def _data(data: Any) -> str:
    """Return arguments or a result as one line of JSON; the size of bytes, which this process cannot decode."""
    if isinstance(data, bytes):
        return f"{format_count(len(data), 'byte')} of a serializer that this command does not know; try --app"
    return compact_json(data)


def _format_instant(instant: datetime, now: int) -> str:
    return f"{format_time(instant)} UTC ({format_distance(instant, now)})"


def _attempts(job: JobInfo) -> str:
    counts = {
        "failed": job.failures,
        "timed out": job.timeouts,
        "crashed": job.crashes,
        "interrupted": job.interruptions,
    }
    parts = [f"{count} {how}" for how, count in counts.items() if count]
    return f"{job.starts} started" + (f" ({', '.join(parts)})" if parts else "")


def _progress(progress: ProgressInfo) -> str:
    total = "" if progress.total is None else f" of {progress.total:g}"
    share = "" if progress.share is None else f" ({progress.share:.0%})"
    note = "" if progress.note is None else f": {progress.note}"
    return f"{progress.done:g}{total}{share}{note}"


def _trace(error: str) -> RenderableType:
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    return Padding(Text(escape_control(error.rstrip(), keep="\n"), overflow="fold"), (0, 0, 0, 2), expand=False)
