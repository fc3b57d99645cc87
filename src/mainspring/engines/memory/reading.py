"""Queries over records in memory."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.engines.memory.jobs import Jobs
from mainspring.jobs.engine import JobRecord, Page, Query
from mainspring.jobs.status import JobStatus


def page_of(jobs: Jobs, query: Query) -> Page:
    """Return the jobs that a query asks for, and the place where they end if there are more."""
    found: list[tuple[int, JobRecord]] = []
    for place in _places(jobs, query):
        job = jobs.at(place)
        if not matches(job, query):
            continue
        if query.ids is None and len(found) == query.limit:
            return Page([job for _, job in found], str(found[-1][0]))
        found.append((place, job))
    return Page([job for _, job in found], None)


def _places(jobs: Jobs, query: Query) -> Iterable[int]:
    """Go over the places to look at, in order. New jobs come last, so the places are in order as they are."""
    if query.ids is not None:
        places = (jobs.places[job_id] for job_id in set(query.ids) if job_id in jobs.places)
        return sorted(places, reverse=query.newest_first)
    in_order = reversed(jobs.by_place) if query.newest_first else iter(jobs.by_place)
    if query.after is None:
        return in_order
    after = to_place(query.after)
    return (place for place in in_order if (place < after if query.newest_first else place > after))


def count(jobs: Iterable[JobRecord], query: Query) -> dict[JobStatus, int]:
    """Count jobs by state; of those that FAILED, the ones that were not replayed."""
    counts = dict.fromkeys(JobStatus, 0)
    for job in jobs:
        is_settled = job.status is JobStatus.FAILED and job.replayed_as is not None
        if not is_settled and matches(job, query):
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
    if query.is_bound not in (None, bool(job.limits) or job.sequence is not None):
        return False
    return is_wanted and query.type in (None, job.type) and query.is_replayed in (None, is_replayed)


def to_place(cursor: str) -> int:
    """Read the end of an earlier page."""
    try:
        return int(cursor)
    except ValueError:
        raise ValueError(f"after must be the `next` of an earlier page, got {cursor!r}") from None
