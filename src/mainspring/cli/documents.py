"""Formats jobs, schedules, queues, events and explanations as JSON fields, and a job as text.

The names of the fields of `--json` are stable: scripts rely on them. Times are ISO 8601 strings in UTC, durations
are seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mainspring.cli.output import Cell, at, clean, compact, seen, styled
from mainspring.cli.remedies import Remedy
from mainspring.jobs.event_stream import JobEvent
from mainspring.jobs.explanation import Explanation
from mainspring.jobs.info import AttemptInfo, JobInfo, ProgressInfo
from mainspring.jobs.policies import CatchUp
from mainspring.jobs.queues import QueueStatistics
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.rules import Every, Rule
from mainspring.jobs.recurrence.schedule_info import ScheduleInfo


def job_fields(job: JobInfo) -> dict[str, Any]:
    """Return all fields of a job."""
    described: dict[str, Any] = {field.name: getattr(job, field.name) for field in fields(job)}
    return described | {
        "priority": job.priority.name,
        "headers": dict(job.headers),
        "history": [_attempt_fields(attempt) for attempt in job.history],
        "progress": None if job.progress is None else _progress_fields(job.progress),
        "lateness": job.lateness,
    }


def _attempt_fields(attempt: AttemptInfo) -> dict[str, Any]:
    return {field.name: getattr(attempt, field.name) for field in fields(attempt)}


def _progress_fields(progress: ProgressInfo) -> dict[str, Any]:
    return {field.name: getattr(progress, field.name) for field in fields(progress)} | {"share": progress.share}


def schedule_fields(schedule: ScheduleInfo) -> dict[str, Any]:
    """Return the fields of a schedule."""
    names = ("name", "type", "queue", "arguments", "overlap", "start", "end", "next_due", "last_due", "created")
    misfire = schedule.misfire
    return {name: getattr(schedule, name) for name in names} | {
        "rule": None if schedule.rule is None else rule_fields(schedule.rule),
        "priority": schedule.priority.name,
        "misfire": "catch-up" if isinstance(misfire, CatchUp) else misfire,
        "catch_up": misfire.limit if isinstance(misfire, CatchUp) else None,
        "jitter": schedule.jitter.total_seconds(),
        "paused": schedule.is_paused,
    }


def rule_fields(rule: Rule) -> dict[str, Any]:
    """Return the fields of a recurrence rule."""
    if isinstance(rule, Every):
        return {"kind": "every", "interval": rule.interval.total_seconds()}
    return dict(rule.describe())


def rule_text(rule: Rule | None) -> str:
    """Return a recurrence rule as a short text."""
    match rule:
        case Cron():
            return f"{rule.expression} ({rule.tz})"
        case Every():
            return f"every {rule.interval}"
        case _:
            return "written by a newer version"


def explanation_fields(explanation: Explanation, remedy: Remedy) -> dict[str, Any]:
    """Return the fields of an explanation, with the remedy and its commands."""
    described = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    return described | {"remedy": remedy.text, "commands": remedy.commands}


def event_fields(event: JobEvent) -> dict[str, Any]:
    """Return the fields of an event."""
    return {field.name: getattr(event, field.name) for field in fields(event)}


def queue_fields(queue: QueueStatistics) -> dict[str, Any]:
    """Return the fields of a queue."""
    described = {field.name: getattr(queue, field.name) for field in fields(queue) if field.name != "is_paused"}
    return described | {"paused": queue.is_paused}


def job_detail(job: JobInfo, now: int) -> RenderableType:
    """Lay out a job: its fields, its attempts and its errors; each time is also given relative to now."""
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
