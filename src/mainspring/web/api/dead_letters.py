"""The endpoints of dead letters: list, read, edit, replay and purge.

Invariants
- A dead letter that the caller may not read is answered exactly as a job that does not exist. A replay by filters
  finds only dead letters that the caller may operate on.
- A replay takes a bounded time: one request replays at most `MAX_REPLAYED` dead letters, and `next` of its answer
  continues it. The time `until` of the first request is kept, so that new jobs that fail are not replayed again.
- The answers to changes have ids and numbers only, because the scope `operate` does not include `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from mainspring.errors import InvalidTransition, JobNotFound, LimitExceeded, NotAllowed, UnknownHandler
from mainspring.jobs.dead_letters import (
    PlannedReplay,
    apply_changes,
    audit_details,
    plan_replay,
    purge_planned,
    replay_planned,
)
from mainspring.jobs.handle import open_manager
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.ids import MAX_ID_LENGTH, require_id
from mainspring.jobs.info import JobPage
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import LAST, LAST_INSTANT, MICROSECONDS, to_datetime, to_instant
from mainspring.security.permissions import Identity, Scope
from mainspring.web.api.callback_bodies import require_url_right
from mainspring.web.api.decoding import checked_values, invalid_value
from mainspring.web.api.endpoint import OK, AnswerType, ApiAnswer, ApiCall, Endpoint, Instant, NoQuery
from mainspring.web.api.job_views import (
    EXAMPLE_ID,
    EXAMPLE_JOB,
    JOB_ID,
    JobView,
    find_job,
    to_json,
    to_view,
    view_of,
)
from mainspring.web.api.jobs import DEFAULT_LIMIT, MAX_LIMIT, PAGE_BYTES, READ_AT_ONCE
from mainspring.web.api.router import encode_json

if TYPE_CHECKING:
    from mainspring.app import Mainspring

MAX_REPLAYED = 500
SHOWN = 50  # how many dead letters a dry run shows
MIN_RATE = 0.000_001


class LetterListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of a list of dead letters."""

    queue: Annotated[str | None, Meta(description="Only dead letters of this queue.")] = None
    type: Annotated[str | None, Meta(description="Only dead letters of this type.")] = None
    replayed: Annotated[
        Literal["no", "yes", "all"],
        Meta(description="Failed jobs that were not replayed, that were replayed, or both."),
    ] = "no"
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="The most jobs of a page.")] = DEFAULT_LIMIT
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None
    newest_first: Annotated[bool, Meta(description="List the latest failure first.")] = False


class LetterPageView(Struct, frozen=True, kw_only=True):
    """A page of a list of dead letters."""

    jobs: list[JobView]
    next: Annotated[str | None, Meta(description="`after` of the next page; null on the last one.")]


class EditBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of the arguments of a dead letter: new values and removed names."""

    changes: Annotated[dict[str, Any], Meta(description="New values of arguments, by name.")] = {}
    without: Annotated[list[str], Meta(description="Arguments to remove.")] = []


class EditedView(Struct, frozen=True, kw_only=True):
    """The answer to an edit of a dead letter's arguments."""

    id: str
    changed: Annotated[list[str], Meta(description="The names of the arguments that were set.")]
    removed: Annotated[list[str], Meta(description="The names of the arguments that were removed.")]


class ReplayBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to replay, by ids, filters or `all`, and when and with which arguments."""

    ids: Annotated[
        Annotated[list[str], Meta(max_length=MAX_REPLAYED)], Meta(description="The ids of dead letters.")
    ] = []
    queue: Annotated[str | None, Meta(description="Replay the dead letters of this queue.")] = None
    type: Annotated[str | None, Meta(description="Replay the dead letters of this type.")] = None
    all: Annotated[bool, Meta(description="Replay all dead letters that the token may replay.")] = False
    until: Annotated[
        Instant | None,
        Meta(description="With filters: only jobs that were submitted before this instant; by default, now."),
    ] = None
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_REPLAYED)] | None,
        Meta(
            description=f"With filters: replay at most this many, those submitted first; default {MAX_REPLAYED}."
        ),
    ] = None
    rate: Annotated[
        Annotated[float, Meta(ge=MIN_RATE)] | None,
        Meta(description="Spread the due times of the new jobs: at most this many jobs per second."),
    ] = None
    start: Annotated[
        Instant | None, Meta(description="When the first of the new jobs is due; by default, now.")
    ] = None
    changes: Annotated[dict[str, Any], Meta(description="New values of arguments of the new jobs, by name.")] = {}
    without: Annotated[list[str], Meta(description="Arguments that the new jobs do not have.")] = []
    dry_run: Annotated[bool, Meta(description="Make all checks, and replay nothing.")] = False


class ReplayedView(Struct, frozen=True, kw_only=True):
    """A dead letter that was replayed, and its new job."""

    letter: Annotated[str, Meta(description="The id of the dead letter.")]
    job: Annotated[str, Meta(description="The id of the new job.")]


class PlannedLetterView(Struct, frozen=True, kw_only=True):
    """A dead letter that a replay would submit again, as a dry run shows it."""

    letter: Annotated[str, Meta(description="The id of the dead letter.")]
    type: str
    queue: str
    arguments: Annotated[Any, Meta(description="The arguments of the new job.")]


class NextReplayView(Struct, frozen=True, kw_only=True):
    """The fields that the next request puts into the same body, to continue the replay."""

    until: Instant
    start: Instant | None


class ReplayView(Struct, frozen=True, kw_only=True):
    """The answer to a replay of dead letters, or to its dry run."""

    is_dry_run: bool
    count: Annotated[int, Meta(description="How many dead letters this request has replayed, or would replay.")]
    total: Annotated[
        int | None,
        Meta(description="How many dead letters match; null unless it is a dry run, which counts them."),
    ] = None
    is_exact: Annotated[
        bool,
        Meta(
            description="False if `total` may be too small, because at most 10,000 of a type are counted, or too "
            "large, because `until` is not considered when more match than `limit`."
        ),
    ] = True
    replayed: list[ReplayedView] = []
    left_out: Annotated[
        list[str],
        Meta(
            description="Dead letters that another caller has replayed, retried or deleted meanwhile, or whose "
            "unique key another job has."
        ),
    ] = []
    letters: Annotated[
        list[PlannedLetterView] | None,
        Meta(description=f"The first {SHOWN} dead letters of a dry run; null without the scope `read`."),
    ] = None
    next: Annotated[
        NextReplayView | None,
        Meta(description="If more match: send the same body with these fields to go on. Otherwise null."),
    ] = None


class PurgeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ids of the failed jobs to delete."""

    ids: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=MAX_REPLAYED)],
        Meta(description="The ids of failed jobs, replayed or not."),
    ]


class PurgedView(Struct, frozen=True, kw_only=True):
    """The answer to a purge: how many jobs were deleted."""

    count: Annotated[int, Meta(description="How many jobs were deleted.")]


