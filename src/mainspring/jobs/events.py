"""What happens to jobs, for those who follow it. Engines write it down only while somebody listens."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from mainspring.jobs.records import OutcomeKind
from mainspring.jobs.status import JobStatus


class EventKind(StrEnum):
    """What happened."""

    SUBMITTED = "submitted"
    STARTED = "started"
    PROGRESS = "progress"
    COMPLETED = "completed"
    RETRIED = "retried"
    """An attempt failed, and there will be another."""
    SNOOZED = "snoozed"
    INTERRUPTED = "interrupted"
    RESCUED = "rescued"
    """Its worker died, and it will run again."""
    FAILED = "failed"
    """Given up: a dead letter now."""
    CANCELED = "canceled"
    RESCHEDULED = "rescheduled"
    REOPENED = "reopened"
    DEDUPLICATED = "deduplicated"
    """A submit found this job in its way."""
    SKIPPED = "skipped"
    """An occurrence of a schedule made no job; the event names the schedule."""


class Event(Struct, frozen=True, gc=False):
    """Something that happened to a job."""

    kind: EventKind
    at: int
    id: str
    """The job, or the schedule for SKIPPED."""
    type: str
    queue: str
    note: str | None = None


class EventPage(Struct, frozen=True):
    """A part of what happened, and where the next part begins."""

    events: list[Event]
    end: str


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
    """Return the event for the end of an attempt, with the status that the job has then; None: handed back."""
    return _FINAL.get(status) or _AGAIN.get(outcome)
