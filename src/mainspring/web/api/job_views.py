"""Jobs as the API shows them, and reading of jobs within the rights of a caller.

Invariants
- A job that the caller may not read is answered exactly as a job that does not exist, so that no caller learns
  ids from the difference.
- Values of redacted parameters are not shown: a view is made of a `JobInfo` of the manager, never of a record.
- Arguments and results are JSON, whatever the encoding in the store. Bytes are base64. Data whose serializer this
  process does not have are base64, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from mainspring.errors import JobNotFound, LimitExceeded, NotAllowed
from mainspring.jobs.handle import open_manager
from mainspring.jobs.ids import MAX_ID_LENGTH, require_id
from mainspring.jobs.info import AttemptInfo, JobInfo, ProgressInfo
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus
from mainspring.security.permissions import Scope
from mainspring.web.api.endpoint import ApiCall, Instant
from mainspring.web.api.router import encode_json

PriorityName = Literal["BEST_EFFORT", "USER_VISIBLE", "USER_BLOCKING"]

MAX_TEXT = 10_000
EXAMPLE_ID = "0199c1a27c4e7b1f9a3d5e6f70819203"
JOB_ID = {"id": "The id of the job. A slash in it is written as %2F."}


class AttemptView(Struct, frozen=True, kw_only=True):
    """An attempt that failed, timed out, crashed or was interrupted."""

    number: int
    started: Instant | None
    ended: Instant
    cause: Annotated[str, Meta(description="failure, timeout, crash or deploy.", examples=["failure"])]
    error: str
    worker: Annotated[
        str | None, Meta(description="The name of the worker. Null for attempts of earlier versions.")
    ]


class ProgressView(Struct, frozen=True, kw_only=True):
    """The progress that a handler has reported."""

    done: float
    total: float | None
    note: str | None
    at: Instant


class JobView(Struct, frozen=True, kw_only=True):
    """A job as the API shows it."""

    id: str
    type: str
    queue: str
    priority: PriorityName
    status: JobStatus
    due: Annotated[Instant, Meta(description="When the job may start.")]
    created: Annotated[Instant, Meta(description="When the job was submitted.")]
    started: Annotated[Instant | None, Meta(description="When the last attempt started.")]
    finished: Annotated[Instant | None, Meta(description="When the job ended.")]
    arguments: Annotated[Any, Meta(description="The arguments by name. Bytes are base64.")]
    result: Annotated[Any, Meta(description="What the handler returned; null if there is no result.")]
    error: Annotated[str | None, Meta(description="The last error: a description, and the traceback below.")]
    warning: Annotated[
        str | None, Meta(description="How the result of a COMPLETED job differs from the handler's annotation.")
    ]
    attempts: Annotated[int, Meta(description="How many attempts are used up: failures and timeouts.")]
    starts: int
    failures: int
    timeouts: int
    crashes: int
    interruptions: int
    history: list[AttemptView]
    fencing_token: int
    worker: Annotated[int | None, Meta(description="The number of the worker that has leased the job.")]
    stop_requested: bool
    origin: Annotated[str | None, Meta(description="The id of the dead letter that this job replays.")]
    replayed_as: Annotated[str | None, Meta(description="The id of the job that replays this dead letter.")]
    sequence: str | None
    unique_key: str | None
    limits: Annotated[list[str], Meta(description="Descriptions of the limits that apply to the job.")]
    expires: Annotated[Instant | None, Meta(description="From this instant on the job may not start any more.")]
    schedule: str | None
    occurrence: Instant | None
    headers: dict[str, str]
    progress: ProgressView | None


def to_view(job: JobInfo) -> JobView:
    """Convert a snapshot of a job to the form that the API shows."""
    return JobView(
        id=job.id,
        type=job.type,
        queue=job.queue,
        priority=job.priority.name,  # type: ignore[arg-type] # the names are those of `PriorityName`
        status=job.status,
        due=job.due,
        created=job.created,
        started=job.started,
        finished=job.finished,
        arguments=to_json(job.arguments),
        result=to_json(job.result),
        error=job.error,
        warning=job.warning,
        attempts=job.attempts,
        starts=job.starts,
        failures=job.failures,
        timeouts=job.timeouts,
        crashes=job.crashes,
        interruptions=job.interruptions,
        history=[_attempt(attempt) for attempt in job.history],
        fencing_token=job.fencing_token,
        worker=job.worker,
        stop_requested=job.stop_requested,
        origin=job.origin,
        replayed_as=job.replayed_as,
        sequence=job.sequence,
        unique_key=job.unique_key,
        limits=list(job.limits),
        expires=job.expires,
        schedule=job.schedule,
        occurrence=job.occurrence,
        headers=dict(job.headers),
        progress=None if job.progress is None else _progress(job.progress),
    )


def to_json(value: Any) -> Any:
    """Return arguments or a result as encoded JSON; or their `ascii()` text, cut, if JSON has no form for them."""
    try:
        return msgspec.Raw(encode_json(value))
    except (TypeError, ValueError, RecursionError):  # such as a key that is a tuple, or a lone surrogate
        return ascii(value)[:MAX_TEXT]


def _attempt(attempt: AttemptInfo) -> AttemptView:
    return AttemptView(
        number=attempt.number,
        started=attempt.started,
        ended=attempt.ended,
        cause=attempt.cause,
        error=attempt.error,
        worker=attempt.worker,
    )


def _progress(progress: ProgressInfo) -> ProgressView:
    return ProgressView(done=progress.done, total=progress.total, note=progress.note, at=progress.at)


async def find_job(call: ApiCall[Any, Any], scope: Scope) -> JobRecord:
    """Return the job that the path names, if the caller may do an action of this scope with it.

    Raise `JobNotFound` if there is no such job, or if the caller may neither read it nor do the action. Raise
    `NotAllowed` if the caller may read it only.
    """
    job_id = call.path["id"]
    missing = JobNotFound(job_id=job_id[:MAX_ID_LENGTH])
    try:
        require_id(job_id)
    except (ValueError, LimitExceeded):  # no job can have this id
        raise missing from None
    manager = await open_manager(call.app)
    try:
        record = await call.app.off_loop.read(manager.record, job_id)
    except JobNotFound:
        raise missing from None
    if call.identity.allows(scope, type=record.type, queue=record.queue):
        return record
    if call.identity.allows(Scope.READ, type=record.type, queue=record.queue):
        raise NotAllowed(name=call.identity.name, scope=str(scope), type=record.type, queue=record.queue)
    raise missing


async def view_of(call: ApiCall[Any, Any], record: JobRecord) -> JobView:
    """Convert the record of a job to the form that the API shows, without the values of redacted parameters."""
    manager = await open_manager(call.app)
    (info,) = await call.app.off_loop.read(manager.infos, [record])
    return to_view(info)


EXAMPLE_JOB: dict[str, Any] = {
    "id": EXAMPLE_ID,
    "type": "shop.cancel_order",
    "queue": "orders",
    "priority": "USER_VISIBLE",
    "status": "PENDING",
    "due": "2026-11-17T12:30:00Z",
    "created": "2026-11-17T12:00:00Z",
    "started": None,
    "finished": None,
    "arguments": {"order_id": 42, "reason": "unpaid"},
    "result": None,
    "error": None,
    "warning": None,
    "attempts": 0,
    "starts": 0,
    "failures": 0,
    "timeouts": 0,
    "crashes": 0,
    "interruptions": 0,
    "history": [],
    "fencing_token": 0,
    "worker": None,
    "stop_requested": False,
    "origin": None,
    "replayed_as": None,
    "sequence": "order-42",
    "unique_key": None,
    "limits": [],
    "expires": None,
    "schedule": None,
    "occurrence": None,
    "headers": {},
    "progress": None,
}
