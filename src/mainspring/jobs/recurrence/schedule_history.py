"""The history of a schedule: its latest jobs, and its occurrences without a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainspring.jobs.info import JobInfo
from mainspring.jobs.recurrence.schedule_info import OccurrenceInfo


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry in the history of a schedule: one of its jobs, or successive occurrences without a job."""

    at: datetime
    """The occurrence, or the last of several; for a job that was triggered by hand, its due time."""
    kind: str
    """`occurrence` or `trigger` for a job; `skipped`, `coalesced` or `missed` for occurrences without a job."""
    job_id: str | None
    status: str | None
    first: datetime
    count: int
    note: str | None

    def fields(self) -> dict[str, Any]:
        """Return the entry of the history as a dict for JSON output."""
        return {
            "at": self.at,
            "kind": self.kind,
            "job_id": self.job_id,
            "status": self.status,
            "first": self.first,
            "count": self.count,
            "note": self.note,
        }


def merge_history(jobs: Iterable[JobInfo], left_out: Iterable[OccurrenceInfo], limit: int) -> list[HistoryEntry]:
    """Return the jobs of a schedule and its occurrences without a job as one list, the latest first, up to
    `limit`.
    """
    entries = [*map(_job_entry, jobs), *map(_occurrence_entry, left_out)]
    return sorted(entries, key=lambda entry: entry.at, reverse=True)[:limit]


def _job_entry(job: JobInfo) -> HistoryEntry:
    at = job.due if job.occurrence is None else job.occurrence
    kind = "trigger" if job.occurrence is None else "occurrence"
    error = None if job.error is None else job.error.partition("\n")[0]
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
