"""The endpoint that submits a job.

Invariant: a token that is restricted to certain queues learns nothing of a job in another queue that has the same
unique key, except that there is one, and it does not change that job.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from mainspring.callbacks.declaring import HTTP_TYPE
from mainspring.callbacks.policy import refuse_without_policy
from mainspring.clock import NANOSECONDS, Duration, to_nanoseconds
from mainspring.errors import DuplicateJob, NotAllowed, UnknownHandler
from mainspring.jobs.handle import open_manager
from mainspring.jobs.handler_options import DEFAULT_RETRY
from mainspring.jobs.handlers import Handler
from mainspring.jobs.manager import JobManager
from mainspring.jobs.policies import Unique
from mainspring.jobs.records import Query
from mainspring.jobs.retry import Retry
from mainspring.jobs.status import JobStatus
from mainspring.jobs.submission import JobCall, StoredId, require_policies
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.jobs.timestamps import MICROSECONDS, to_microseconds
from mainspring.runners.task import Priority
from mainspring.security.http_limits import HttpLimits
from mainspring.security.permissions import Identity, Scope
from mainspring.web.api.callback_bodies import HttpRequestBody, submit_scope
from mainspring.web.api.decoding import checked_values, invalid_value
from mainspring.web.api.endpoint import CREATED, OK, AnswerType, ApiAnswer, ApiCall, Endpoint, Instant, NoQuery
from mainspring.web.api.job_views import EXAMPLE_ID, PriorityName
from mainspring.web.problems import REALM, Problem, Refused, refuse

if TYPE_CHECKING:
    from mainspring.app import Mainspring

PROBLEMS = (
    "duplicate-job",
    "arguments-too-large",
    "callback-refused",
    "invalid-arguments",
    "invalid-value",
    "unknown-handler",
    "refused-by-store",
    "limit-exceeded",
    "submit-rate",
)
Seconds = Annotated[float, Meta(ge=0)]
FOUND_AT_ONCE = 500  # how many existing jobs are looked up at once


class UniqueBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rule of a unique job: at most one job of its type for each key."""

    key: Annotated[str | None, Meta(description="The key, or the first part of it.")] = None
    by: Annotated[list[str], Meta(description="Parameters whose values are part of the key.")] = []
    window: Annotated[
        Seconds | None, Meta(description="For how many seconds after its submit a job conflicts with others.")
    ] = None
    states: Annotated[list[JobStatus] | None, Meta(description="The statuses in which a job conflicts.")] = None
    on_conflict: Annotated[
        Literal["return", "replace", "raise"],
        Meta(description="Return the existing job, give it the new arguments and due time, or answer 409."),
    ] = "return"

    def to_policy(self) -> Unique:
        """Return the rule as a `Unique`."""
        return Unique(
            key=self.key,
            by=tuple(self.by) or None,
            window=self.window,
            states=None if self.states is None else tuple(self.states),
            on_conflict=self.on_conflict,
        )


def _in_seconds(duration: Duration) -> float:
    return to_nanoseconds(duration, "duration") / NANOSECONDS


class RetryBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a job is retried, and with which delays. A field that is left out has the default of `Retry`."""

    max_attempts: Annotated[
        int, Meta(ge=1, le=1_000_000, description="The number of attempts, including the first.")
    ] = DEFAULT_RETRY.max_attempts
    base: Annotated[Seconds, Meta(description="The delay before the second attempt, in seconds.")] = _in_seconds(
        DEFAULT_RETRY.base
    )
    factor: Annotated[float, Meta(ge=1, description="The factor by which the delay grows each time.")] = (
        DEFAULT_RETRY.factor
    )
    max_delay: Annotated[Seconds, Meta(description="The longest delay, in seconds.")] = _in_seconds(
        DEFAULT_RETRY.max_delay
    )
    jitter: Annotated[float, Meta(ge=0, le=1, description="The share by which a delay varies.")] = (
        DEFAULT_RETRY.jitter
    )

    def to_policy(self) -> Retry:
        """Return the retry policy as a `Retry`."""
        return Retry(
            max_attempts=self.max_attempts,
            base=self.base,
            factor=self.factor,
            max_delay=self.max_delay,
            jitter=self.jitter,
        )


class NewJobBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to submit. For an option that is left out, the option of its handler applies."""

    type: Annotated[
        str | None,
        Meta(description="The job type; leave it out if there is `http`.", examples=["shop.cancel_order"]),
    ] = None
    http: Annotated[
        HttpRequestBody | None,
        Meta(description="A request to send, instead of a type and arguments: needs the scope `callback`."),
    ] = None
    arguments: Annotated[
        msgspec.Raw,
        Meta(
            description="The arguments by name, as the handler's signature has them.",
            extra_json_schema={"type": "object", "additionalProperties": True, "default": {}},
        ),
    ] = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    delay: Annotated[Seconds | None, Meta(description="How many seconds after the submit the job is due.")] = None
    at: Annotated[Instant | None, Meta(description="When the job is due, with a time zone.")] = None
    queue: str | None = None
    priority: PriorityName | None = None
    id: Annotated[str | None, Meta(description="An id of your own; a job with the same id is a duplicate.")] = None
    unique: Annotated[
        str | UniqueBody | None, Meta(description="A key: at most one job of the type that has not ended.")
    ] = None
    sequence: Annotated[str | None, Meta(description="A key: jobs with the same key run one after another.")] = (
        None
    )
    retry: Annotated[RetryBody | None, Meta(description="Attempts and delays of this job.")] = None
    timeout: Annotated[Seconds | None, Meta(description="After how many seconds an attempt is stopped.")] = None
    expires: Annotated[
        Seconds | None, Meta(description="How many seconds after its due time the job may still start.")
    ] = None

    @property
    def job_type(self) -> str:
        """The job type; for a job with `http` it is `HTTP_TYPE`."""
        return HTTP_TYPE if self.http is not None else self.type or ""

    @property
    def job_arguments(self) -> bytes:
        """The arguments of the job as JSON; for a job with `http` they are made of the request."""
        return bytes(self.arguments if self.http is None else self.http.to_arguments())

    def check_kind(self) -> None:
        """Raise `Refused` unless the job has either a type, or a request in `http` and no arguments."""
        problem = None
        if self.type is None and self.http is None:
            problem = "'type' is missing: give the type of the job, or a request in 'http'"
        elif self.type is not None and self.http is not None:
            problem = "the job has 'type' and 'http'; give one of them"
        elif self.http is not None and bytes(self.arguments).strip() != b"{}":
            problem = "a job with 'http' has no 'arguments'; give its body in 'http'"
        if problem is not None:
            raise refuse(422, "invalid-body", problem)

    def to_options(self, handler: Handler) -> SubmitOptions:
        """Check the options of the submit and return them; raise `Refused` for a wrong value."""
        with checked_values():
            unique = self.unique.to_policy() if isinstance(self.unique, UniqueBody) else self.unique
            options = SubmitOptions().changed(
                delay=None if self.delay is None else timedelta(seconds=self.delay),
                at=self.at,
                id=self.id,
                queue=self.queue,
                priority=None if self.priority is None else Priority[self.priority],
                unique=unique,
                sequence=self.sequence,
                expires=self.expires,
                retry=None if self.retry is None else self.retry.to_policy(),
                timeout=self.timeout,
            )
            handler.require_unique(options.unique)
        return options


class SubmittedView(Struct, frozen=True, kw_only=True):
    """The answer to a submit: the id of the new job, or of the existing one with the same unique key."""

    id: str
    is_new: Annotated[bool, Meta(description="False if a job with the same unique key exists: its id is `id`.")]


def find_handler(app: Mainspring, identity: Identity, body: NewJobBody) -> Handler:
    """Return the handler of a new job that a caller wants to submit.

    Raises `NotAllowed` if the caller may not submit it, whether there is such a handler or not. Raises
    `UnknownHandler`, with the types that the caller may submit, if no handler is registered, and `CallbackRefused`
    for a job with `http` if the application has no callback policy.
    """
    registry, type_ = app.registry, body.job_type
    handler = registry.get(type_) if type_ in registry else None
    scope = submit_scope(type_)
    require_rights(identity, scope, type_, body.queue, handler)
    if handler is None and body.http is not None:
        raise refuse_without_policy(body.http.url)
    if handler is None:
        known = [name for name in registry.names() if may_submit(registry.get(name), identity)]
        raise UnknownHandler(name=type_[:200], known=tuple(sorted(known)))
    identity.require(scope, type=handler.name, queue=body.queue or handler.options.queue)
    return handler


