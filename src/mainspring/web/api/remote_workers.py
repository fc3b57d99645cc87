"""The endpoints of remote workers: enroll, claim, settle, heartbeat, direct, leave. See `docs/http-workers.md`.

A worker belongs to the token that enrolled it; for another token it does not exist. Nothing about a worker is kept
in the memory of the server, so each request may go to another server of the same store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from mainspring.errors import NotAllowed, WorkerNotFound
from mainspring.jobs.commands import DirectWorker
from mainspring.jobs.engine import STALE
from mainspring.jobs.processes.messages import AnswerKind, ChildAnswer
from mainspring.jobs.records import Direction, Outcome, Progress, RemoteTerms, WorkerInfo, WorkerRecord
from mainspring.jobs.remote_workers import Held, HeldState, Settled, Settlement
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime, to_microseconds
from mainspring.jobs.worker.error_text import to_storable_text
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.outcomes import OutcomeFactory, for_interruption
from mainspring.security.http_limits import MAX_CLAIMED_JOBS, SHORTEST_LEASE
from mainspring.security.permissions import Identity, Permissions, Scope
from mainspring.similar_names import did_you_mean
from mainspring.web.api.decoding import invalid_value
from mainspring.web.api.endpoint import (
    CREATED,
    OK,
    AnswerType,
    ApiAnswer,
    ApiCall,
    Endpoint,
    Instant,
    NoQuery,
)
from mainspring.web.caller_shares import CallerCounts, CallerShares
from mainspring.web.credentials import Authenticator
from mainspring.web.event_hub import EventHub
from mainspring.web.problems import Problem, Refused, refuse

if TYPE_CHECKING:
    from mainspring.app import Mainspring

MAX_WAIT = 30.0
"""The longest time that a claim may wait for a job, in seconds."""
MAX_CLAIMED = 100
MAX_HELD = MAX_CLAIMED_JOBS
MAX_DIGITS = 18  # of the number of a worker
DEFAULT_LEASE = STALE / MICROSECONDS
BEATS_PER_LEASE = 3

Names = Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(min_length=1, max_length=100)]
JobId = Annotated[str, Meta(min_length=1, max_length=200)]
Token = Annotated[int, Meta(ge=0, le=2**53, description="The fencing token of the claim.")]
Text = Annotated[str, Meta(max_length=100_000)]
Delay = Annotated[float, Meta(ge=0, le=315_360_000)]
HeartbeatEvery = Annotated[
    float, Meta(description="Seconds between two heartbeats: a third of the lease. A server may shorten it.")
]


# -- bodies


class EnrollBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A remote worker that wants to enroll."""

    name: Annotated[
        str, Meta(min_length=1, max_length=200, description="A name for lists and logs.", examples=["images-1"])
    ]
    types: Annotated[
        Names | None,
        Meta(description="The job types that the worker runs; null for all that the token may work on."),
    ] = None
    queues: Annotated[
        Names | None,
        Meta(description="The queues that the worker serves; null for all that the token may work on."),
    ] = None
    lease: Annotated[
        float,
        Meta(
            ge=SHORTEST_LEASE,
            le=3600,
            description="After so many seconds without a heartbeat, the jobs of the worker go to other workers. "
            "The answer has the lease that applies: at most the longest lease of the server.",
        ),
    ] = DEFAULT_LEASE


class ClaimBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs a worker can start now, and how long it waits for the first one."""

    jobs: Annotated[int, Meta(ge=1, le=MAX_CLAIMED)] = 1
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT, description="Seconds to wait, if no job is due.")] = MAX_WAIT


class ProgressBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The progress of a job, as its worker reports it."""

    done: float
    total: float | None = None
    note: Annotated[str, Meta(max_length=1_000)] | None = None


class HeldBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job that a worker runs, as its heartbeat names it."""

    id: JobId
    fencing_token: Token
    progress: ProgressBody | None = None


class HeartbeatBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A heartbeat of a worker, with the jobs that it runs."""

    jobs: Annotated[
        Annotated[list[HeldBody], Meta(max_length=MAX_HELD)] | None,
        Meta(
            description="All jobs that the worker runs. A job that it got a lease ago and does not name runs "
            "again elsewhere. Null if the worker does not say; then a job whose claim was lost stays RUNNING."
        ),
    ] = None


class SettleItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of an attempt, or, for `progress`, a report while it runs."""

    id: JobId
    fencing_token: Token
    outcome: Annotated[
        Literal["completed", "failed", "snoozed", "canceled", "released", "progress"],
        Meta(
            description="`released` gives the job back, and uses up no attempt. `progress` ends nothing: it "
            "stores `progress`."
        ),
    ]
    result: Annotated[Any, Meta(description="For completed: any JSON.")] = None
    error: Annotated[Text | None, Meta(description="For failed: the error. For canceled: the reason.")] = None
    retry: Annotated[bool, Meta(description="For failed: false makes the job a dead letter at once.")] = True
    retry_after: Annotated[
        Delay | None, Meta(description="For failed: seconds until the next attempt, instead of the usual delay.")
    ] = None
    delay: Annotated[Delay | None, Meta(description="For snoozed: seconds until the job is due again.")] = None
    progress: ProgressBody | None = None


class SettleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcomes and reports of jobs that a worker has claimed."""

    jobs: Annotated[list[SettleItem], Meta(min_length=1, max_length=MAX_CLAIMED)]


class DirectBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The direction that an operator gives a remote worker: run, be quiet, or terminate."""

    direction: Direction


# -- answers


class EnrolledView(Struct, frozen=True, kw_only=True):
    """A remote worker that is enrolled, with its number and its lease."""

    number: Annotated[int, Meta(description="The number in the paths of its requests. It is never used again.")]
    name: str
    types: list[str]
    queues: list[str] | None
    lease: float
    heartbeat_every: HeartbeatEvery


class ClaimedJobView(Struct, frozen=True, kw_only=True):
    """A job that a worker has claimed and has to run."""

    id: str
    type: str
    queue: str
    arguments: Any
    attempt: Annotated[int, Meta(description="The number of this attempt, from 1.")]
    fencing_token: Annotated[
        int, Meta(description="Send it with every request about the job. It grows with every claim.")
    ]
    due: Instant
    timeout: Annotated[float | None, Meta(description="How many seconds the attempt may take; null for any.")]
    headers: dict[str, str]


class ClaimedView(Struct, frozen=True, kw_only=True):
    """The answer to a claim: the jobs that the worker has to run, and its direction: to go on, to be quiet or to
    terminate.
    """

    jobs: Annotated[list[ClaimedJobView], Meta(description="Empty if no job came within the wait.")]
    direction: Direction
    heartbeat_every: HeartbeatEvery


class HeldView(Struct, frozen=True, kw_only=True):
    """What a worker has to do about a job that its heartbeat has named."""

    id: str
    fencing_token: int
    state: Annotated[
        Literal["run", "stop", "lost"],
        Meta(
            description="`stop`: end the attempt soon, and settle it. `lost`: the worker does not have the "
            "job any more; stop without a settlement."
        ),
    ]
    reason: Annotated[
        Literal["cancel", "timeout"] | None, Meta(description="Why the attempt must stop; null unless it must.")
    ]


class HeartbeatView(Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat: the worker's direction (to go on, to be quiet or to terminate), and what to do
    about each job that it named.
    """

    direction: Direction
    jobs: list[HeldView]
    heartbeat_every: HeartbeatEvery


class SettledView(Struct, frozen=True, kw_only=True):
    """Whether an outcome was accepted; if so, the status of its job afterwards, else the reason."""

    id: str
    fencing_token: int
    accepted: bool
    status: Annotated[
        JobStatus | None, Meta(description="The status of the job afterwards; null if the outcome was refused.")
    ]
    due: Annotated[Instant | None, Meta(description="For PENDING: when the next attempt is due.")]
    problem: Annotated[str | None, Meta(description="Why the outcome was refused; null if it was accepted.")]


class SettledListView(Struct, frozen=True, kw_only=True):
    """Whether each outcome of a request was accepted, in the order of the request."""

    jobs: list[SettledView]


class LeftView(Struct, frozen=True, kw_only=True):
    """The answer to the removal of a worker, with the jobs whose outcomes it had not reported."""

    number: int
    released: Annotated[list[str], Meta(description="The ids of jobs that it had not settled. They run again.")]


class DirectedView(Struct, frozen=True, kw_only=True):
    """The answer to a new direction of a remote worker: to go on, to be quiet or to terminate."""

    number: int
    direction: Direction


# -- the endpoints


