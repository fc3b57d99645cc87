"""Queries over records in memory."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.jobs.engine import JobRecord, Page, Query
from mainspring.jobs.status import JobStatus


def page_of(jobs: list[tuple[int, JobRecord]], query: Query) -> Page:
    """Return the jobs that a query asks for, given in order with their places."""
    found: list[tuple[int, JobRecord]] = []
    for place, job in jobs:
        if not matches(job, query):
            continue
        if query.ids is None and len(found) == query.limit:
            return Page([job for _, job in found], str(found[-1][0]))
        found.append((place, job))
    return Page([job for _, job in found], None)


def count(jobs: Iterable[JobRecord], query: Query) -> dict[JobStatus, int]:
    """Count jobs by state."""
    counts = dict.fromkeys(JobStatus, 0)
    for job in jobs:
        if matches(job, query):
            counts[job.status] += 1
    return counts


def matches(job: JobRecord, query: Query) -> bool:
    """Answer whether a query asks for this job, apart from its place."""
    is_wanted = query.status in (None, job.status) and query.queue in (None, job.queue)
    is_replayed = job.replayed_as is not None
    if query.due_until is not None and job.due > query.due_until:
        return False
    if query.is_limited not in (None, bool(job.limits)):
        return False
    return is_wanted and query.type in (None, job.type) and query.is_replayed in (None, is_replayed)


def to_place(cursor: str) -> int:
    """Read the end of an earlier page."""
    try:
        return int(cursor)
    except ValueError:
        raise ValueError(f"after must be the `next` of an earlier page, got {cursor!r}") from None