def require_rights(
    identity: Identity, scope: Scope, type_: str, queue: str | None, handler: Handler | None
) -> None:
    """Raise `NotAllowed` if a caller may not use a job type in a queue.

    `queue` is the queue of the request; None for that of the handler. `handler` is the registered handler of the
    type; None if there is none. The error is the same in both cases, and does not name the queue of the handler.
    So a caller without the right does not learn whether there is a handler.
    """
    permissions = identity.permissions
    chosen = queue or (None if handler is None else handler.options.queue)
    is_type_allowed = permissions.types is None or (handler.name if handler else type_) in permissions.types
    is_queue_allowed = chosen is None or permissions.queues is None or chosen in permissions.queues
    if not (permissions.has(scope) and is_type_allowed and is_queue_allowed):
        raise NotAllowed(name=identity.name, scope=str(scope), type=type_[:200], queue=queue)


def may_submit(handler: Handler, identity: Identity) -> bool:
    """Return whether a caller may submit jobs of a handler to the handler's own queue."""
    return identity.allows(submit_scope(handler.name), type=handler.name, queue=handler.options.queue)


def to_call(app: Mainspring, identity: Identity, body: NewJobBody, now: int, limits: HttpLimits) -> JobCall:
    """Check the job that a caller wants to submit, and return it with its handler, options and arguments.

    The arguments are decoded by the types of the handler's signature, so that keys of unique jobs, sequences and
    limits are the same as those of a submit in Python. Raises `Refused`, or an error such as `NotAllowed`.
    """
    body.check_kind()
    handler = find_handler(app, identity, body)
    options = body.to_options(handler)
    if options.retry is not None:
        _check_retry(options.retry, limits)
    _check_replace(identity, options.unique or handler.options.unique)
    with checked_values():
        options.due(now)
        require_policies(handler, options)
    positional, named = handler.arguments.decode(body.job_arguments, "json")
    return JobCall(handler, options, tuple(positional), named)


def _check_retry(retry: Retry, limits: HttpLimits) -> None:
    """Raise `Refused` for a retry policy with more attempts, or a shorter first delay, than the server allows."""
    if retry.max_attempts > limits.retry_attempts:
        raise invalid_value(
            f"retry asks for {retry.max_attempts:,} attempts, the limit of this server is "
            f"{limits.retry_attempts:,}; ask for fewer, or declare the policy with the handler"
        )
    first = retry.delay_after(1, lambda: 0.5)
    if first is not None and first < to_microseconds(limits.retry_seconds, "retry_seconds"):
        raise invalid_value(
            f"retry asks for {first / MICROSECONDS:g} s before the second attempt, the least of this server is "
            f"{limits.retry_seconds:g} s; give a longer base and max_delay, or declare the policy with the handler"
        )


def _check_replace(identity: Identity, unique: Unique | str | None) -> None:
    """Raise `Refused` if a submit may replace an existing job, and the caller is restricted to queues.

    The existing job may be in another queue.
    """
    is_replacing = isinstance(unique, Unique) and unique.on_conflict == "replace"
    if is_replacing and identity.permissions.queues is not None:
        raise refuse(
            403,
            "not-allowed",
            f"the token {identity.name!r} is restricted to queues, and on_conflict 'replace' changes a job that "
            "may be in another queue; give unique with on_conflict 'return' or 'raise', or use a token without "
            "--queue",
            www_authenticate=f'{REALM}, error="insufficient_scope", scope="{Scope.SUBMIT}"',
        )


