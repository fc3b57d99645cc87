"""Explains the state of a job: why it waits, runs or has ended, and what a user can do to change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from shlex import quote

from msgspec import Struct

from mainspring.jobs.callback_pauses import LONGEST_SPREAD, CallbackPauseRecord
from mainspring.jobs.commands import PutLimit
from mainspring.jobs.engine import Situation
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.job_policies import timeout_of
from mainspring.jobs.limits import Bucket, describe_bucket, family_of
from mainspring.jobs.records import JobRecord, WorkerRecord
from mainspring.jobs.retry import Retry
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import describe_distance, describe_duration, to_datetime
from mainspring.similar_names import find_similar

OVERTIME = "A handler on a thread cannot be killed: the thread is busy until the handler returns."
START_ONE = "Start one: app.running(), app.run() or `mainspring run module:app`."
START_REMOTE = "Start one: a program that enrolls with POST /api/v1/workers, as docs/http-workers.md shows."


class Reason(StrEnum):
    """A kind of reason why a job waits, runs or has ended: see `Explanation`."""

    NOT_DUE = "not due"
    RETRYING = "retrying"
    PAUSED = "paused"
    BEHIND = "behind another job of its sequence"
    RATE_LIMITED = "rate limited"
    LIMIT_REACHED = "limit reached"
    NO_WORKER = "no worker"
    UNKNOWN_HANDLER = "no worker knows its handler"
    UNSERVED_QUEUE = "no worker serves its queue"
    NOT_DELIVERED = "not delivered by the store"
    QUEUED = "queued"
    TAKEN = "taken"
    RUNNING = "running"
    OVERTIME = "running past its timeout"
    ABANDONED = "its worker is gone"
    COMPLETED = "completed"
    CANCELED = "canceled"
    QUARANTINED = "quarantined"
    EXPIRED = "expired"
    FAILED = "failed"
    NO_REMOTE_WORKER = "no remote worker"
    UNIQUE_BLOCKED = "blocked by a job with its unique key"
    RECEIVER_PAUSED = "its receiver is paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job has its status. `str()` returns one or two sentences for users."""

    job_id: str
    status: JobStatus
    reason: Reason
    text: str
    remedy: str | None = None
    """The action by which a user can change this status from Python; None if none is necessary."""
    until: datetime | None = None
    """The instant at which the status changes without any action; None if it is unknown."""
    blocked_by: tuple[str, ...] = ()
    """The ids of the jobs that this one waits for, that hold its unique key, or that replay it."""

    def __contains__(self, words: str) -> bool:
        return words in str(self)

    def __str__(self) -> str:
        return self.text if self.remedy is None else f"{self.text} {self.remedy}"


class _JobFacts(Struct, frozen=True):
    """The input of an explanation: a job, the facts in the store about it, the live workers, and the limits."""

    situation: Situation
    workers: Sequence[WorkerRecord]
    """The workers that are not known to be dead."""
    limits: Sequence[PutLimit]
    now: int
    is_remote: bool = False
    """Whether remote workers run the jobs of this type, as the application declares."""
    retry: Retry | None = None
    """The retry policy of the job; None if this process does not know the handler."""
    pause: CallbackPauseRecord | None = None
    """The pause of the receiver, if the job is a callback; None if there is none."""

    @property
    def record(self) -> JobRecord:
        return self.situation.record

    @property
    def owner(self) -> WorkerRecord | None:
        """The worker that has leased the job; None if none has, or if that worker is dead."""
        return next((worker for worker in self.workers if worker.number == self.record.owner), None)

    @property
    def with_handler(self) -> list[WorkerRecord]:
        """The workers that have the handler of the job."""
        return [worker for worker in self.workers if self.record.type in worker.info.types]

    @property
    def able(self) -> list[WorkerRecord]:
        """The workers that have the handler of the job and serve its queue."""
        return [worker for worker in self.with_handler if worker.info.serves(self.record.queue)]

    def at(self, instant: int | None) -> str:
        """Format an instant, with its distance from now: `2026-05-01 12:00:00 UTC (in 5 min)`."""
        if instant is None:
            return "an unknown time"
        return f"{to_datetime(instant):%Y-%m-%d %H:%M:%S} UTC ({describe_distance(instant, self.now)})"

    def explain(
        self,
        reason: Reason,
        text: str,
        *,
        remedy: str | None = None,
        until: int | None = None,
        blocked_by: tuple[str, ...] = (),
    ) -> Explanation:
        """Make an explanation of this job. `text` continues the sentence "Job … (type)"."""
        record = self.record
        return Explanation(
            job_id=record.id,
            status=record.status,
            reason=reason,
            text=f"Job {record.id} ({record.type}) {text}",
            remedy=remedy,
            until=None if until is None else to_datetime(until),
            blocked_by=blocked_by,
        )


