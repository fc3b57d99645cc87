"""The job record as it is stored on the server, and its encoding.

A record is encoded as an array of its fields: a field that is added at the end keeps older records readable. The
record of a deleted job is empty, and expires after a while.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from mainspring.jobs.records import JobRecord, NewJob
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transitions import submitted

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class StoredJob(JobRecord, frozen=True, array_like=True):
    """A job as it is stored on the server."""

    place: int = 0
    """Its position in the order of submission."""
    turn: int = 0
    """Its position in a sequence: the due time with which it queued up."""
    nonce: str = ""
    """Identifies the submit: tells it from another submit with the same id."""
    admission: tuple[str, ...] = ()
    """Its state towards its sequence and limits, as `limiters.admission_of` decodes it."""
    keep_result_until: int | None = None
    settled_by: str = ""
    """The nonce of its last outcome: shows that an outcome was stored whose reply was lost."""
    is_start_unreported: bool = False
    """Whether the `started` event of the running attempt was not written yet."""
    is_counted_as_ready: bool = True
    """Whether the limiter of its key counts it while it is ready, so that its start must write the limiter."""

    @property
    def needs_admission(self) -> bool:
        """Whether it is in a sequence or under limits, which must admit it before it is ready."""
        return self.sequence is not None or bool(self.limits)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status not in (JobStatus.PENDING, JobStatus.RUNNING)


_decoder = msgspec.msgpack.Decoder(StoredJob)
_RECORD_FIELDS = tuple(field.name for field in fields(JobRecord))


def encode(value: Struct | list[object] | dict[str, object]) -> bytes:
    """Encode any value that is stored."""
    return _encoder.encode(value)


def decode_job(data: bytes) -> StoredJob:
    """Decode a job."""
    return _decoder.decode(data)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode any other value."""
    return msgspec.msgpack.decode(data, type=kind)


def to_record(job: StoredJob) -> JobRecord:
    """Return the public part of a job's record."""
    return JobRecord(*[getattr(job, name) for name in _RECORD_FIELDS])


def make_job(job: NewJob, *, now: int, place: int, nonce: str) -> StoredJob:
    """Return the record of a new job."""
    return submitted(StoredJob, job, now, place=place, turn=job.due, nonce=nonce)


def change(job: StoredJob, **changes: object) -> StoredJob:
    """Return a job with some fields changed."""
    return replace(job, **changes)
