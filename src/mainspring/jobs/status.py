"""The states of a job and the one table of moves between them. Every engine refuses everything else."""

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
    # to FAILED without a start: expired, quarantined
    JobStatus.PENDING: frozenset({JobStatus.RUNNING, JobStatus.CANCELED, JobStatus.FAILED}),
    # back to PENDING: a retry, a snooze, an interrupted attempt, a rescue
    JobStatus.RUNNING: FINAL | {JobStatus.PENDING},
    # reopened by an operator
    JobStatus.FAILED: frozenset({JobStatus.PENDING}),
    JobStatus.COMPLETED: frozenset(),
    JobStatus.CANCELED: frozenset(),
}


def may_become(before: JobStatus, after: JobStatus) -> bool:
    """Answer whether the table allows this move."""
    return after in TRANSITIONS[before]


def to_status(status: JobStatus | str) -> JobStatus:
    """Convert a name, with an error that lists them."""
    try:
        return JobStatus(status)
    except ValueError:
        raise ValueError(f"status must be one of {', '.join(JobStatus)}, got {status!r}") from None