def explain(
    situation: Situation,
    workers: Sequence[WorkerRecord],
    limits: Sequence[PutLimit],
    now: int,
    *,
    front: Situation | None = None,
    registry: HandlerRegistry | None = None,
    pause: CallbackPauseRecord | None = None,
) -> Explanation:
    """Explain the state of a job. `workers` and `limits` are all workers and limits in the store.

    `situation` has the facts in the store about the job. `front` has those about the job that this one waits for
    in its sequence; the explanation then covers that job, too. `registry` has the handlers of the application.
    `pause` is the pause of the receiver of the job, if it is a callback.
    """
    found = _explain(situation, workers, limits, now, registry, pause)
    if found.reason is not Reason.BEHIND or front is None:
        return found
    ahead = _explain(front, workers, limits, now, registry)
    blocked_by = tuple(dict.fromkeys((*found.blocked_by, *ahead.blocked_by)))
    return replace(found, text=f"{found.text} {ahead.text}", blocked_by=blocked_by)


def _explain(  # noqa: PLR0917 - the facts
    situation: Situation,
    workers: Sequence[WorkerRecord],
    limits: Sequence[PutLimit],
    now: int,
    registry: HandlerRegistry | None,
    pause: CallbackPauseRecord | None = None,
) -> Explanation:
    alive = [worker for worker in workers if not worker.is_gone]
    record = situation.record
    is_remote = registry is not None and record.type in registry.remote_names()
    retry = None if registry is None else registry.retry_of(record.type, record.headers)
    facts = _JobFacts(situation, alive, limits, now, is_remote, retry, pause)
    if facts.record.status is JobStatus.PENDING:
        for find in _CAUSES:
            found = find(facts)
            if found is not None:
                return found
    return _ended(facts) if facts.record.status.is_final else _running(facts)


def _taken(facts: _JobFacts) -> Explanation | None:
    record = facts.record
    if record.owner is None:
        return None
    if facts.owner is None:
        return _abandoned(facts, "was taken")
    text = f"is leased to worker {facts.owner.info.name} and starts at {facts.at(record.due)}."
    return facts.explain(Reason.TAKEN, text, until=record.due)


def _abandoned(facts: _JobFacts, how: str) -> Explanation:
    text = f"{how} by worker {facts.record.owner}, which is gone; another worker takes it over within seconds."
    remedy = None
    if not facts.workers:
        text = f"{how} by worker {facts.record.owner}, which is gone, and no other worker is running."
        remedy = START_ONE
    return facts.explain(Reason.ABANDONED, text, remedy=remedy)


def _receiver_paused(facts: _JobFacts) -> Explanation | None:
    pause = facts.pause
    if pause is None:
        return None
    ends = max(pause.until, pause.probe_until)
    if facts.record.due > max(facts.now, ends) + LONGEST_SPREAD:
        return None  # the job is due later anyway
    whom = pause.host if pause.url is None else pause.url
    of = "" if pause.type is None or pause.url is not None else f" of the type {pause.type!r}"
    why = "has not answered a probe" if pause.status is None else f"has answered with {pause.status}"
    if pause.until > facts.now:
        when = f"gets no requests{of} until {facts.at(pause.until)}, and then one as a probe"
    else:
        when = f"gets one request{of} as a probe; the others follow when it has succeeded"
    due = f" The job is due at {facts.at(facts.record.due)}." if facts.record.due > facts.now else ""
    last = f" Its last attempt: {_error(facts.record)}." if facts.record.error is not None else ""
    return facts.explain(
        Reason.RECEIVER_PAUSED,
        f"waits because its receiver is paused: {whom} {why} and {when}.{due}{last}",
        remedy=f"app.resume_callbacks({pause.host!r}) or app.run_now({facts.record.id!r}) lifts the pause.",
        until=max(facts.record.due, pause.until) if pause.until > facts.now else None,
    )


