"""Why a job is where it is, in plain words, and what would change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mainspring.jobs.engine import JobRecord, Situation
from mainspring.jobs.instants import to_datetime
from mainspring.jobs.limits import describe_bucket
from mainspring.jobs.status import JobStatus


class Reason(StrEnum):
    """Why a job is where it is."""

    NOT_DUE = "not due"
    RETRYING = "retrying"
    PAUSED = "paused"
    BEHIND = "behind another job of its sequence"
    RATE_LIMITED = "rate limited"
    LIMIT_REACHED = "limit reached"
    NO_WORKER = "no worker"
    UNKNOWN_HANDLER = "no worker knows its handler"
    QUEUED = "queued"
    TAKEN = "taken"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELED = "canceled"
    QUARANTINED = "quarantined"
    EXPIRED = "expired"
    FAILED = "failed"
    UNIQUE_BLOCKED = "blocked by a job with its unique key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job is where it is; `str()` of it is a sentence or two."""

    job_id: str
    status: JobStatus
    reason: Reason
    text: str
    remedy: str | None = None
    """What would change it, if anything has to."""
    until: datetime | None = None
    """When it changes by itself."""
    blocked_by: tuple[str, ...] = ()
    """The jobs it waits for."""

    def __contains__(self, words: str) -> bool:
        return words in str(self)

    def __str__(self) -> str:
        return self.text if self.remedy is None else f"{self.text} {self.remedy}"


def explain(situation: Situation, now: int) -> Explanation:
    """Say why a job is where it is."""
    record = situation.record
    if record.status is JobStatus.PENDING:
        for find in _CAUSES:
            found = find(situation, now)
            if found is not None:
                return found
    return _ended(situation) if record.status.is_final else _running(situation)


def _about(
    record: JobRecord,
    reason: Reason,
    text: str,
    *,
    remedy: str | None = None,
    until: int | None = None,
    blocked_by: tuple[str, ...] = (),
) -> Explanation:
    return Explanation(
        job_id=record.id,
        status=record.status,
        reason=reason,
        text=f"Job {record.id} ({record.type}) {text}",
        remedy=remedy,
        until=None if until is None else to_datetime(until),
        blocked_by=blocked_by,
    )


def _taken(situation: Situation, _now: int) -> Explanation | None:
    record = situation.record
    if record.owner is None:
        return None
    text = f"is in the hands of worker {record.owner} and starts at {_at(record.due)}."
    return _about(record, Reason.TAKEN, text, until=record.due)


def _not_due(situation: Situation, now: int) -> Explanation | None:
    record = situation.record
    if record.due <= now:
        return None
    if record.failures + record.timeouts + record.crashes:
        text = f"is tried again at {_at(record.due)}, after attempt {record.starts}: {_error(record)}."
        return _about(record, Reason.RETRYING, text, until=record.due)
    return _about(record, Reason.NOT_DUE, f"is due at {_at(record.due)}.", until=record.due)


def _paused(situation: Situation, _now: int) -> Explanation | None:
    record = situation.record
    if not situation.is_queue_paused:
        return None
    remedy = f"app.queue({record.queue!r}).resume() lets it go on."
    return _about(record, Reason.PAUSED, f"waits because queue {record.queue!r} is paused.", remedy=remedy)


def _behind(situation: Situation, _now: int) -> Explanation | None:
    record = situation.record
    if situation.behind is None:
        return None
    text = f"waits in sequence {record.sequence!r} behind job {situation.behind}."
    remedy = f"It goes on when that one has ended; app.explain({situation.behind!r}) says how that one is."
    return _about(record, Reason.BEHIND, text, remedy=remedy, blocked_by=(situation.behind,))


def _limited(situation: Situation, _now: int) -> Explanation | None:
    record, bucket = situation.record, situation.full_bucket
    if bucket is None:
        return None
    limit = describe_bucket(bucket)
    if situation.limited_until is not None:
        text = f"is held back by the {limit}, until {_at(situation.limited_until)}."
        return _about(record, Reason.RATE_LIMITED, text, until=situation.limited_until)
    holders = ", ".join(situation.bucket_holders)
    text = f"waits because the {limit}, is reached by {holders}."
    remedy = "It starts when one of them has ended."
    return _about(record, Reason.LIMIT_REACHED, text, remedy=remedy, blocked_by=situation.bucket_holders)


def _unserved(situation: Situation, _now: int) -> Explanation | None:
    record = situation.record
    if situation.workers == 0:
        remedy = "Start one: app.running(), app.run() or `mainspring run module:app`."
        return _about(record, Reason.NO_WORKER, "is due, and no worker is running.", remedy=remedy)
    if situation.knowing_workers == 0:
        text = f"is due, and none of {situation.workers} workers knows the handler {record.type!r}."
        remedy = "Import its module in the worker with Mainspring(include=[...]), or name it as an alias."
        return _about(record, Reason.UNKNOWN_HANDLER, text, remedy=remedy)
    return None


def _queued(situation: Situation, _now: int) -> Explanation | None:
    record = situation.record
    text = (
        f"has been due since {_at(record.due)} and waits for a free place in queue {record.queue!r}; "
        f"{situation.knowing_workers} workers know its handler."
    )
    remedy = "If it stays like this, they are busy or serve other queues: add workers or threads."
    return _about(record, Reason.QUEUED, text, remedy=remedy)


_CAUSES: tuple[Callable[[Situation, int], Explanation | None], ...] = (
    _taken,
    _paused,
    _not_due,
    _behind,
    _unserved,
    _limited,
    _queued,
)


def _running(situation: Situation) -> Explanation:
    record = situation.record
    started = "" if record.started is None else f" since {_at(record.started)}"
    asked = ", and was asked to stop" if record.stop_requested else ""
    text = f"runs{started} on worker {record.owner}{asked}."
    return _about(record, Reason.RUNNING, text)


def _ended(situation: Situation) -> Explanation:
    record = situation.record
    at = "" if record.finished is None else f" at {_at(record.finished)}"
    if record.status is JobStatus.COMPLETED:
        return _about(record, Reason.COMPLETED, f"completed{at}.")
    if record.status is JobStatus.CANCELED:
        return _about(record, Reason.CANCELED, f"was canceled{at}: {_error(record)}.")
    again = f"app.retry({record.id!r}) runs it again."
    if record.replayed_as is not None:
        text = f"failed{at} and was replayed as {record.replayed_as}."
        return _about(record, Reason.FAILED, text, blocked_by=(record.replayed_as,))
    if situation.unique_holder is not None:
        text = f"failed{at}, and cannot run again while job {situation.unique_holder} has its unique key."
        return _about(record, Reason.UNIQUE_BLOCKED, text, blocked_by=(situation.unique_holder,))
    if (record.error or "").startswith("quarantined"):
        text = f"was put into quarantine{at}, a dead letter now: {(_error(record)).removeprefix('quarantined: ')}."
        remedy = f"Find out what kills its process or its worker; then {again}"
        return _about(record, Reason.QUARANTINED, text, remedy=remedy)
    if (record.error or "").startswith("expired"):
        return _about(record, Reason.EXPIRED, f"expired{at}: it did not start within its time.", remedy=again)
    text = f"was given up{at} after attempt {record.starts}: {_error(record)}."
    return _about(record, Reason.FAILED, text, remedy=again)


def _at(instant: int) -> str:
    return f"{to_datetime(instant):%Y-%m-%d %H:%M:%S} UTC"


def _error(record: JobRecord) -> str:
    return (record.error or "no reason is recorded").partition("\n")[0].rstrip(".")
