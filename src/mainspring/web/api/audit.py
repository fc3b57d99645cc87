"""The endpoint of the audit trail: who changed jobs, queues, schedules and tokens.

Invariant: a token that is restricted to job types or queues sees an entry only if all types and queues of the
entry are among its own. Changes of tokens, and others that may concern all types, are for tokens without
restrictions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from mainspring.jobs.audit import AuditEntry, AuditQuery
from mainspring.jobs.audit_drafts import ALL_ACTIONS
from mainspring.jobs.handle import open_manager
from mainspring.jobs.manager import JobManager
from mainspring.security.permissions import Permissions, Scope
from mainspring.similar_names import did_you_mean
from mainspring.web.api.decoding import invalid_value
from mainspring.web.api.endpoint import OK, AnswerType, ApiAnswer, ApiCall, Endpoint, Instant
from mainspring.web.api.job_views import EXAMPLE_ID
from mainspring.web.api.jobs import parse_past

if TYPE_CHECKING:
    from mainspring.app import Mainspring

DEFAULT_LIMIT = 50
MAX_LIMIT = 500


class AuditListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of the audit trail."""

    since: Annotated[str | None, Meta(description="Only entries from this instant on, or within `2h`, `7d`.")] = (
        None
    )
    until: Annotated[str | None, Meta(description="Only entries before this instant, or `2h` ago.")] = None
    actor: Annotated[
        str | None, Meta(description="Only changes by this actor, with or without its host, or by this token.")
    ] = None
    action: Annotated[
        str | None,
        Meta(description="Only this action, or this kind of actions.", examples=["job.cancel", "queue"]),
    ] = None
    job: Annotated[str | None, Meta(description="Only changes of the job with this id.")] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="The most entries of a page.")] = DEFAULT_LIMIT
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None


class AuditEntryView(Struct, frozen=True, kw_only=True):
    """One change of the store by an actor. A change of many jobs by one call is one entry."""

    id: Annotated[str, Meta(description="The id of the entry. Ids sort by time.")]
    at: Instant
    actor: Annotated[str, Meta(description="A token, or a user with the host.", examples=["alice@web-1"])]
    action: Annotated[str, Meta(description="What was done.", examples=["job.cancel"])]
    target: Annotated[
        str | None, Meta(description="The id of the job, or the name of the object; null for many jobs.")
    ]
    source: Annotated[str, Meta(description="How the call came: cli, http or program.")]
    token: Annotated[str | None, Meta(description="The id of the token of the actor, which is no secret.")]
    request_id: Annotated[str | None, Meta(description="The id of the HTTP request.")]
    count: Annotated[int, Meta(description="How many jobs, or other objects, were changed.")]
    jobs: Annotated[list[str], Meta(description="The ids of jobs beside the target, at most 100.")]
    types: Annotated[list[str] | None, Meta(description="The job types concerned; null for any.")]
    queues: Annotated[list[str] | None, Meta(description="The queues concerned; null for any.")]
    details: Annotated[dict[str, Any], Meta(description="More, such as filters and names of arguments.")]


class AuditListView(Struct, frozen=True, kw_only=True):
    """A page of the audit trail, the latest entry first."""

    entries: list[AuditEntryView]
    next: Annotated[str | None, Meta(description="`after` of the next page; null on the last one.")]


def _view(entry: AuditEntry) -> AuditEntryView:
    return AuditEntryView(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        source=entry.source,
        token=entry.token,
        request_id=entry.request_id,
        count=entry.count,
        jobs=list(entry.jobs),
        types=None if entry.types is None else list(entry.types),
        queues=None if entry.queues is None else list(entry.queues),
        details=entry.details,
    )


def _list(manager: JobManager, query: AuditListQuery, permissions: Permissions) -> AuditListView:
    readable = replace(permissions, scopes=frozenset({Scope.READ}))  # the restrictions, whatever the scope
    wanted = AuditQuery.of(
        manager.engine.now(),
        query.limit + 1,
        since=parse_past(query.since, "since"),
        until=parse_past(query.until, "until"),
        actor=query.actor,
        action=query.action,
        job=query.job,
        before=query.after,
        reader=readable,
    )
    entries = manager.audit(wanted)
    page, is_last = entries[: query.limit], len(entries) <= query.limit
    return AuditListView(entries=[_view(entry) for entry in page], next=None if is_last else page[-1].id)


def _check_action(action: str | None) -> None:
    known = sorted({*ALL_ACTIONS, *(each.partition(".")[0] for each in ALL_ACTIONS)})
    if action is not None and action not in known:
        hint = did_you_mean(action[:100], known) or f"the actions are {', '.join(sorted(ALL_ACTIONS))}"
        raise invalid_value(f"{action[:100]!r} is no action; {hint}")


class AuditEndpoints:
    """The endpoint that lists the audit trail."""

    async def list(self, call: ApiCall[None, AuditListQuery]) -> ApiAnswer:
        """Answer a page of the audit trail, the latest entry first, as far as the caller may see the entries.

        Raises `Refused` for an unknown action or a wrong time.
        """
        _check_action(call.query.action)
        manager = await open_manager(call.app)
        return ApiAnswer(
            content=await call.app.off_loop.read(_list, manager, call.query, call.identity.permissions)
        )


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declaration of the endpoint that lists the audit trail."""
    example = {
        "id": EXAMPLE_ID,
        "at": "2026-11-17T12:00:00Z",
        "actor": "shop-frontend",
        "action": "job.cancel",
        "target": EXAMPLE_ID,
        "source": "http",
        "token": "4Qm2Zk0aXw",
        "request_id": "4ee93215d003482aafe310afdd3cdfd5",
        "count": 1,
        "jobs": [],
        "types": ["shop.cancel_order"],
        "queues": ["orders"],
        "details": {},
    }
    return [
        Endpoint(
            name="list_audit",
            method="GET",
            path="/audit",
            subject="store",
            summary="List who changed jobs, queues, schedules and tokens, the latest change first.",
            description="A restricted token sees only the changes of its job types and queues.",
            scopes=(Scope.OPERATE,),
            serve=AuditEndpoints().list,
            query=AuditListQuery,
            answers={
                OK: AnswerType(
                    type=AuditListView,
                    description="A page of entries.",
                    example={"entries": [example], "next": None},
                )
            },
            problems=("invalid-value",),
        ),
    ]