def _not_due(facts: _JobFacts) -> Explanation | None:
    record = facts.record
    if record.due <= facts.now:
        return None
    if record.failures + record.timeouts + record.crashes:
        text = f"is tried again at {facts.at(record.due)}, after attempt {record.starts}: {_error(record)}."
        if facts.retry is not None:
            text += f" Its policy: {facts.retry}."
        return facts.explain(Reason.RETRYING, text, until=record.due)
    note = None if record.progress is None else record.progress.note
    why = "" if note is None else f", after attempt {record.starts}: {note}"
    return facts.explain(Reason.NOT_DUE, f"is due at {facts.at(record.due)}{why}.", until=record.due)


def _paused(facts: _JobFacts) -> Explanation | None:
    record = facts.record
    if not facts.situation.is_queue_paused:
        return None
    due = f"; it is due at {facts.at(record.due)}" if record.due > facts.now else ""
    remedy = f"app.queue({record.queue!r}).resume() lets it go on."
    return facts.explain(Reason.PAUSED, f"waits because queue {record.queue!r} is paused{due}.", remedy=remedy)


def _not_delivered(facts: _JobFacts) -> Explanation | None:
    hindrance = facts.situation.hindrance
    if hindrance is None:
        return None
    text = f"has been due since {facts.at(facts.record.due)}, and does not start: {hindrance.text}."
    return facts.explain(Reason.NOT_DELIVERED, text, remedy=hindrance.remedy)


def _behind(facts: _JobFacts) -> Explanation | None:
    behind = facts.situation.behind
    if behind is None:
        return None
    text = f"waits in sequence {facts.record.sequence!r} behind job {behind}, and goes on when that one has ended."
    remedy = f"app.explain({behind!r}) explains the state of that job."
    return facts.explain(Reason.BEHIND, text, remedy=remedy, blocked_by=(behind,))


def _limited(facts: _JobFacts) -> Explanation | None:
    situation = facts.situation
    if situation.full_bucket is None:
        return None
    limit = f"{describe_bucket(situation.full_bucket)}{_size(facts, situation.full_bucket)}"
    if situation.limited_until is not None:
        text = f"is held back by the {limit}, until {facts.at(situation.limited_until)}."
        return facts.explain(Reason.RATE_LIMITED, text, until=situation.limited_until)
    holders = situation.bucket_holders
    those = "that one has ended" if len(holders) == 1 else "one of them has ended"
    by = f" by {', '.join(holders)}; it can start when {those}" if holders else ""
    text = f"waits because the {limit} is reached{by}."
    return facts.explain(Reason.LIMIT_REACHED, text, blocked_by=holders)


def _size(facts: _JobFacts, bucket: Bucket) -> str:
    """Return in words how much a limit allows, given with its key (as a bucket), such as ` (10 in 1 min)` or ` (5
    at once)`.
    """
    for limit in facts.limits:
        if limit.family == family_of(bucket):
            allowed = "at once" if limit.per is None else f"in {describe_duration(limit.per)}"
            return f" ({limit.most:,} {allowed})"
    return ""  # the limit was deleted just now


def _unserved(facts: _JobFacts) -> Explanation | None:
    record = facts.record
    due = f"has been due since {facts.at(record.due)}"
    if facts.is_remote and not facts.with_handler:
        text = f"{due}, and no remote worker serves its type {record.type!r}."
        return facts.explain(Reason.NO_REMOTE_WORKER, text, remedy=START_REMOTE)
    if not facts.workers:
        return facts.explain(Reason.NO_WORKER, f"{due}, and no worker is running.", remedy=START_ONE)
    if not facts.with_handler:
        whom = (
            "the one worker does not know"
            if len(facts.workers) == 1
            else f"none of {len(facts.workers)} workers knows"
        )
        remedy = "Import the handler's module in the worker with Mainspring(include=[...]), or add an alias."
        similar = find_similar(record.type, {name for worker in facts.workers for name in worker.info.types})
        like = f"; a handler with a similar name is {similar[0]!r}" if similar else ""
        text = f"{due}, and {whom} its handler {record.type!r}{like}."
        return facts.explain(Reason.UNKNOWN_HANDLER, text, remedy=remedy)
    return None if facts.able else _queue_unserved(facts, due)


