"""Events of jobs, as engines store them. Engines write events only while a client follows them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from mainspring.jobs.records import OutcomeKind
from mainspring.jobs.status import JobStatus


class EventKind(StrEnum):
    """What happened to a job or a schedule."""

    SUBMITTED = "submitted"
    STARTED = "started"
    PROGRESS = "progress"
    COMPLETED = "completed"
    RETRIED = "retried"
    """An attempt failed, and the job will be retried."""
    SNOOZED = "snoozed"
    INTERRUPTED = "interrupted"
    RESCUED = "rescued"
    """The job's worker died or was removed, and the job will run again."""
    FAILED = "failed"
    """The job was given up and became a dead letter."""
    CANCELED = "canceled"
    RESCHEDULED = "rescheduled"
    REOPENED = "reopened"
    DEDUPLICATED = "deduplicated"
    """A submit was not stored, because this job holds its unique key or was made for the same occurrence."""
    SKIPPED = "skipped"
    """No job was made for an occurrence of a schedule; the event names the schedule."""


class Event(Struct, frozen=True, gc=False):
    """An event of a job, or of a schedule that skipped an occurrence, as engines store it."""

    kind: EventKind
    at: int
    id: str
    """The id of the job; for SKIPPED, the name of the schedule."""
    type: str
    queue: str
    note: str | None = None


class EventPage(Struct, frozen=True):
    """A page of events, and the position at which the next page begins."""

    events: list[Event]
    end: str
    positions: Sequence[str] = ()
    """The position after each event: a reader that continues there gets the next event."""
    is_complete: bool = True
    """False if events were deleted, or not written, between the given position and the end of the page.

    An engine that cannot tell this from the page alone returns True; `EventLog.holds` gives the exact answer.
    """


_FINAL = {
    JobStatus.COMPLETED: EventKind.COMPLETED,
    JobStatus.FAILED: EventKind.FAILED,
    JobStatus.CANCELED: EventKind.CANCELED,
}
_AGAIN = {
    OutcomeKind.RETRY: EventKind.RETRIED,
    OutcomeKind.SNOOZED: EventKind.SNOOZED,
    OutcomeKind.INTERRUPTED: EventKind.INTERRUPTED,
}


def event_after(outcome: OutcomeKind, status: JobStatus) -> EventKind | None:
    """Return the event for an outcome that gave a job this status; None if the job was handed back."""
    return _FINAL.get(status) or _AGAIN.get(outcome)
