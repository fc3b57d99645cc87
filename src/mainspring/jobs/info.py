"""Snapshots of jobs for users, with aware datetimes, decoded arguments, and the causes of failed attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainspring.jobs.limits import describe_bucket
from mainspring.jobs.records import Attempt, JobRecord, Progress
from mainspring.jobs.serializers import BUILT_IN, Serializers
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import to_datetime
from mainspring.runners.task import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
    """A past attempt of a job that failed, timed out, crashed or was interrupted."""

    number: int
    started: datetime | None
    ended: datetime
    cause: str
    """The cause: `failure`, `timeout`, `crash` (worker or process died) or `deploy` (a shutdown interrupted it).

    Only failures and timeouts use up attempts.
    """
    error: str
    worker: str | None = None
    """The name of the worker; its number, if its name was not known any more; None in older records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressInfo:
    """The progress that a handler has reported last."""

    done: float
    total: float | None
    note: str | None
    at: datetime

    @property
    def share(self) -> float | None:
        """The part of the work that is done, such as 0.5; None if the handler reported no total, or 0.

        It is more than 1 if the handler reported more than the total.
        """
        return None if not self.total else self.done / self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A snapshot of a job for users, as it was when it was read."""

    id: str
    type: str
    queue: str
    priority: Priority
    status: JobStatus
    due: datetime
    created: datetime
    started: datetime | None
    """The instant at which the last attempt started; None if none has."""
    finished: datetime | None
    arguments: Any
    result: Any
    error: str | None
    """The last error: a description in the first line, the traceback below; None if there is none."""
    starts: int
    failures: int
    timeouts: int
    crashes: int
    interruptions: int
    history: tuple[AttemptInfo, ...]
    fencing_token: int
    worker: int | None
    """The number of the worker that has leased the job; None if none has."""
    stop_requested: bool
    origin: str | None
    """The id of the dead letter that this job replays."""
    replayed_as: str | None
    sequence: str | None
    unique_key: str | None
    limits: tuple[str, ...]
    """Descriptions of the limits that apply to the job."""
    expires: datetime | None
    """When the job becomes a dead letter if it has not started by then. None if it does not expire, as after a
    start."""
    schedule: str | None
    occurrence: datetime | None
    headers: Mapping[str, str]
    progress: ProgressInfo | None
    warning: str | None = None
    """For a COMPLETED job: how its result does not match the return annotation, or changed in the store."""

    @property
    def attempts(self) -> int:
        """How many attempts the job has used up. Failures and timeouts count; crashes and interruptions do not."""
        return self.failures + self.timeouts

    @property
    def updated(self) -> datetime:
        """The latest instant of a submit, a start, a progress report, the end of an attempt or of the job."""
        progress = None if self.progress is None else self.progress.at
        known = (self.created, self.started, self.finished, progress, *(attempt.ended for attempt in self.history))
        return max(instant for instant in known if instant is not None)

    @property
    def lateness(self) -> float | None:
        """The seconds from the due time to the start of the last attempt.

        None if no attempt has started since the due time: the job has not started, or waits for its next attempt.
        """
        if self.started is None or self.started < self.due:
            return None
        return (self.started - self.due).total_seconds()


def to_info(record: JobRecord, serializers: Serializers = BUILT_IN) -> JobInfo:
    """Make a snapshot of a stored job for users.

    Arguments and results that no serializer here can decode stay bytes.
    """
    is_completed = record.status is JobStatus.COMPLETED
    return JobInfo(
        id=record.id,
        type=record.type,
        queue=record.queue,
        priority=Priority(record.priority),
        status=record.status,
        due=to_datetime(record.due),
        created=to_datetime(record.created),
        started=_optional(record.started),
        finished=_optional(record.finished),
        arguments=serializers.decode_any(record.payload, record.codec),
        result=None if record.result is None else serializers.decode_any(record.result, record.codec),
        error=None if is_completed else record.error,
        starts=record.starts,
        failures=record.failures,
        timeouts=record.timeouts,
        crashes=record.crashes,
        interruptions=record.interruptions,
        history=tuple(_attempt(attempt) for attempt in record.history),
        fencing_token=record.token,
        worker=record.owner,
        stop_requested=record.stop_requested,
        origin=record.origin,
        replayed_as=record.replayed_as,
        sequence=record.sequence,
        unique_key=record.unique_key,
        limits=tuple(describe_bucket(bucket) for bucket in record.limits),
        expires=_optional(record.expires),
        schedule=record.schedule,
        occurrence=_optional(record.occurrence),
        headers=record.headers or {},
        progress=None if record.progress is None else _progress(record.progress),
        warning=record.error if is_completed else None,
    )


def _progress(progress: Progress) -> ProgressInfo:
    return ProgressInfo(done=progress.done, total=progress.total, note=progress.note, at=to_datetime(progress.at))


def _attempt(attempt: Attempt) -> AttemptInfo:
    return AttemptInfo(
        number=attempt.number,
        started=_optional(attempt.started),
        ended=to_datetime(attempt.ended),
        cause=attempt.cause,
        error=attempt.error,
        worker=attempt.worker,
    )


def _optional(instant: int | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


class JobPage(list[JobInfo]):
    """A page of a list of jobs.

    `app.jobs(after=page.next)` returns the next page. On the last page, `next` is None.

    A search by arguments or text reads a limited number of jobs for each page. If the page is not full by then,
    `is_complete` is False, and `page.next` continues the search.
    """

    def __init__(
        self,
        jobs: Iterable[JobInfo],
        next: str | None,  # noqa: A002 - reads as page.next
        *,
        is_complete: bool = True,
        scanned: int = 0,
        reached: datetime | None = None,
    ) -> None:
        super().__init__(jobs)
        self.next = next
        self.is_complete = is_complete
        """False if the search stopped before the page was full and before it had read all jobs."""
        self.scanned = scanned
        """How many jobs the search has read for this page; 0 for a list without arguments and text."""
        self.reached = reached
        """The submit time of the last job that the search has read; None if no search has read a job."""