def _queue_unserved(facts: _JobFacts, due: str) -> Explanation:
    queue = facts.record.queue
    is_served = any(worker.info.serves(queue) for worker in facts.workers)
    whom = "no worker that knows its handler serves" if is_served else "no worker serves"
    served = ", ".join(sorted({repr(name) for worker in facts.with_handler for name in worker.info.queues or ()}))
    text = f"{due}, and {whom} queue {queue!r}; the workers that know its handler serve {served or 'no queue'}."
    remedy = f"Start a worker that serves it: `mainspring run module:app --queues {quote(queue)}`."
    if facts.is_remote:
        remedy = f"Start a remote worker that enrolls for the queue {queue!r}."
    return facts.explain(Reason.UNSERVED_QUEUE, text, remedy=remedy)


def _queued(facts: _JobFacts) -> Explanation:
    record, able = facts.record, len(facts.able)
    them = "one worker serves it and knows" if able == 1 else f"{able} workers serve it and know"
    text = (
        f"has been due since {facts.at(record.due)} and waits for a free slot in queue {record.queue!r}; "
        f"{them} its handler."
    )
    remedy = "If the job keeps waiting, all these workers are busy: add workers or threads."
    return facts.explain(Reason.QUEUED, text, remedy=remedy)


_CAUSES: tuple[Callable[[_JobFacts], Explanation | None], ...] = (
    _taken,
    _paused,
    _receiver_paused,
    _not_due,
    _not_delivered,
    _behind,
    _unserved,
    _limited,
    _queued,
)


def _running(facts: _JobFacts) -> Explanation:
    record = facts.record
    if facts.owner is None:
        return _abandoned(facts, "was run")
    since = f"has been running since {facts.at(record.started)} on worker {facts.owner.info.name}"
    asked = ", and was asked to stop" if record.stop_requested else ""
    timeout = timeout_of(record.headers, facts.owner.info.timeouts.get(record.type))
    if timeout is None or record.started is None or facts.now - record.started <= timeout:
        return facts.explain(Reason.RUNNING, f"{since}{asked}.")
    text = f"{since}, which is past its timeout of {describe_duration(timeout)}{asked}. {OVERTIME}"
    remedy = "Let the handler check current_job().cancelled, or use execution='process', which can be killed."
    if facts.owner.info.remote is not None:
        remedy = "Let the remote worker obey the answers to its heartbeats."
    return facts.explain(Reason.OVERTIME, text, remedy=remedy)


def _ended(facts: _JobFacts) -> Explanation:
    record = facts.record
    at = f"at {facts.at(record.finished)}"
    if record.status is JobStatus.COMPLETED:
        return facts.explain(Reason.COMPLETED, f"completed {at}.")
    if record.status is JobStatus.CANCELED:
        why = "" if record.error is None else f": {_error(record)}"
        return facts.explain(Reason.CANCELED, f"was canceled {at}{why}.")
    again = f"app.retry({record.id!r}) runs it again."
    if record.replayed_as is not None:
        text = f"failed {at} and was replayed as {record.replayed_as}."
        return facts.explain(Reason.FAILED, text, blocked_by=(record.replayed_as,))
    holder = facts.situation.unique_holder
    if holder is not None:
        text = f"failed {at}, and cannot run again while job {holder} has its unique key {record.unique_key!r}."
        return facts.explain(Reason.UNIQUE_BLOCKED, text, blocked_by=(holder,))
    if (record.error or "").startswith("quarantined"):
        text = f"was put into quarantine {at}, a dead letter now: {_error(record).removeprefix('quarantined: ')}."
        remedy = f"Find out what kills its process or its worker; then {again}"
        return facts.explain(Reason.QUARANTINED, text, remedy=remedy)
    if (record.error or "").startswith("expired"):
        return facts.explain(Reason.EXPIRED, f"expired {at}: it did not start within its time.", remedy=again)
    text = f"was given up {at}, after attempt {record.starts}: {_error(record)}."
    return facts.explain(Reason.FAILED, text, remedy=again)


def _error(record: JobRecord) -> str:
    return (record.error or "no reason is recorded").partition("\n")[0].rstrip(".")