class DeadLetterEndpoints:
    """The endpoints that list, read, edit, replay and delete dead letters."""

    async def list(self, call: ApiCall[None, LetterListQuery]) -> ApiAnswer:
        """Answer a page of the dead letters that match filters and that the caller may read.

        By the filter `replayed`, the page has also, or only, failed jobs that were replayed.
        """
        manager = await open_manager(call.app)
        return ApiAnswer(content=await call.app.off_loop.read(_list, manager, call.query, call.identity))

    async def get(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer one job that failed; raise `InvalidTransition` if the job has not failed."""
        return ApiAnswer(content=await view_of(call, _require_failed(await find_job(call, Scope.READ), "read")))

    async def edit(self, call: ApiCall[EditBody, NoQuery]) -> ApiAnswer:
        """Set or remove arguments of a failed job, and answer their names.

        Raises `Refused` if the request names no arguments, `InvalidTransition` if the job has not failed, and
        `InvalidArguments` if its handler does not accept the new arguments.
        """
        changes, without = call.body.changes, call.body.without
        letter = _require_failed(await find_job(call, Scope.OPERATE), "edit")
        if not changes and not without:
            raise invalid_value("nothing is changed; give arguments in changes, or names in without")
        _require_edit(call.app.registry, call.identity, letter)
        with _only_known_types(call.identity):
            await call.app.dead_letters.edit_async(letter.id, changes, without=without)
        return ApiAnswer(
            content=EditedView(id=letter.id, changed=sorted(changes), removed=sorted(set(without) - set(changes)))
        )

    async def replay(self, call: ApiCall[ReplayBody, NoQuery]) -> ApiAnswer:
        """Submit at most 500 dead letters again as new jobs, and answer their ids.

        With `dry_run`, submit nothing, and answer which ones a replay would submit. Raises an error and submits
        nothing if the request is wrong, or if a dead letter that it names by id cannot be replayed.
        """
        manager = await open_manager(call.app)
        run = call.app.off_loop.read if call.body.dry_run else call.app.off_loop.write
        return ApiAnswer(content=await run(_replay, manager, call.body, call.identity))

    async def purge(self, call: ApiCall[PurgeBody, NoQuery]) -> ApiAnswer:
        """Delete the failed jobs with the ids in the body, and answer how many were deleted.

        Raises an error and deletes none if one is unknown or has not failed, or the caller may not change it.
        """
        manager = await open_manager(call.app)
        return ApiAnswer(content=await call.app.off_loop.write(_purge, manager, call.body, call.identity))


def _list(manager: JobManager, query: LetterListQuery, identity: Identity) -> dict[str, Any]:
    """Return a page of dead letters. A few are encoded at a time, so that not all are in memory twice."""
    permissions, jobs = identity.permissions, list[msgspec.Raw]()
    after, size = query.after, 0
    while True:
        with checked_values():
            page: JobPage = manager.list(
                status=JobStatus.FAILED,
                queue=query.queue,
                type=query.type,
                is_replayed={"no": False, "yes": True, "all": None}[query.replayed],
                by_failure=True,
                limit=min(query.limit - len(jobs), READ_AT_ONCE),
                after=after,
                newest_first=query.newest_first,
                types=permissions.types,
                queues=permissions.queues,
            )
        encoded = [encode_json(to_view(job)) for job in page]
        jobs += map(msgspec.Raw, encoded)
        size += sum(map(len, encoded))
        after = page.next
        if after is None or len(jobs) >= query.limit or size >= PAGE_BYTES:
            return {"jobs": jobs, "next": after}


def _require_failed(record: JobRecord, action: str) -> JobRecord:
    """Return the record if its job has failed, replayed or not; else raise `InvalidTransition`."""
    if record.status is not JobStatus.FAILED:
        words = f"{action} the dead letter of" if action == "read" else action
        raise InvalidTransition(job_id=record.id, status=str(record.status), action=words, needs="FAILED")
    return record


@contextmanager
def _only_known_types(identity: Identity) -> Iterator[None]:
    """Let an `UnknownHandler` that the block raises list only the job types that the caller may use."""
    try:
        yield
    except UnknownHandler as error:
        allowed = identity.permissions.types
        known = tuple(name for name in error.known if allowed is None or name in allowed)
        raise UnknownHandler(name=error.name, known=known) from None


# -- replays


def _replay(manager: JobManager, body: ReplayBody, identity: Identity) -> ReplayView:
    now = manager.engine.now()
    plans = _plan(manager, body, identity)
    limit = _limit(body)
    is_more, plans = len(plans) > limit, plans[:limit]
    begin = now if body.start is None else max(now, to_instant(body.start, "start"))
    following = begin + (0 if body.rate is None else round(MICROSECONDS / body.rate * len(plans)))
    if following > LAST_INSTANT:
        raise invalid_value(
            f"the last of {len(plans):,} jobs would be due after {LAST:%Y-%m-%d} UTC, the last time that can be "
            "stored; give an earlier start or a higher rate"
        )
    if body.dry_run:
        total, is_exact = _count(manager, body, identity) if is_more else (len(plans), True)
        return ReplayView(
            is_dry_run=True,
            count=len(plans),
            total=max(total, len(plans) + is_more),
            is_exact=is_exact,
            letters=_shown(plans, identity),
        )
    details = audit_details(
        queue=body.queue,
        type=body.type,
        all=body.all,
        limit=body.limit,
        changed=body.changes,
        removed=body.without,
    )
    steps = replay_planned(manager, plans, rate=body.rate, is_by_id=False, details=details, start=begin)
    done = dict(pair for pairs in steps for pair in pairs)
    following_view = NextReplayView(
        until=body.until or to_datetime(now),
        start=None if body.rate is None and body.start is None else to_datetime(following),
    )
    return ReplayView(
        is_dry_run=False,
        count=len(done),
        replayed=[ReplayedView(letter=letter, job=job) for letter, job in done.items()],
        left_out=[plan.letter.id for plan in plans if plan.letter.id not in done],
        next=following_view if is_more else None,
    )


def _limit(body: ReplayBody) -> int:
    return MAX_REPLAYED if body.limit is None else body.limit


def _plan(manager: JobManager, body: ReplayBody, identity: Identity) -> list[PlannedReplay]:
    """Check a replay, and return the dead letters that it chooses: by filters, at most one more than its limit.

    The additional one shows that more match. Raises an error such as `Refused`, `JobNotFound`, `InvalidTransition`
    or `NotAllowed` if a check fails.
    """
    filters = [name for name in ("queue", "type", "until", "limit") if getattr(body, name) is not None]
    if body.ids and (filters or body.all):
        names = ", ".join([*filters, *(["all"] if body.all else [])])
        raise invalid_value(f"ids of dead letters are given together with {names}; leave out the ids, or these")
    if not body.ids and body.queue is None and body.type is None and not body.all:
        raise invalid_value('the request chooses no dead letters; give ids, queue, type, or "all": true')
    change = None
    if body.changes or body.without:
        change = partial(apply_changes, changes=body.changes, without=body.without)
    with _only_known_types(identity):
        return plan_replay(
            manager,
            [_require_possible(job_id) for job_id in body.ids],
            queue=body.queue,
            type=body.type,
            all=body.all,
            limit=None if body.ids else _limit(body) + 1,
            change=change,
            types=identity.permissions.types,
            queues=identity.permissions.queues,
            until=None if body.until is None else to_instant(body.until, "until"),
            check=_check_for(manager, identity, is_edit=change is not None),
        )


def _require_possible(job_id: str) -> str:
    """Return a job id; raise `JobNotFound` if its form is one that no job can have."""
    try:
        return require_id(job_id)
    except (ValueError, LimitExceeded):
        raise JobNotFound(job_id=job_id[:MAX_ID_LENGTH]) from None


def _require_edit(registry: HandlerRegistry, identity: Identity, letter: JobRecord) -> None:
    """Raise `NotAllowed` if the dead letter's type takes a URL and the caller lacks the scope `callback`.

    Do nothing if the application has no handler of the type.
    """
    if letter.type in registry:
        require_url_right(identity, registry.get(letter.type), letter.queue)


def _check_for(manager: JobManager, identity: Identity, *, is_edit: bool) -> Callable[[JobRecord], None]:
    def check(letter: JobRecord) -> None:
        if identity.allows(Scope.OPERATE, type=letter.type, queue=letter.queue):
            if is_edit:
                _require_edit(manager.registry, identity, letter)
            return
        if identity.allows(Scope.READ, type=letter.type, queue=letter.queue):
            raise NotAllowed(name=identity.name, scope=str(Scope.OPERATE), type=letter.type, queue=letter.queue)
        raise JobNotFound(job_id=letter.id)

    return check


def _count(manager: JobManager, body: ReplayBody, identity: Identity) -> tuple[int, bool]:
    """Return how many dead letters of the body's queue and type the caller may replay, and whether that is exact.

    The field `until` of the body is not considered: with it, the number may be too large, and is not exact.
    """
    type_ = None if body.type is None else manager.registry.full_name(body.type)
    groups = [
        group
        for group in manager.engine.statistics(lookahead=1).groups
        if body.queue in (None, group.queue)
        and type_ in (None, group.type)
        and identity.allows(Scope.OPERATE, type=group.type, queue=group.queue)
    ]
    is_exact = body.until is None and all(group.is_exact for group in groups)
    return sum(group.dead_letters for group in groups), is_exact


def _shown(plans: Sequence[PlannedReplay], identity: Identity) -> list[PlannedLetterView] | None:
    if not identity.permissions.has(Scope.READ):
        return None
    return [
        PlannedLetterView(
            letter=plan.letter.id,
            type=plan.letter.type,
            queue=plan.letter.queue,
            arguments=to_json(plan.arguments),
        )
        for plan in plans[:SHOWN]
    ]


def _purge(manager: JobManager, body: PurgeBody, identity: Identity) -> PurgedView:
    """Delete failed jobs, after all of them were checked; raise an error and delete none if one is refused."""
    check, ids = _check_for(manager, identity, is_edit=False), list(dict.fromkeys(body.ids))
    for job_id in ids:
        letter = manager.record(_require_possible(job_id))
        check(letter)
        _require_failed(letter, "purge")
    return PurgedView(count=sum(purge_planned(manager, ids, details={})))


# -- declarations


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints of dead letters."""
    letters = DeadLetterEndpoints()
    example = {
        **EXAMPLE_JOB,
        "status": "FAILED",
        "started": "2026-11-17T12:30:00Z",
        "finished": "2026-11-17T12:30:01Z",
        "error": "ConnectionError: the payment service does not answer",
    }
    new_id = EXAMPLE_ID[:-1] + "4"
    nothing: dict[str, Any] = {
        "total": None,
        "is_exact": True,
        "replayed": [],
        "left_out": [],
        "letters": None,
        "next": None,
    }
    return [
        Endpoint(
            name="list_dead_letters",
            method="GET",
            path="/dead-letters",
            subject="dead letters",
            summary="List dead letters in the order of failure, or the latest first.",
            description=(
                "A dead letter is a job that failed for good and was not replayed. Those that the token may not "
                "read are left out. A page with large jobs may be shorter than `limit`."
            ),
            scopes=(Scope.READ,),
            serve=letters.list,
            query=LetterListQuery,
            answers={
                OK: AnswerType(
                    type=LetterPageView,
                    description="A page of dead letters.",
                    example={"jobs": [example], "next": None},
                )
            },
            problems=("invalid-value",),
        ),
        Endpoint(
            name="get_dead_letter",
            method="GET",
            path="/dead-letters/{id}",
            subject="dead letters",
            summary="Read a job that failed, replayed or not.",
            scopes=(Scope.READ,),
            serve=letters.get,
            path_parameters=JOB_ID,
            answers={OK: AnswerType(type=JobView, description="The dead letter.", example=example)},
            problems=("job-not-found", "invalid-transition"),
        ),
        Endpoint(
            name="edit_dead_letter",
            method="PATCH",
            path="/dead-letters/{id}",
            subject="dead letters",
            summary="Change arguments of a dead letter.",
            description="The new arguments must match the signature of the handler. A later replay uses them.",
            scopes=(Scope.OPERATE,),
            serve=letters.edit,
            path_parameters=JOB_ID,
            body=EditBody,
            body_examples={
                "another value": {"changes": {"order_id": 43}},
                "a parameter that was renamed": {"changes": {"customer": "ann"}, "without": ["name"]},
            },
            answers={
                OK: AnswerType(
                    type=EditedView,
                    description="The dead letter has the new arguments.",
                    example={"id": EXAMPLE_ID, "changed": ["order_id"], "removed": []},
                )
            },
            problems=(
                "job-not-found",
                "invalid-transition",
                "unknown-handler",
                "invalid-arguments",
                "arguments-too-large",
                "callback-refused",
                "invalid-value",
                "refused-by-store",
            ),
        ),
        Endpoint(
            name="replay_dead_letters",
            method="POST",
            path="/dead-letters/replay",
            subject="dead letters",
            summary="Submit dead letters again, as new jobs.",
            description=(
                "Each new job is linked with its dead letter, and a dead letter is replayed once. Give `ids`, or "
                "`queue`, `type` or both, or `all`. With `changes` or `without`, the arguments of all new jobs of "
                "the request are checked before the first one is stored. One request replays at most "
                f"{MAX_REPLAYED}: if `next` of the answer is not null, send the same body with its fields added. "
                "Then `rate` holds over all requests, and new jobs that fail meanwhile are not replayed again."
            ),
            scopes=(Scope.OPERATE,),
            serve=letters.replay,
            body=ReplayBody,
            body_examples={
                "some": {"ids": [EXAMPLE_ID]},
                "slowly": {"type": "shop.cancel_order", "rate": 10},
                "what would happen": {"queue": "orders", "changes": {"reason": "late"}, "dry_run": True},
            },
            answers={
                OK: AnswerType(
                    type=ReplayView,
                    description="What was replayed, or would be.",
                    example={
                        **nothing,
                        "is_dry_run": False,
                        "count": 1,
                        "replayed": [{"letter": EXAMPLE_ID, "job": new_id}],
                    },
                )
            },
            problems=(
                "job-not-found",
                "invalid-transition",
                "unknown-handler",
                "invalid-arguments",
                "arguments-too-large",
                "callback-refused",
                "invalid-value",
                "refused-by-store",
            ),
        ),
        Endpoint(
            name="purge_dead_letters",
            method="POST",
            path="/dead-letters/purge",
            subject="dead letters",
            summary="Delete failed jobs for good.",
            description="All jobs are checked before the first one is deleted. Their replays stay.",
            scopes=(Scope.OPERATE,),
            serve=letters.purge,
            body=PurgeBody,
            body_examples={"some": {"ids": [EXAMPLE_ID]}},
            answers={OK: AnswerType(type=PurgedView, description="They are deleted.", example={"count": 1})},
            problems=("job-not-found", "invalid-transition", "refused-by-store"),
        ),
    ]