class RemoteWorkerEndpoints:
    """The endpoints of remote workers, and the claims and enrollments that they serve now."""

    def __init__(self) -> None:
        self._shares: CallerShares | None = None  # of waiting claims; made with the limits of the first request
        self._claiming: set[tuple[str, int]] = set()  # the callers and workers whose claims wait
        self._enrolling = CallerCounts()  # the enrollments in progress

    async def enroll(self, call: ApiCall[EnrollBody, NoQuery]) -> ApiAnswer:
        """Enroll a remote worker for job types and queues, and answer its number.

        Raises `NotAllowed` for a type or queue that the token may not work on, and `Refused` for a type that is
        not declared with `app.remote_job`, or if there is no type.
        """
        body, identity = call.body, call.identity
        types = _types_of(call.app, identity, body.types)
        queues = _queues_of(identity, body.queues)
        for type_ in types:
            for queue in queues or (None,):
                identity.require(Scope.WORK, type=type_, queue=queue)
        timeouts = {name: call.app.registry.get(name).longest_run for name in types}
        lease = min(to_microseconds(body.lease, "lease"), _longest_lease(call))
        info = WorkerInfo(
            body.name,
            0,
            types,
            queues,
            {name: timeout for name, timeout in timeouts.items() if timeout is not None},
            remote=RemoteTerms(identity.caller, lease),
        )
        number = await self._enroll(call, info, identity.caller)
        view = EnrolledView(
            number=number,
            name=body.name,
            types=list(types),
            queues=None if queues is None else list(queues),
            lease=lease / MICROSECONDS,
            heartbeat_every=_heartbeat_every(lease),
        )
        return ApiAnswer(content=view, status=CREATED, headers={"Location": f"/api/v1/workers/{number}"})

    async def _enroll(self, call: ApiCall[EnrollBody, NoQuery], info: WorkerInfo, caller: str) -> int:
        """Enroll a worker, unless its caller has as many as it may have: then raise `Refused` (429)."""
        manager, most = call.app.manager(), call.limits.caller_workers
        # Counted before the list is read: the last one of simultaneous requests counts all others.
        with self._enrolling.count(caller) as enrolling:
            workers = await call.app.off_loop.read(manager.engine.workers)
            found = [each.info.remote for each in workers if not each.is_gone]
            own = sum(terms is not None and terms.caller == caller for terms in found)
            if own + enrolling > most:
                raise refuse(
                    429,
                    "too-many-workers",
                    f"this caller has {own:,} remote workers, the limit is {most:,}; let some leave, use another "
                    "token, or raise caller_workers of HttpLimits",
                    retry_after="10",
                )
            return await manager.remote_workers.enroll(info)

    @contextmanager
    def _waiting(self, call: ApiCall[ClaimBody, NoQuery], number: int) -> Iterator[None]:
        """Return a context manager for a claim; raise `Refused` if it would wait, and too many wait already.

        All claims of the server, those of the caller, and those of the worker (one) are counted.
        """
        if not call.body.wait:
            yield
            return
        key = (call.identity.caller, number)
        if key in self._claiming:
            raise refuse(
                429,
                "claim-in-progress",
                f"worker {number} has a claim that waits for jobs; wait for its answer, or claim with wait 0",
                retry_after="1",
            )
        _check_waiting(call)
        if self._shares is None:
            self._shares = CallerShares(
                call.limits,
                limit="waiting_claims",
                problem="too-many-own-claims",
                what="waiting claims",
            )
        with self._shares.use(call.identity.caller):
            self._claiming.add(key)
            try:
                yield
            finally:
                self._claiming.discard(key)

    async def claim(self, call: ApiCall[ClaimBody, NoQuery]) -> ApiAnswer:
        """Claim due jobs for a worker; if none is due, wait for the first one, at most `wait` seconds.

        Answer no jobs if the wait is over, or if the worker was directed to be quiet or to terminate. Raises
        `WorkerNotFound` for a worker of another caller, `TokenInvalid` if the token is revoked or expires while
        the claim waits, and `Refused` if the worker has too many jobs whose outcomes it has not reported, or too
        many claims wait.
        """
        number, caller = _number_of(call), call.identity.caller
        authenticator: Authenticator = call.request.app.state.authenticator
        hub: EventHub = call.request.scope["app"].state.event_hub

        async def is_over() -> bool:
            """Return whether the server stops, or the worker has closed the connection."""
            return hub.is_closed or await call.request.is_disconnected()

        async def authorize() -> Permissions:
            """Return what the caller may do now; raise an error if it may not claim jobs for this worker."""
            identity = await authenticator.identify(call.request.scope)
            if not identity.permissions.has(Scope.WORK):
                raise NotAllowed(name=identity.name, scope=str(Scope.WORK))
            if identity.caller != caller:
                raise WorkerNotFound(number=number)
            return identity.permissions

        app = call.app
        with self._waiting(call, number):
            claimed = await app.manager().remote_workers.claim(
                number,
                caller,
                jobs=call.body.jobs,
                seconds=call.body.wait,
                most_held=call.limits.claimed_jobs,
                longest_lease=_longest_lease(call),
                authorize=authorize,
                is_over=is_over,
            )
        if claimed.is_full:
            raise refuse(
                429,
                "too-many-claimed-jobs",
                f"worker {number} has claimed {call.limits.claimed_jobs:,} jobs that it has not settled, which is "
                "the limit of this server; settle or release jobs before the next claim, or enroll another worker",
            )
        serializers = app.manager().serializers
        views = [
            ClaimedJobView(
                id=job.lease.id,
                type=job.lease.type,
                queue=job.lease.queue,
                arguments=serializers.decode_any(job.lease.payload, job.lease.codec),
                attempt=job.lease.failures + job.lease.timeouts + job.lease.crashes + 1,
                fencing_token=job.lease.token,
                due=to_datetime(job.lease.due),
                timeout=None if job.timeout is None else job.timeout / MICROSECONDS,
                headers=dict(job.lease.headers or {}),
            )
            for job in claimed.jobs
        ]
        return ApiAnswer(
            content=ClaimedView(
                jobs=views, direction=claimed.direction, heartbeat_every=_heartbeat_every(claimed.lease)
            )
        )

    async def settle(self, call: ApiCall[SettleBody, NoQuery]) -> ApiAnswer:
        """Store outcomes and progress of jobs, and answer which were accepted.

        Raises `Refused` if none was accepted, if a job is named twice, or if a field does not fit its outcome.
        """
        number, caller = _number_of(call), call.identity.caller
        items = call.body.jobs
        _require_once(items)
        remote, now = call.app.manager().remote_workers, call.app.manager().engine.now()
        reports = [each for each in items if each.outcome == "progress"]
        ends = [each for each in items if each.outcome != "progress"]
        settlements = [_settlement_of(each) for each in ends]
        held = [_held_of(each, now) for each in reports]
        answers = await remote.report(number, caller, held) if held else []
        answers += await remote.settle(number, caller, settlements) if settlements else []
        by_id = {answer.id: answer for answer in answers}
        view = SettledListView(jobs=[_settled_view(by_id[each.id]) for each in items])
        if not any(each.accepted for each in view.jobs):
            raise _lost(view.jobs)
        return ApiAnswer(content=view)

    async def heartbeat(self, call: ApiCall[HeartbeatBody, NoQuery]) -> ApiAnswer:
        """Store a worker's heartbeat and the progress of its jobs; answer which jobs it must stop or has lost.

        If the body has a list of jobs, a job that the worker got a lease ago and that the list lacks runs again
        elsewhere. Raises `WorkerNotFound` for a worker of another caller, and `Refused` if a job is named twice.
        """
        number, caller = _number_of(call), call.identity.caller
        manager = call.app.manager()
        now = manager.engine.now()
        if call.body.jobs is not None:
            _require_once(call.body.jobs)
        held = None if call.body.jobs is None else [_held_of(each, now) for each in call.body.jobs]
        beaten = await manager.remote_workers.beat(number, caller, held, longest_lease=_longest_lease(call))
        views = [_held_view(each) for each in beaten.jobs]
        return ApiAnswer(
            content=HeartbeatView(
                direction=beaten.direction, jobs=views, heartbeat_every=_heartbeat_every(beaten.lease)
            )
        )

    async def leave(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Remove a worker, and answer the ids of the jobs that it was running, which run again elsewhere.

        A caller with the scope `work` removes a worker of its own, which ends; an operator any remote worker, and
        other workers that are silent or dead. Raises `WorkerNotFound` if there is no such worker for the caller,
        `WorkerAlive` for a living worker of the application, and `NotAllowed` unless an operator may operate on
        all types and queues of the worker.
        """
        number, identity = _number_of(call), call.identity
        remote = call.app.manager().remote_workers
        if identity.permissions.has(Scope.WORK) and await remote.has(number, identity.caller):
            released = await remote.leave(number, identity.caller)
        elif identity.permissions.has(Scope.OPERATE):
            released = await remote.remove(number, partial(_require_operator, identity))
        else:
            raise WorkerNotFound(number=number)
        return ApiAnswer(content=LeftView(number=number, released=released))

    async def direct(self, call: ApiCall[DirectBody, NoQuery]) -> ApiAnswer:
        """Store the direction of a remote worker: run, be quiet or terminate.

        The worker learns it from the answer to its next claim or heartbeat. Raises `WorkerNotFound` if there is no
        such remote worker, and `NotAllowed` unless the caller may operate on all of its types and queues.
        """
        number, direction = _number_of(call), call.body.direction
        manager = call.app.manager()
        found = [each for each in await call.app.off_loop.read(manager.engine.workers) if each.number == number]
        if not found or found[0].info.remote is None or found[0].is_gone:
            raise WorkerNotFound(number=number)
        _require_operator(call.identity, found[0])
        await call.app.off_loop.write(manager.arrange, [DirectWorker(number, direction)])
        return ApiAnswer(content=DirectedView(number=number, direction=direction))


def _require_operator(identity: Identity, worker: WorkerRecord) -> None:
    """Raise `NotAllowed` unless a caller may operate on all types and queues of a worker."""
    for type_ in worker.info.types or (None,):
        for queue in worker.info.queues or (None,):
            identity.require(Scope.OPERATE, type=type_, queue=queue)


def _check_waiting(call: ApiCall[ClaimBody, NoQuery]) -> None:
    """Raise `Refused` (503) for a claim that would wait, if `waiting_claims` claims wait already."""
    most = call.limits.waiting_claims
    if call.body.wait and call.app.manager().remote_workers.waiting >= most:
        raise refuse(
            503,
            "too-many-claims",
            f"{most:,} claims wait for jobs, which is the limit of this server; run fewer workers, or raise "
            "waiting_claims of HttpLimits",
            retry_after="1",
        )


def _longest_lease(call: ApiCall[Any, Any]) -> int:
    """Return the longest lease of a remote worker, in microseconds."""
    return to_microseconds(call.limits.longest_lease, "longest_lease")


def _heartbeat_every(lease: int) -> float:
    """Return the seconds between two heartbeats of a worker with a lease of so many microseconds."""
    return lease / MICROSECONDS / BEATS_PER_LEASE


def _number_of(call: ApiCall[Any, Any]) -> int:
    text = call.path["number"]
    if not text.isascii() or not text.isdecimal() or len(text) > MAX_DIGITS:
        raise WorkerNotFound(number=text[:100])
    return int(text)


def _types_of(app: Mainspring, identity: Identity, given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the job types of a new worker: the given ones, or all remote ones that the token may work on.

    Raises `Refused` if there is none, or one is not declared with `app.remote_job`, and `NotAllowed` if the token
    lacks the right.
    """
    allowed = identity.permissions.types
    remote = app.registry.remote_names()
    if given is None:
        types = tuple(name for name in remote if allowed is None or name in allowed)
        if not types:
            raise invalid_value(
                "the application declares no remote job type that this token may work on; declare one with "
                "app.remote_job(name), or use a token that may work on a declared one"
            )
        return types
    for name in given:
        if not identity.allows(Scope.WORK, type=name, queue=_any_queue(identity)):
            raise NotAllowed(name=identity.name, scope=str(Scope.WORK), type=name)
        if name not in remote:
            known = [each for each in remote if allowed is None or each in allowed]
            hint = (
                did_you_mean(name, known) or f"remote job types are {', '.join(sorted(known)) or 'not declared'}"
            )
            raise invalid_value(f"{name!r} is not declared with app.remote_job; {hint}")
    return tuple(dict.fromkeys(given))


def _any_queue(identity: Identity) -> str | None:
    """Return one of the queues to which a caller is restricted, to check the right for a job type alone.

    Return None if the caller is not restricted to queues.
    """
    queues = identity.permissions.queues
    return None if queues is None else min(queues)


def _queues_of(identity: Identity, given: Sequence[str] | None) -> tuple[str, ...] | None:
    if given is not None:
        return tuple(dict.fromkeys(given))
    queues = identity.permissions.queues
    return None if queues is None else tuple(sorted(queues))


def _require_once(items: Sequence[HeldBody | SettleItem]) -> None:
    ids = [each.id for each in items]
    twice = next((each for each in ids if ids.count(each) > 1), None) if len(set(ids)) < len(ids) else None
    if twice is not None:
        raise invalid_value(f"job {twice!r} is named twice; name each job once")


def _held_of(item: HeldBody | SettleItem, now: int) -> Held:
    body = item.progress
    if body is None:
        return Held(item.id, item.fencing_token)
    if not isfinite(body.done) or not (body.total is None or isfinite(body.total)):
        raise invalid_value("done and total of a progress must be finite numbers")
    return Held(item.id, item.fencing_token, Progress(body.done, body.total, body.note, now))


def _held_view(held: HeldState) -> HeldView:
    return HeldView(id=held.id, fencing_token=held.token, state=held.state, reason=held.reason)


def _settlement_of(item: SettleItem) -> Settlement:
    return Settlement(item.id, item.fencing_token, _outcome_maker(item), is_release=item.outcome == "released")


def _outcome_maker(item: SettleItem) -> Callable[[OutcomeFactory, LeasedJob], Outcome]:
    """Return a function that makes the outcome of a leased job from what a remote worker has sent.

    Raises `Refused` for fields that do not fit the outcome.
    """
    error = to_storable_text(item.error) if item.error else None
    match item.outcome:
        case "completed":
            result = item.result
            return lambda factory, job: factory.for_result(job, result)
        case "released":
            return lambda _factory, job: for_interruption(job)
        case "snoozed":
            if item.delay is None:
                raise invalid_value("the outcome snoozed needs a delay; give delay in seconds")
            answer = ChildAnswer(AnswerKind.SNOOZED, delay=_microseconds(item.delay))
        case "canceled":
            answer = ChildAnswer(AnswerKind.CANCELED, error=error or "canceled by its worker")
        case _:
            answer = _failure(item, error or "the remote worker gave no error")
    return lambda factory, job: factory.for_answer(job, answer)


def _failure(item: SettleItem, error: str) -> ChildAnswer:
    if not item.retry:
        if item.retry_after is not None:
            raise invalid_value("retry is false and retry_after is given; leave one of them out")
        return ChildAnswer(AnswerKind.NOT_RETRYABLE, error=error)
    if item.retry_after is not None:
        return ChildAnswer(AnswerKind.RETRY_LATER, error=error, delay=_microseconds(item.retry_after))
    return ChildAnswer(AnswerKind.FAILED, error=error)


def _microseconds(seconds: float) -> int:
    return to_microseconds(timedelta(seconds=seconds), "delay")


def _settled_view(settled: Settled) -> SettledView:
    return SettledView(
        id=settled.id,
        fencing_token=settled.token,
        accepted=settled.is_accepted,
        status=settled.status,
        due=None if settled.due is None else to_datetime(settled.due),
        problem=settled.problem,
    )


def _lost(views: Sequence[SettledView]) -> Refused:
    detail = views[0].problem if len(views) == 1 else f"none of the {len(views)} outcomes was accepted"
    members = {"jobs": list(views)}
    return Refused(Problem(status=409, type="lease-lost", detail=detail or "", members=members))


# -- declarations

_NUMBER = {"number": "The number of the worker."}
_JOB = {"id": "01a1ebb7249d773d81c55dd3c3d04a00", "fencing_token": 1}
_SETTLED = {**_JOB, "accepted": True, "status": "COMPLETED", "due": None, "problem": None}


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints of remote workers."""
    workers = RemoteWorkerEndpoints()
    return [
        Endpoint(
            name="enroll_worker",
            method="POST",
            path="/workers",
            subject="workers",
            summary="Enroll a remote worker.",
            description=(
                "A remote worker is a program in any language that runs jobs of types declared with "
                "`app.remote_job`. It belongs to the token that enrolled it. It stays alive by heartbeats."
            ),
            scopes=(Scope.WORK,),
            serve=workers.enroll,
            body=EnrollBody,
            body_examples={"a worker": {"name": "images-1", "types": ["resize"]}},
            answers={
                CREATED: AnswerType(
                    type=EnrolledView,
                    description="The worker.",
                    headers={"Location": "The path of the worker."},
                    example={
                        "number": 3,
                        "name": "images-1",
                        "types": ["resize"],
                        "queues": None,
                        "lease": 45.0,
                        "heartbeat_every": 15.0,
                    },
                )
            },
            problems=("invalid-value", "too-many-workers"),
        ),
        Endpoint(
            name="claim_jobs",
            method="POST",
            path="/workers/{number}/claim",
            subject="workers",
            summary="Claim due jobs, and wait for the first one.",
            description="The jobs are RUNNING, and the worker must settle each. A worker may have claimed at most "
            "1,000 jobs that it has not settled, or fewer if the server says so (`claimed_jobs`).",
            scopes=(Scope.WORK,),
            serve=workers.claim,
            path_parameters=_NUMBER,
            body=ClaimBody,
            body_examples={"up to four jobs": {"jobs": 4, "wait": 30}},
            answers={
                OK: AnswerType(
                    type=ClaimedView,
                    description="The jobs; none if the wait is over.",
                    example={
                        "jobs": [
                            {
                                **_JOB,
                                "type": "resize",
                                "queue": "images",
                                "arguments": {"file": "cat.png", "width": 200},
                                "attempt": 1,
                                "due": "2026-11-17T12:00:00Z",
                                "timeout": 60.0,
                                "headers": {},
                            }
                        ],
                        "direction": "run",
                        "heartbeat_every": 15.0,
                    },
                )
            },
            problems=(
                "worker-not-found",
                "too-many-claims",
                "too-many-own-claims",
                "claim-in-progress",
                "too-many-claimed-jobs",
            ),
        ),
        Endpoint(
            name="settle_jobs",
            method="POST",
            path="/workers/{number}/settle",
            subject="workers",
            summary="Report the outcomes of jobs.",
            description=(
                "A repeated request has the same answer. An outcome with an old fencing token is refused. If none "
                "is accepted, the status is 409, and the problem has the member `jobs`."
            ),
            scopes=(Scope.WORK,),
            serve=workers.settle,
            path_parameters=_NUMBER,
            body=SettleBody,
            body_examples={
                "success": {"jobs": [{**_JOB, "outcome": "completed", "result": {"bytes": 4711}}]},
                "failure": {"jobs": [{**_JOB, "outcome": "failed", "error": "no such file", "retry_after": 60}]},
            },
            answers={
                OK: AnswerType(
                    type=SettledListView, description="An answer for each.", example={"jobs": [_SETTLED]}
                )
            },
            problems=("worker-not-found", "lease-lost", "invalid-value"),
        ),
        Endpoint(
            name="beat_worker",
            method="POST",
            path="/workers/{number}/heartbeat",
            subject="workers",
            summary="Show that a worker is alive, and learn what it has to do.",
            scopes=(Scope.WORK,),
            serve=workers.heartbeat,
            path_parameters=_NUMBER,
            body=HeartbeatBody,
            body_examples={"one job": {"jobs": [{**_JOB, "progress": {"done": 3, "total": 10}}]}},
            answers={
                OK: AnswerType(
                    type=HeartbeatView,
                    description="What to do.",
                    example={
                        "direction": "run",
                        "jobs": [{**_JOB, "state": "stop", "reason": "cancel"}],
                        "heartbeat_every": 15.0,
                    },
                )
            },
            problems=("worker-not-found", "invalid-value"),
        ),
        Endpoint(
            name="direct_worker",
            method="POST",
            path="/workers/{number}/direct",
            subject="workers",
            summary="Ask a remote worker to run, to be quiet or to terminate.",
            description="The worker learns it in the answer to its next claim or heartbeat.",
            scopes=(Scope.OPERATE,),
            serve=workers.direct,
            path_parameters=_NUMBER,
            body=DirectBody,
            body_examples={"quiet": {"direction": "quiet"}},
            answers={
                OK: AnswerType(
                    type=DirectedView,
                    description="The store has the request.",
                    example={"number": 3, "direction": "quiet"},
                )
            },
            problems=("worker-not-found",),
        ),
        Endpoint(
            name="leave_worker",
            method="DELETE",
            path="/workers/{number}",
            subject="workers",
            summary="Remove a worker that ends, or one that an operator does not trust.",
            description=(
                "Jobs that it has not settled run again elsewhere, and no attempt is used up. With the scope "
                "`work`, a token removes its own workers; with `operate`, any remote worker, and other workers "
                "that are silent or dead."
            ),
            scopes=(Scope.WORK, Scope.OPERATE),
            serve=workers.leave,
            path_parameters=_NUMBER,
            answers={
                OK: AnswerType(
                    type=LeftView, description="It has left.", example={"number": 3, "released": [_JOB["id"]]}
                )
            },
            problems=("worker-not-found", "worker-alive"),
        ),
    ]
