"""The states of a job and the table of moves between them. The conformance suite holds every engine to it."""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """Where a job is in its life."""

    PENDING = "PENDING"
    """Waits for its due time, for a worker, or for its next attempt."""
    RUNNING = "RUNNING"
    """A worker has committed its start."""
    COMPLETED = "COMPLETED"
    """Its handler returned."""
    FAILED = "FAILED"
    """Given up: a dead letter, to be looked at, edited and replayed."""
    CANCELED = "CANCELED"
    """Called off before it started, or stopped while it ran."""

    @property
    def is_final(self) -> bool:
        """Whether a job in this state only moves on if somebody asks for it."""
        return self in FINAL


FINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELED})

TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    # to FAILED without a start: expired
    JobStatus.PENDING: frozenset({JobStatus.RUNNING, JobStatus.CANCELED, JobStatus.FAILED}),
    # back to PENDING: a retry, a snooze, an interrupted attempt, a rescue
    JobStatus.RUNNING: FINAL | {JobStatus.PENDING},
    # reopened by an operator
    JobStatus.FAILED: frozenset({JobStatus.PENDING}),
    JobStatus.COMPLETED: frozenset(),
    JobStatus.CANCELED: frozenset(),
}
"""The moves that engines make; the conformance suite tries everything else with each of them."""


def to_status(status: JobStatus | str) -> JobStatus:
    """Convert a name, with an error that lists them."""
    try:
        return JobStatus(status)
    except ValueError:
        raise ValueError(f"status must be one of {', '.join(JobStatus)}, got {status!r}") from None
