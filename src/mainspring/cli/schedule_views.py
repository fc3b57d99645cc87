"""The details and the history of a schedule, for people and as JSON fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainspring.cli.json_fields import rule_text
from mainspring.cli.output import Cell, compact_json, format_distance, format_time, styled_status, to_text
from mainspring.jobs.info import JobInfo
from mainspring.jobs.policies import CatchUp
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.schedule_info import OccurrenceInfo, ScheduleInfo

if TYPE_CHECKING:
    from rich.console import RenderableType

UPCOMING = 3
_GAPS = {"shift": "a time that does not exist is shifted", "skip": "a time that does not exist is skipped"}
_FOLDS = {
    "first": "the first of two equal times counts",
    "second": "the second of two equal times counts",
    "both": "both of two equal times count",
}


def schedule_detail(schedule: ScheduleInfo, now: int) -> RenderableType:
    """Lay out a schedule: its job, its rule, its policies and its next dates."""
    from rich.table import Table  # noqa: PLC0415 - slow to import, and a list of schedules does not need it

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _describe(schedule, now):
        grid.add_row(name, to_text(value))
    return grid


def _describe(schedule: ScheduleInfo, now: int) -> Iterator[tuple[str, Cell]]:
    misfire = schedule.misfire
    yield "name", schedule.name
    yield "handler", schedule.type
    yield "queue", f"{schedule.queue}, priority {schedule.priority.name.lower().replace('_', '-')}"
    yield "arguments", compact_json(schedule.arguments)
    yield "rule", rule_text(schedule.rule)
    if isinstance(schedule.rule, Cron):
        yield "clock changes", f"{_GAPS[schedule.rule.dst_gap]}, {_FOLDS[schedule.rule.dst_fold]}"
    yield "misfire", f"the latest {misfire.limit} run" if isinstance(misfire, CatchUp) else misfire
    yield "overlap", str(schedule.overlap)
    if schedule.jitter:
        yield "jitter", f"up to {schedule.jitter}"
    for name in ("start", "end"):
        instant = getattr(schedule, name)
        if instant is not None:
            yield name, f"{format_time(instant)} UTC"
    if schedule.is_declared is not None:
        yield "origin", "declared in code" if schedule.is_declared else "stored at run time"
    yield "created", f"{format_time(schedule.created)} UTC ({format_distance(schedule.created, now)})"
    if schedule.last_due is not None:
        yield "last", f"{format_time(schedule.last_due)} UTC ({format_distance(schedule.last_due, now)})"
    yield from _dates(schedule, now)


def _dates(schedule: ScheduleInfo, now: int) -> Iterator[tuple[str, Cell]]:
    if schedule.is_paused:
        yield "next", "paused"
    elif schedule.next_due is None:
        yield "next", "none: the schedule has no further occurrence"
    else:
        yield "next", f"{format_time(schedule.next_due)} UTC ({format_distance(schedule.next_due, now)})"
        for local in schedule.upcoming(UPCOMING):
            yield "", f"{local:%a %Y-%m-%d %H:%M:%S %z}"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A job of a schedule, or successive occurrences without a job."""

    at: datetime
    """The occurrence; the due time of a job that was triggered by hand; the last of successive occurrences."""
    kind: str
    """`occurrence` or `trigger` for a job; `skipped`, `coalesced` or `missed` for occurrences without a job."""
    job_id: str | None
    status: str | None
    first: datetime
    count: int
    note: str | None

    def fields(self) -> dict[str, Any]:
        """Return the entry as fields for JSON."""
        return {
            "at": self.at,
            "kind": self.kind,
            "job_id": self.job_id,
            "status": self.status,
            "first": self.first,
            "count": self.count,
            "note": self.note,
        }

    def row(self) -> list[Cell]:
        """Return the cells of the entry in the table of the history."""
        outcome: Cell = styled_status(self.status) if self.status is not None else self.kind
        note = "triggered by hand" if self.kind == "trigger" else self.note or ""
        return [format_time(self.at), outcome, self.job_id or "-", note]


def merge_history(jobs: Iterable[JobInfo], left_out: Iterable[OccurrenceInfo], limit: int) -> list[HistoryEntry]:
    """Return the jobs of a schedule and its occurrences without a job, the latest first."""
    entries = [*map(_job_entry, jobs), *map(_occurrence_entry, left_out)]
    return sorted(entries, key=lambda entry: entry.at, reverse=True)[:limit]


def _job_entry(job: JobInfo) -> HistoryEntry:
    at = job.due if job.occurrence is None else job.occurrence
    kind = "trigger" if job.occurrence is None else "occurrence"
    error = None if job.error is None else job.error.strip().rpartition("\n")[2]
    return HistoryEntry(at, kind, job.id, str(job.status), at, 1, error)


def _occurrence_entry(occurrence: OccurrenceInfo) -> HistoryEntry:
    return HistoryEntry(
        occurrence.last,
        str(occurrence.kind),
        None,
        None,
        occurrence.first,
        occurrence.count,
        occurrence.note,
    )
