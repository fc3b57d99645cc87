"""The states of a job, and the table of transitions between them that every engine obeys."""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """The state of a job."""

    PENDING = "PENDING"
    """The job waits for its due time, for a worker, or for its next attempt."""
    RUNNING = "RUNNING"
    """A worker has committed the start of the job."""
    COMPLETED = "COMPLETED"
    """The handler has returned."""
    FAILED = "FAILED"
    """The job was given up. It is a dead letter, which an operator can edit, replay or retry."""
    CANCELED = "CANCELED"
    """The job was canceled before it started, or stopped while it ran."""

    @property
    def is_final(self) -> bool:
        """Whether a job in this state has ended: only a command of an operator can change it."""
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
"""The transitions that engines make. `require_transition` refuses all others; the conformance suite tries them."""


def require_transition(before: JobStatus, after: JobStatus) -> JobStatus:
    """Return the new state; raise `ValueError` if the table does not allow the transition."""
    if after not in TRANSITIONS[before]:
        raise ValueError(f"a job cannot move from {before} to {after}")
    return after


def to_status(status: JobStatus | str) -> JobStatus:
    """Convert the name of a state; the error for an unknown name lists all names."""
    try:
        return JobStatus(status)
    except ValueError:
        raise ValueError(f"status must be one of {', '.join(JobStatus)}, got {status!r}") from None