def unknown_ids(manager: JobManager, identity: Identity, ids: Iterable[str]) -> set[str]:
    """Return which of these ids of existing jobs the caller must not see.

    A caller whose token is restricted to certain job types or queues sees only jobs that it may submit itself. For
    such a caller, the ids of jobs that were deleted meanwhile are returned, too.
    """
    permissions = identity.permissions
    asked = list(dict.fromkeys(ids))
    if not asked or (permissions.types is None and permissions.queues is None):
        return set()
    found: set[str] = set()
    for start in range(0, len(asked), FOUND_AT_ONCE):
        page = manager.engine.find(Query(ids=tuple(asked[start : start + FOUND_AT_ONCE])))
        found |= {
            record.id
            for record in page.records
            if identity.allows(submit_scope(record.type), type=record.type, queue=record.queue)
        }
    return set(asked) - found


HIDDEN_DUPLICATE = Problem(
    status=409,
    type="duplicate-job",
    detail="a job that this token may not read has the same unique key, and nothing was stored; use another key, "
    "or a token without restrictions",
)


class SubmitEndpoints:
    """The endpoint that submits one job."""

    async def submit(self, call: ApiCall[NewJobBody, NoQuery]) -> ApiAnswer:
        """Submit one job; answer 201 with its id, or 200 with the id of the job that has the same unique key.

        Raises `DuplicateJob` if a job has the same id, or the same unique key with `on_conflict` `raise`. Raises
        `Refused` if the caller may not see the job with the same key, or if its rate does not admit the submit.
        """
        manager = await open_manager(call.app)
        job = to_call(call.app, call.identity, call.body, manager.engine.now(), call.limits)
        call.meter.count()
        try:
            stored = await manager.submission.store_async(*job, call.ids)
        except DuplicateJob as error:
            # An earlier attempt of this request may have stored the job with the id that the caller has chosen.
            if error.existing_id != job.options.id:
                await self._require_known(call, manager, error.existing_id)
                raise
            if call.ids is None or not call.ids.is_resumed:
                raise
            record = await call.app.off_loop.read(manager.record, error.existing_id)
            if not manager.submission.is_same(record, job):
                raise
            stored = StoredId(record.id, is_new=True)
        if not stored.is_new:
            await self._require_known(call, manager, stored.id)
        path = call.request.scope["path"].rstrip("/")
        return ApiAnswer(
            status=CREATED if stored.is_new else OK,
            content=SubmittedView(id=stored.id, is_new=stored.is_new),
            headers={"Location": quote(f"{path}/", safe="/%:@") + quote(stored.id, safe="")},
        )

    async def _require_known(self, call: ApiCall[Any, Any], manager: JobManager, job_id: str) -> None:
        """Raise `Refused` instead of naming an existing job that the caller must not see."""
        if await call.app.off_loop.read(unknown_ids, manager, call.identity, [job_id]):
            raise Refused(HIDDEN_DUPLICATE)


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declaration of the endpoint that submits one job."""
    submits = SubmitEndpoints()
    location = {"Location": "The path of the job."}
    return [
        Endpoint(
            name="submit_job",
            method="POST",
            path="/jobs",
            subject="jobs",
            summary="Submit a job.",
            description=(
                "The job is durable when the answer arrives. A job with `http` needs the scope `callback`, and "
                "any other the scope `submit`."
            ),
            scopes=(Scope.SUBMIT, Scope.CALLBACK),
            serve=submits.submit,
            body=NewJobBody,
            body_examples={
                "a job": {"type": "shop.cancel_order", "arguments": {"order_id": 42}, "delay": 1800},
                "at most one": {
                    "type": "shop.cancel_order",
                    "arguments": {"order_id": 42},
                    "at": "2026-11-17T12:30:00+08:00",
                    "unique": {"by": ["order_id"], "window": 3600},
                },
                "a request": {
                    "http": {"url": "https://hooks.example.com/orders", "body": {"order": 42}, "secret": "shop"},
                    "delay": 1800,
                },
            },
            answers={
                CREATED: AnswerType(
                    type=SubmittedView,
                    description="The job is stored.",
                    example={"id": EXAMPLE_ID, "is_new": True},
                    headers=location,
                ),
                OK: AnswerType(
                    type=SubmittedView,
                    description="A job with the same unique key exists: no new job was stored.",
                    example={"id": EXAMPLE_ID, "is_new": False},
                    headers=location,
                ),
            },
            problems=PROBLEMS,
        ),
    ]
