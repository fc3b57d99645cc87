"""Which jobs to list, and a page of them.

A place in the order of submission is never used again, so pages neither repeat nor leave out a job that is there
all the time, in both directions, whatever comes and goes meanwhile.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus


class Query(Struct, frozen=True):
    """Which jobs to list, in the order of their submission, or the other way round."""

    status: JobStatus | None = None
    queue: str | None = None
    type: str | None = None
    ids: tuple[str, ...] | None = None
    is_replayed: bool | None = None
    due_until: int | None = None
    """Only jobs that are due by then."""
    is_limited: bool | None = None
    """Only jobs that are under a limit, or under none."""
    is_bound: bool | None = None
    """Only jobs that are under a limit or in a sequence, or under none and in none."""
    limit: int = 50
    after: str | None = None
    """The place at which the last page ended; the same in both directions."""
    newest_first: bool = False


class Page(Struct, frozen=True):
    """A part of a list, and where the next one begins."""

    records: list[JobRecord]
    end: str | None
    """The engine's own way to go on; None: there is no more."""


def require_cursor(cursor: str | None) -> str | None:
    """Return the place at which an earlier page ended, or refuse what cannot be one."""
    if cursor is not None and not isinstance(cursor, str):
        raise ValueError(f"after must be the `next` of an earlier page, got {cursor!r}")
    return cursor
