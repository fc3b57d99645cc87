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
    """The record of a job as it is stored on the server, with fields that only this engine uses."""

    place: int = 0
    """The position of the job in the order of submission."""
    turn: int = 0
    """The position of the job in its sequence: the due time with which it queued up."""
    nonce: str = ""
    """A value that identifies the submit, to tell it from another submit with the same job id."""
    admission: tuple[str, ...] = ()
    """How far the sequence and the limits have admitted the job, as `limiters.admission_of` decodes it."""
    keep_result_until: int | None = None
    settled_by: str = ""
    """The random text (nonce) of the last outcome. It shows that an outcome was stored if its reply was lost."""
    is_start_unreported: bool = False
    """Whether the `started` event of the running attempt was not written yet."""
    is_counted_as_ready: bool = True
    """Whether a limiter counts the job while it is ready, so that its start must write the limiter's record."""
    at_most_once: bool = False
    """Whether the last start said that the job must not start a second time: see `Demand.at_most_once`."""

    search: tuple[str, ...] = ()
    """The search keys of the job, for the projection: see `NewJob.search`."""
    stop_asked: int | None = None
    """When the running attempt was asked to stop; without meaning unless `stop_requested`. None if a process of
    version 0.1 has asked."""

    @property
    def needs_admission(self) -> bool:
        """Whether the job is in a sequence or under limits, which must admit it before a worker gets it."""
        return self.sequence is not None or bool(self.limits)

    @property
    def is_over(self) -> bool:
        """Whether the job has ended: it is COMPLETED, FAILED or CANCELED."""
        return self.status not in (JobStatus.PENDING, JobStatus.RUNNING)


_decoder = msgspec.msgpack.Decoder(StoredJob)
_RECORD_FIELDS = tuple(field.name for field in fields(JobRecord))


def encode(value: Struct | list[object] | dict[str, object]) -> bytes:
    """Encode a value as msgpack for the store."""
    return _encoder.encode(value)


def decode_job(data: bytes) -> StoredJob:
    """Decode a stored job record."""
    return _decoder.decode(data)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a stored value of the given kind, other than a job record."""
    return msgspec.msgpack.decode(data, type=kind)


def to_record(job: StoredJob) -> JobRecord:
    """Return the part of a stored job that all engines share."""
    return JobRecord(**{name: getattr(job, name) for name in _RECORD_FIELDS})


def make_job(job: NewJob, *, now: int, place: int, nonce: str) -> StoredJob:
    """Return the PENDING record of a new job, with its position in the order of submission.

    `nonce` is the random text by which the submit recognizes the jobs that it has stored.
    """
    return submitted(StoredJob, job, now, place=place, turn=job.due, nonce=nonce, search=job.search)


def change(job: StoredJob, **changes: object) -> StoredJob:
    """Return a job with some fields changed."""
    return replace(job, **changes)
