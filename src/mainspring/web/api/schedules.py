"""The endpoints of schedules: list, read, store, delete, pause, resume, trigger, preview and history.

Invariants
- A schedule has a job type and a queue, and the caller needs its rights for both. They are checked on the record
  that is shown or changed: a change is refused, and repeated with a new check, if the record has changed since.
- A schedule that the caller may not read is answered exactly as one that does not exist, and no error suggests its
  name. Only PUT tells that a name is taken, because it can store nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.errors import LimitExceeded, NotAllowed, ScheduleNotFound, UnknownHandler
from mainspring.jobs.handle import open_manager
from mainspring.jobs.handlers import Handler
from mainspring.jobs.ids import MAX_ID_LENGTH, require_id
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.masking import REDACTED
from mainspring.jobs.recurrence.preview import BoundedRule, first_moment, next_dates
from mainspring.jobs.recurrence.schedule_definition import ScheduleDefinition, define_schedule
from mainspring.jobs.recurrence.schedule_history import merge_history
from mainspring.jobs.recurrence.schedule_info import ScheduleInfo
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.recurrence.schedules import RecordCheck, Schedules
from mainspring.jobs.timestamps import to_instant
from mainspring.runners.task import Priority
from mainspring.security.permissions import Identity, Scope
from mainspring.web.api.callback_bodies import require_url_right
from mainspring.web.api.decoding import checked_values, invalid_value
from mainspring.web.api.endpoint import (
    API,
    CREATED,
    OK,
    AnswerType,
    ApiAnswer,
    ApiCall,
    EmptyBody,
    Endpoint,
    NoQuery,
)
from mainspring.web.api.job_views import EXAMPLE_ID
from mainspring.web.api.schedule_views import (
    EXAMPLE_RULE,
    EXAMPLE_SCHEDULE,
    ChangedScheduleView,
    CronRule,
    Expression,
    FoldName,
    GapName,
    HistoryView,
    PreviewView,
    ScheduleBody,
    SchedulePageView,
    ScheduleView,
    StoredScheduleView,
    TriggeredView,
    Zone,
    check_preconditions,
    etag_of,
    to_date_view,
    to_entry_view,
    to_form,
    to_schedule_view,
)
from mainspring.web.api.submitting import require_rights
from mainspring.web.caller_shares import CallerCounts
from mainspring.web.guard import header_of
from mainspring.web.schedule_density import require_room, require_sparse

if TYPE_CHECKING:
    from mainspring.app import Mainspring

DEFAULT_LIMIT = 100
MAX_LIMIT = 500
MAX_DATES = 500
NAME = {"name": "The name of the schedule. A slash in it is written as %2F."}


class ScheduleListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of a list of schedules, and the position of its page."""

    type: Annotated[str | None, Meta(description="Only schedules of this job type.")] = None
    queue: Annotated[str | None, Meta(description="Only schedules of this queue.")] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="The most schedules of a page.")] = DEFAULT_LIMIT
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None


class PreviewQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rule of a preview: an expression with its options, or the name of a schedule."""

    expression: Annotated[Expression | None, Meta(description="A cron expression.")] = None
    tz: Annotated[Zone | None, Meta(description="The time zone of the expression; by default UTC.")] = None
    dst_gap: Annotated[
        GapName | None,
        Meta(description="What to do with a time that clocks skip when they are set forward; by default auto."),
    ] = None
    dst_fold: Annotated[
        FoldName | None,
        Meta(description="Which one counts if a time occurs twice because clocks are set back; by default auto."),
    ] = None
    name: Annotated[str | None, Meta(description="The name of a stored schedule, instead of an expression.")] = (
        None
    )
    count: Annotated[int, Meta(ge=1, le=MAX_DATES, description="How many dates the preview has.")] = 10
    since: Annotated[
        str | None,
        Meta(
            description="Show dates from this instant or this day on, in the rule's time zone; by default now.",
            examples=["2027-03-28"],
        ),
    ] = msgspec.field(name="from", default=None)


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The largest number of entries in an answer with a schedule's history."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="The most entries of the history.")] = 50


# -- rights


def check_for(identity: Identity, scope: Scope) -> RecordCheck:
    """Return a function that checks whether a caller may do an action of this scope with a stored schedule.

    The function returns True if the caller may do the action, or if the record is None: there is no schedule. It
    returns False if the caller must not know of the schedule. It raises `NotAllowed` if the caller may read the
    schedule, but not do the action.
    """

    def check(record: ScheduleRecord | None) -> bool:
        if record is None or identity.allows(scope, type=record.type, queue=record.queue):
            return True
        if identity.allows(Scope.READ, type=record.type, queue=record.queue):
            raise NotAllowed(name=identity.name, scope=str(scope), type=record.type, queue=record.queue)
        return False

    return check


def _schedules(call: ApiCall[Any, Any], check: RecordCheck) -> Schedules:
    return Schedules(call.app, call.app.declared, check=check)


def _name(call: ApiCall[Any, Any]) -> str:
    """Return the name of the schedule in the path; raise `ScheduleNotFound` if no schedule can have that name."""
    name = call.path["name"]
    try:
        return require_id(name, "name")
    except (ValueError, LimitExceeded):
        raise ScheduleNotFound(name=name[:MAX_ID_LENGTH]) from None


def _preconditions(call: ApiCall[Any, Any]) -> Callable[[ScheduleRecord | None], None]:
    scope = call.request.scope
    if_match, if_none_match = header_of(scope, b"if-match"), header_of(scope, b"if-none-match")
    return lambda record: check_preconditions(record, if_match, if_none_match)


# -- storing


def find_handler(app: Mainspring, identity: Identity, body: ScheduleBody) -> Handler:
    """Return the handler of a schedule that a caller wants to store.

    Raises `NotAllowed` if the caller may not store it, whether there is such a handler or not. Raises
    `UnknownHandler`, with the types that the caller may schedule, if no handler is registered.
    """
    registry = app.registry
    handler = registry.get(body.type) if body.type in registry else None
    require_rights(identity, Scope.OPERATE, body.type, body.queue, handler)
    if handler is not None:
        require_url_right(identity, handler, body.queue or handler.options.queue)
        return handler
    handlers = map(registry.get, registry.names())
    known = [
        handler.name
        for handler in handlers
        if identity.allows(Scope.OPERATE, type=handler.name, queue=handler.options.queue)
    ]
    raise UnknownHandler(name=body.type[:MAX_ID_LENGTH], known=tuple(sorted(known)))


def define(app: Mainspring, identity: Identity, name: str, body: ScheduleBody) -> ScheduleDefinition:
    """Check the schedule that a caller wants to store, and return its definition.

    Raises `Refused`, or an error of the library such as `ScheduleInvalid` or `NotAllowed`.
    """
    handler = find_handler(app, identity, body)
    positional, named = handler.arguments.decode(bytes(body.arguments), "json")
    _require_real(handler, body)
    with checked_values():
        job: JobFunction[..., Any] = JobFunction(handler, handler.function, app).options(
            queue=body.queue, priority=None if body.priority is None else Priority[body.priority]
        )
        return define_schedule(
            name,
            job,
            body.rule.to_rule(),
            arguments=handler.arguments.bind(tuple(positional), named) if named else tuple(positional),
            misfire=body.to_misfire(),
            overlap=body.overlap,
            jitter=body.jitter,
            start=body.start,
            end=body.end,
            is_declared=name in app.declared,
        )


def _require_real(handler: Handler, body: ScheduleBody) -> None:
    """Raise `Refused` if a redacted argument is the text that the API shows in its place.

    A client that reads a schedule and stores it again would replace the value by that text.
    """
    given = msgspec.json.decode(body.arguments) if handler.redacted else None
    for name in handler.redacted:
        if isinstance(given, dict) and given.get(name) == REDACTED:
            raise invalid_value(
                f"the argument {name!r} is {REDACTED!r}, which the API shows in place of a redacted value; send "
                "the value itself"
            )


class ScheduleEndpoints:
    """The endpoints that read and change schedules."""

    def __init__(self) -> None:
        self._storing = CallerCounts()  # the requests that store a schedule now

    async def list(self, call: ApiCall[None, ScheduleListQuery]) -> ApiAnswer:
        """Answer a page of the schedules that match filters and that the caller may read, sorted by name."""
        query, after = call.query, call.query.after or ""
        found = await _schedules(call, check_for(call.identity, Scope.READ)).list_async()
        wanted = [
            schedule
            for schedule in found
            if query.type in (None, schedule.type) and query.queue in (None, schedule.queue)
        ]
        rest = [schedule for schedule in wanted if schedule.name > after]
        page, is_last = rest[: query.limit], len(rest) <= query.limit
        views = await call.app.off_loop.read(lambda: [to_schedule_view(schedule) for schedule in page])
        return ApiAnswer(content=SchedulePageView(schedules=views, next=None if is_last else page[-1].name))

    async def get(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer one schedule with its ETag; raise `ScheduleNotFound` if the caller may read none of this name."""
        schedule = await _schedules(call, check_for(call.identity, Scope.READ)).get_async(_name(call))
        return ApiAnswer(content=to_schedule_view(schedule), headers={"ETag": etag_of(schedule.record)})

    async def put(self, call: ApiCall[ScheduleBody, NoQuery]) -> ApiAnswer:
        """Store a schedule, or change the one with this name; answer 201 if it is new, else 200.

        Raises `Refused` if a value is wrong, if it recurs too often, if the caller has too many schedules, or if
        the headers `If-Match` or `If-None-Match` forbid the change; `ScheduleInvalid` or `NotAllowed` as `define`
        does.
        """
        with checked_values():
            name = require_id(call.path["name"], "name")
        await open_manager(call.app)
        identity, preconditions = call.identity, _preconditions(call)
        definition = define(call.app, identity, name, call.body)
        require_sparse(definition.rule, call.app.manager().engine.now(), call.limits)
        may_change = check_for(identity, Scope.OPERATE)
        before: list[ScheduleRecord | None] = []

        def check(record: ScheduleRecord | None) -> bool:
            if not may_change(record):  # the caller may not know what it is
                raise NotAllowed(name=identity.name, scope=str(Scope.OPERATE))
            preconditions(record)
            before[:] = [record]
            return True

        call.meter.count()
        schedule = await self._store(call, definition, check)
        is_new = before == [None]
        return ApiAnswer(
            status=CREATED if is_new else OK,
            content=StoredScheduleView(
                name=name,
                is_new=is_new,
                is_paused=schedule.is_paused,
                is_declared=schedule.is_declared,
                next_due=schedule.next_due,
            ),
            headers={"ETag": etag_of(schedule.record)},
        )

    async def _store(
        self, call: ApiCall[ScheduleBody, NoQuery], definition: ScheduleDefinition, check: RecordCheck
    ) -> ScheduleInfo:
        """Store a schedule on a thread; raise `Refused` if the caller may have no other one, or too many jobs."""
        caller, engine = call.identity.caller, call.app.manager().engine
        schedules = _schedules(call, check)

        def store(storing: int) -> ScheduleInfo:
            own = [each for each in engine.schedules() if each.maker == caller and each.name != definition.name]
            require_room(definition.rule, own, engine.now(), call.limits, in_progress=storing - 1)
            return schedules.store(replace(definition, maker=caller))

        # Counted before the list is read: the last one of simultaneous requests counts all others.
        with self._storing.count(caller) as storing:
            return await call.app.off_loop.write(store, storing)

    async def remove(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Delete a schedule with its history; its jobs stay.

        Raises `ScheduleNotFound` if the caller knows of no such schedule, and `Refused` if the headers `If-Match`
        or `If-None-Match` forbid the change.
        """
        name, preconditions = _name(call), _preconditions(call)
        may_change = check_for(call.identity, Scope.OPERATE)

        def check(record: ScheduleRecord | None) -> bool:
            is_known = may_change(record)
            if is_known:
                preconditions(record)
            return is_known

        await _schedules(call, check).remove_async(name)
        return ApiAnswer(content=ChangedScheduleView(name=name, is_changed=True))

    async def pause(self, call: ApiCall[EmptyBody, NoQuery]) -> ApiAnswer:
        """Pause a schedule; do nothing if it is paused."""
        name, schedules = _name(call), _schedules(call, check_for(call.identity, Scope.OPERATE))
        return ApiAnswer(content=ChangedScheduleView(name=name, is_changed=await schedules.pause_async(name)))

    async def resume(self, call: ApiCall[EmptyBody, NoQuery]) -> ApiAnswer:
        """Resume a schedule; do nothing if it is not paused."""
        name, schedules = _name(call), _schedules(call, check_for(call.identity, Scope.OPERATE))
        return ApiAnswer(content=ChangedScheduleView(name=name, is_changed=await schedules.resume_async(name)))

    async def trigger(self, call: ApiCall[EmptyBody, NoQuery]) -> ApiAnswer:
        """Submit one job of a schedule, due now; raise `ScheduleBusy` if its overlap policy forbids that."""
        name, schedules = _name(call), _schedules(call, check_for(call.identity, Scope.OPERATE))
        chosen = None if call.ids is None else call.ids.take()[0]
        call.meter.count()
        job_id = (await schedules.trigger_async(name, id=chosen)).id
        place = quote(f"{call.request.scope.get('root_path', '')}{API}/jobs/", safe="/%:@")
        return ApiAnswer(
            status=CREATED,
            content=TriggeredView(name=name, id=job_id),
            headers={"Location": place + quote(job_id, safe="")},
        )

    async def preview(self, call: ApiCall[None, PreviewQuery]) -> ApiAnswer:
        """Answer the coming occurrences of a cron expression, or of the stored schedule that the query names.

        Raises `Refused` unless the query has either an expression or a name, and `ScheduleInvalid` for a wrong
        expression.
        """
        query = call.query
        options = (query.tz, query.dst_gap, query.dst_fold)
        if (query.expression is None) is (query.name is None) or (query.name is not None and any(options)):
            raise invalid_value("give an expression, with tz, dst_gap and dst_fold if necessary, or only a name")
        schedule: ScheduleInfo | None = None
        if query.name is not None:
            with checked_values():
                require_id(query.name, "name")
            schedule = await _schedules(call, check_for(call.identity, Scope.READ)).get_async(query.name)
        manager = await open_manager(call.app)
        return ApiAnswer(content=await call.app.off_loop.read(_preview, query, schedule, manager.engine.now()))

    async def history(self, call: ApiCall[None, HistoryQuery]) -> ApiAnswer:
        """Answer the latest jobs of a schedule that the caller may read, and its occurrences without a job."""
        name, limit = _name(call), call.query.limit
        schedules = _schedules(call, check_for(call.identity, Scope.READ))
        left_out = await schedules.history_async(name, limit)
        jobs = [
            job
            for job in await schedules.jobs_async(name, limit)
            if call.identity.allows(Scope.READ, type=job.type, queue=job.queue)
        ]
        entries = merge_history(jobs, left_out, limit)
        return ApiAnswer(content=HistoryView(name=name, history=[to_entry_view(entry) for entry in entries]))


# -- previews


def _preview(query: PreviewQuery, schedule: ScheduleInfo | None, now: int) -> PreviewView:
    if schedule is not None:
        if schedule.rule is None:
            raise invalid_value(
                f"the server cannot read the rule of {schedule.name!r}: a newer version has written it, or its "
                "time zone is unknown; upgrade Mainspring or tzdata on the server"
            )
        bounded = BoundedRule(schedule.rule, schedule.record.start, schedule.record.end)
    else:
        form = CronRule(
            expression=query.expression or "",
            tz=query.tz or "UTC",
            dst_gap=query.dst_gap or "auto",
            dst_fold=query.dst_fold or "auto",
        )
        bounded = BoundedRule(form.to_rule())
    after = now
    if query.since is not None:
        with checked_values():
            after = to_instant(first_moment(_parse_since(query.since), bounded.rule), "from") - 1
    rule = to_form(bounded.rule)
    assert rule is not None
    return PreviewView(
        rule=rule,
        is_paused=schedule is not None and schedule.is_paused,
        dates=[to_date_view(date) for date in next_dates(bounded, after, query.count)],
    )


def _parse_since(text: str) -> datetime | date:
    for kind in (date, datetime):
        try:
            found: date | datetime = msgspec.convert(text, kind)
        except (msgspec.ValidationError, ValueError):
            continue
        if not isinstance(found, datetime) or found.tzinfo is not None:
            return found
    raise ValueError(
        f"from is {text[:100]!r}; write an instant with a time zone such as 2027-03-28T00:00:00Z (a plus sign is "
        "written as %2B), or a day such as 2027-03-28"
    )


# -- declarations


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints of schedules.

    The preview comes first, because its path `/schedules/preview` would also match the name of a schedule.
    """
    schedules = ScheduleEndpoints()
    return [*_reads(schedules), *_definitions(schedules), *_actions(schedules)]


def _reads(schedules: ScheduleEndpoints) -> list[Endpoint]:
    date_example = {
        "local": "2027-03-28T03:00:00+02:00",
        "utc": "2027-03-28T01:00:00Z",
        "note": "moved by a DST gap from 02:30",
        "is_skipped": False,
    }
    entry_example = {
        "at": "2026-11-17T01:30:00Z",
        "kind": "occurrence",
        "job_id": EXAMPLE_ID,
        "status": "COMPLETED",
        "first": "2026-11-17T01:30:00Z",
        "count": 1,
        "note": None,
    }
    return [
        Endpoint(
            name="preview_schedule",
            method="GET",
            path="/schedules/preview",
            subject="schedules",
            summary="Show the next dates of a cron expression or of a schedule.",
            description=(
                "Dates that are affected by a change of clocks have a note. A schedule named `preview` can "
                "be stored and listed, but not read by its path."
            ),
            scopes=(Scope.READ,),
            serve=schedules.preview,
            query=PreviewQuery,
            answers={
                OK: AnswerType(
                    type=PreviewView,
                    description="The dates.",
                    example={"rule": EXAMPLE_RULE, "is_paused": False, "dates": [date_example]},
                )
            },
            problems=("schedule-not-found", "schedule-invalid", "invalid-value"),
        ),
        Endpoint(
            name="list_schedules",
            method="GET",
            path="/schedules",
            subject="schedules",
            summary="List schedules by name.",
            description="Schedules that the token may not read are left out.",
            scopes=(Scope.READ,),
            serve=schedules.list,
            query=ScheduleListQuery,
            answers={
                OK: AnswerType(
                    type=SchedulePageView,
                    description="A page of schedules.",
                    example={"schedules": [EXAMPLE_SCHEDULE], "next": None},
                )
            },
        ),
        Endpoint(
            name="get_schedule",
            method="GET",
            path="/schedules/{name}",
            subject="schedules",
            summary="Read a schedule.",
            scopes=(Scope.READ,),
            serve=schedules.get,
            path_parameters=NAME,
            answers={
                OK: AnswerType(
                    type=ScheduleView,
                    description="The schedule.",
                    example=EXAMPLE_SCHEDULE,
                    headers={"ETag": "The version of the definition, for If-Match."},
                )
            },
            problems=("schedule-not-found",),
        ),
        Endpoint(
            name="get_schedule_history",
            method="GET",
            path="/schedules/{name}/history",
            subject="schedules",
            summary="Read the latest jobs of a schedule, and its occurrences without a job.",
            description="The newest 10,000 jobs of the job type are searched.",
            scopes=(Scope.READ,),
            serve=schedules.history,
            path_parameters=NAME,
            query=HistoryQuery,
            answers={
                OK: AnswerType(
                    type=HistoryView,
                    description="The history, the latest entry first.",
                    example={"name": "nightly-report", "history": [entry_example]},
                )
            },
            problems=("schedule-not-found",),
        ),
    ]


def _definitions(schedules: ScheduleEndpoints) -> list[Endpoint]:
    stored = {
        "name": "nightly-report",
        "is_new": True,
        "is_paused": False,
        "is_declared": False,
        "next_due": "2026-11-18T01:30:00Z",
    }
    etag = {"ETag": "The version of the definition, for If-Match."}
    return [
        Endpoint(
            name="put_schedule",
            method="PUT",
            path="/schedules/{name}",
            subject="schedules",
            summary="Store a schedule, or change the one with this name.",
            description=(
                "An equal definition changes nothing. A changed one applies from now on. A paused schedule stays "
                "paused. With `If-Match` it is stored only if the schedule still has this ETag, and with "
                "`If-None-Match: *` only if there is none. The token needs the scope for the job types and queues "
                "of the stored and of the new definition."
            ),
            scopes=(Scope.OPERATE,),
            serve=schedules.put,
            path_parameters=NAME,
            headers={
                "If-Match": "Store it only if the schedule has this ETag.",
                "If-None-Match": "`*`: store it only if there is no schedule with this name.",
            },
            body=ScheduleBody,
            body_examples={
                "every night": {
                    "type": "shop.send_report",
                    "arguments": {"customer": "ann"},
                    "rule": {"kind": "cron", "expression": "30 2 * * *", "tz": "Europe/Berlin"},
                },
                "every five minutes": {
                    "type": "shop.sync",
                    "rule": {"kind": "every", "interval": 300},
                    "overlap": "queue",
                },
            },
            answers={
                CREATED: AnswerType(
                    type=StoredScheduleView, description="The schedule is new.", example=stored, headers=etag
                ),
                OK: AnswerType(
                    type=StoredScheduleView,
                    description="The schedule existed.",
                    example={**stored, "is_new": False},
                    headers=etag,
                ),
            },
            problems=(
                "unknown-handler",
                "invalid-arguments",
                "arguments-too-large",
                "callback-refused",
                "schedule-invalid",
                "schedule-too-dense",
                "too-many-schedules",
                "submit-rate",
                "invalid-value",
                "precondition-failed",
                "refused-by-store",
            ),
        ),
        Endpoint(
            name="delete_schedule",
            method="DELETE",
            path="/schedules/{name}",
            subject="schedules",
            summary="Delete a schedule with its history.",
            description=(
                "The jobs that it has submitted stay. A schedule that the code declares is stored again when a "
                "worker starts. With `If-Match` it is deleted only if it still has this ETag."
            ),
            scopes=(Scope.OPERATE,),
            serve=schedules.remove,
            path_parameters=NAME,
            headers={"If-Match": "Delete it only if the schedule has this ETag."},
            answers={
                OK: AnswerType(
                    type=ChangedScheduleView,
                    description="The schedule is deleted.",
                    example={"name": "nightly-report", "is_changed": True},
                )
            },
            problems=("schedule-not-found", "precondition-failed"),
        ),
    ]


def _actions(schedules: ScheduleEndpoints) -> list[Endpoint]:
    changed = {"name": "nightly-report", "is_changed": True}
    return [
        Endpoint(
            name="pause_schedule",
            method="POST",
            path="/schedules/{name}/pause",
            subject="schedules",
            summary="Pause a schedule.",
            description="Jobs that it has submitted are not affected.",
            scopes=(Scope.OPERATE,),
            serve=schedules.pause,
            path_parameters=NAME,
            body=EmptyBody,
            answers={
                OK: AnswerType(type=ChangedScheduleView, description="The schedule is paused.", example=changed)
            },
            problems=("schedule-not-found",),
        ),
        Endpoint(
            name="resume_schedule",
            method="POST",
            path="/schedules/{name}/resume",
            subject="schedules",
            summary="Resume a schedule, from its next occurrence on.",
            scopes=(Scope.OPERATE,),
            serve=schedules.resume,
            path_parameters=NAME,
            body=EmptyBody,
            answers={
                OK: AnswerType(
                    type=ChangedScheduleView, description="The schedule is not paused.", example=changed
                )
            },
            problems=("schedule-not-found", "schedule-invalid"),
        ),
        Endpoint(
            name="trigger_schedule",
            method="POST",
            path="/schedules/{name}/trigger",
            subject="schedules",
            summary="Run the job of a schedule once, now, beside its occurrences.",
            description=(
                "A paused schedule can be triggered as well. While an earlier job has not ended, its policy "
                "`overlap` applies: with `skip` the answer is 409."
            ),
            scopes=(Scope.OPERATE,),
            serve=schedules.trigger,
            path_parameters=NAME,
            body=EmptyBody,
            answers={
                CREATED: AnswerType(
                    type=TriggeredView,
                    description="The job is stored.",
                    example={"name": "nightly-report", "id": EXAMPLE_ID},
                    headers={"Location": "The path of the job."},
                )
            },
            problems=("schedule-not-found", "schedule-busy", "refused-by-store", "submit-rate"),
        ),
    ]
