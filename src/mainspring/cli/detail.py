"""One job, with everything that is known of it, for the eyes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mainspring.cli.output import Cell, at, clean, compact, seen, styled
from mainspring.jobs.info import JobInfo, ProgressInfo


def job_detail(job: JobInfo, now: int) -> RenderableType:
    """Lay out a job: what it is, how it went, and its errors; times also as they are seen from now."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _lines(job, now):
        grid.add_row(name, value if isinstance(value, Text) else Text(clean(value)))
    parts: list[RenderableType] = [grid]
    for attempt in job.history:
        title = f"attempt {attempt.number}, {attempt.cause}, ended {_seen(attempt.ended, now)}"
        parts += [Text(f"\n{title}", style="bold"), _trace(attempt.error)]
    if job.error is not None and not any(attempt.error == job.error for attempt in job.history):
        parts += [Text("\nerror", style="bold"), _trace(job.error)]
    return Group(*parts)


def _lines(job: JobInfo, now: int) -> Iterator[tuple[str, Cell]]:
    yield "id", job.id
    yield "handler", job.type
    yield "queue", f"{job.queue}, priority {job.priority.name.lower().replace('_', '-')}"
    yield "status", styled(job.status)
    yield "arguments", compact(job.arguments)
    yield "created", _seen(job.created, now)
    yield "due", _seen(job.due, now)
    for name in ("started", "finished", "expires"):
        instant = getattr(job, name)
        if instant is not None:
            late = f", {job.lateness:.3f} s after its due time" if name == "started" else ""
            yield name, f"{_seen(instant, now)}{late}"
    yield "attempts", _attempts(job)
    yield from _more(job)


def _more(job: JobInfo) -> Iterator[tuple[str, Cell]]:
    if job.result is not None:
        yield "result", compact(job.result)
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
        yield f"header {clean(header)}", value


def _seen(instant: datetime, now: int) -> str:
    return f"{at(instant)} UTC ({seen(instant, now)})"


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
    return Padding(Text(clean(error.rstrip(), keep="\n"), overflow="fold"), (0, 0, 0, 2), expand=False)
