"""A job as its users see it: aware datetimes, decoded arguments, attempts with their causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from mainspring.jobs.instants import to_datetime
from mainspring.jobs.limits import describe_bucket
from mainspring.jobs.records import Attempt, JobRecord, Progress
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.status import JobStatus
from mainspring.runners.traits import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
    """An attempt that did not end well."""

    number: int
    started: datetime | None
    ended: datetime
    cause: str
    """`failure`, `timeout`, `crash` (its worker died) or `deploy` (interrupted by a shutdown; uses up nothing)."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressInfo:
    """How far a handler has come, by its own account."""

    done: float
    total: float | None
    note: str | None
    at: datetime

    @property
    def share(self) -> float | None:
        """The part that is done, from 0 to 1; None if nobody knows the total."""
        return None if not self.total else self.done / self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A snapshot of a job."""

    id: str
    type: str
    queue: str
    priority: Priority
    status: JobStatus
    due: datetime
    created: datetime
    started: datetime | None
    """The last start."""
    finished: datetime | None
    arguments: Any
    result: Any
    error: str | None
    """The last error: what happened in the first line, where below."""
    starts: int
    failures: int
    timeouts: int
    crashes: int
    interruptions: int
    history: tuple[AttemptInfo, ...]
    fencing_token: int
    worker: int | None
    """The incarnation that holds it."""
    stop_requested: bool
    origin: str | None
    """The dead letter of which it is a replay."""
    replayed_as: str | None
    sequence: str | None
    unique_key: str | None
    limits: tuple[str, ...]
    """The limits that it is under, in words."""
    expires: datetime | None
    schedule: str | None
    occurrence: datetime | None
    headers: Mapping[str, str]
    progress: ProgressInfo | None

    @property
    def attempts(self) -> int:
        """How many attempts it has used up: failures and timeouts."""
        return self.failures + self.timeouts

    @property
    def lateness(self) -> float | None:
        """Seconds between its due time and its last start."""
        return None if self.started is None else (self.started - self.due).total_seconds()


def to_info(record: JobRecord) -> JobInfo:
    """Make a snapshot of what the store has."""
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
        arguments=decode_any(record.payload, record.codec),
        result=None if record.result is None else decode_any(record.result, record.codec),
        error=record.error,
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
    )


def decode_any(data: bytes, codec: str) -> Any:
    """Decode to plain data; what cannot be read is shown as it is."""
    try:
        decode = msgspec.json.decode if codec == JsonSerializer.name else msgspec.msgpack.decode
        return decode(data)
    except msgspec.MsgspecError:
        return data


def _progress(progress: Progress) -> ProgressInfo:
    return ProgressInfo(done=progress.done, total=progress.total, note=progress.note, at=to_datetime(progress.at))


def _attempt(attempt: Attempt) -> AttemptInfo:
    return AttemptInfo(
        number=attempt.number,
        started=_optional(attempt.started),
        ended=to_datetime(attempt.ended),
        cause=attempt.cause,
        error=attempt.error,
    )


def _optional(instant: int | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


class JobPage(list[JobInfo]):
    """A list of jobs, and where the next one begins: `app.jobs(after=page.next)`; None at the end."""

    def __init__(self, jobs: list[JobInfo], next: str | None) -> None:  # noqa: A002 - reads as page.next
        super().__init__(jobs)
        self.next = next
