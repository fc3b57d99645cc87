"""Lays out the details, the history and the preview of a schedule as tables, for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING

from mainspring.cli.json_fields import rule_text
from mainspring.cli.output import (
    Cell,
    Styled,
    compact_json,
    format_distance,
    format_time,
    styled_status,
    to_text,
)
from mainspring.jobs.policies import CatchUp
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.preview import PreviewDate
from mainspring.jobs.recurrence.schedule_history import HistoryEntry
from mainspring.jobs.recurrence.schedule_info import ScheduleInfo

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
    """Return the table about one schedule: its job, its rule, its policies and its next dates."""
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


def history_row(entry: HistoryEntry) -> list[Cell]:
    """Return the cells of an entry in the table of a schedule's history: time, outcome, job id and a remark."""
    outcome: Cell = styled_status(entry.status) if entry.status is not None else entry.kind
    note = "triggered by hand" if entry.kind == "trigger" else entry.note or ""
    return [format_time(entry.at), outcome, entry.job_id or "-", note]


def preview_rows(dates: list[PreviewDate]) -> Iterator[list[Cell]]:
    """Yield the rows of the table of coming dates: the date in the rule's time zone, the date in UTC, and a remark
    on a change of clocks.
    """
    time = "%H:%M:%S" if any(line.local.second for line in dates) else "%H:%M"
    for line in dates:
        style = "yellow" if line.note is not None else ""
        shown, utc = f"{line.local:%a %Y-%m-%d {time} %z}", f"{line.local.astimezone(UTC):%Y-%m-%d {time}}"
        if line.is_skipped:
            shown, utc = f"{line.local:%a %Y-%m-%d} -", "-"
        yield [Styled(shown, style), utc, Styled(line.note or "", style)]
