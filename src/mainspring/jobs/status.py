"""The statuses of a job, and the table of transitions between them that every engine obeys."""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """The state of a job."""

    PENDING = "PENDING"
    """The job waits: for its due time, its next attempt, its sequence, its limits, a paused queue, or a worker."""
    RUNNING = "RUNNING"
    """A worker has committed the start of the job."""
    COMPLETED = "COMPLETED"
    """The handler has returned. Its result is stored, if the handler keeps results (`keep_result=`)."""
    FAILED = "FAILED"
    """The job will not be tried again, for example because no attempt is left, or because it expired.

    Until it is replayed, it is a dead letter: an operator can edit, replay or retry it.
    """
    CANCELED = "CANCELED"
    """The job was canceled before it started or while it ran, or its handler raised `Cancel`."""

    @property
    def is_final(self) -> bool:
        """Whether a job with this status has ended.

        Only a retry by an operator can make a FAILED job PENDING again.
        """
        return self in FINAL


FINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELED})

TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    # to FAILED without a start if the job expires
    JobStatus.PENDING: frozenset({JobStatus.RUNNING, JobStatus.CANCELED, JobStatus.FAILED}),
    # back to PENDING for a retry, and after a snooze, an interrupted attempt, a rescue or a hand-back
    JobStatus.RUNNING: FINAL | {JobStatus.PENDING},
    # an operator reopens the job
    JobStatus.FAILED: frozenset({JobStatus.PENDING}),
    JobStatus.COMPLETED: frozenset(),
    JobStatus.CANCELED: frozenset(),
}
"""The transitions that engines make. `require_transition` refuses all others; the conformance suite tries them."""


def require_transition(before: JobStatus, after: JobStatus) -> JobStatus:
    """Return the new status `after`; raise `ValueError` if a job with the status `before` cannot get it."""
    if after not in TRANSITIONS[before]:
        raise ValueError(f"the status of a job cannot change from {before} to {after}")
    return after


def to_status(status: JobStatus | str) -> JobStatus:
    """Convert a name, in capitals or not, to a status. Raises `ValueError` for an unknown name."""
    try:
        return JobStatus(str(status).upper())
    except ValueError:
        raise ValueError(f"status must be one of {', '.join(JobStatus)}, got {status!r}") from None
