"""The endpoints that read jobs: one job, its explanation, the jobs that it is linked with, and lists in pages.

Invariants
- A list leaves out jobs that the caller may not read. The store filters them out, so pages are full nevertheless.
  Cursors of SQLite are positions among all jobs: two of them reveal about how many jobs others have submitted.
- A page has at most about `PAGE_BYTES` of data: it may be shorter than its limit, and `next` continues it.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from mainspring.jobs.explanation import Explanation, Reason
from mainspring.jobs.handle import open_manager
from mainspring.jobs.info import JobPage
from mainspring.jobs.job_links import Relation, find_links
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.search import OneOf
from mainspring.jobs.status import JobStatus
from mainspring.security.permissions import Identity, Scope
from mainspring.web.api.decoding import checked_values, invalid_value
from mainspring.web.api.endpoint import AnswerType, ApiAnswer, ApiCall, Endpoint, Instant, NoQuery
from mainspring.web.api.job_views import EXAMPLE_ID, EXAMPLE_JOB, JOB_ID, JobView, find_job, to_view, view_of
from mainspring.web.api.router import encode_json

if TYPE_CHECKING:
    from mainspring.app import Mainspring

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
PAGE_BYTES = 8 * 1024 * 1024
READ_AT_ONCE = 25  # how many jobs of a list are in memory at once, beside their encoded form
_AGO = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TIME = "an instant such as 2026-11-17T12:00:00Z (a plus sign is written as %2B), or a time before now such as 2h"


class JobListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of a list of jobs."""

    status: Annotated[JobStatus | None, Meta(description="Only jobs with this status.")] = None
    queue: Annotated[str | None, Meta(description="Only jobs of this queue.")] = None
    type: Annotated[str | None, Meta(description="Only jobs of this type.")] = None
    argument: Annotated[
        dict[str, str],
        Meta(description="Only jobs with this argument: `argument.order_id=42` finds 42 and the text `42`."),
    ] = {}
    since: Annotated[
        str | None, Meta(description="Only jobs submitted at this instant or later, or within `2h`, `7d`.")
    ] = None
    until: Annotated[str | None, Meta(description="Only jobs submitted before this instant, or `2h` ago.")] = None
    text: Annotated[
        str | None, Meta(description="Only jobs with this text in the id, the type, the arguments or the error.")
    ] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="The most jobs of a page.")] = DEFAULT_LIMIT
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None
    newest_first: Annotated[bool, Meta(description="List in the reverse order of submission.")] = False


class JobPageView(Struct, frozen=True, kw_only=True):
    """A page of a list of jobs, with the position of the next page."""

    jobs: list[JobView]
    next: Annotated[str | None, Meta(description="`after` of the next page; null on the last one.")]
    is_complete: Annotated[
        bool,
        Meta(description="False if a search by arguments or text ended before its page was full; `next` goes on."),
    ]
    scanned: Annotated[int, Meta(description="How many jobs a search by arguments or text has read.")]
    reached: Annotated[Instant | None, Meta(description="When the last job that a search has read was submitted.")]


class ExplanationView(Struct, frozen=True, kw_only=True):
    """Why a job has its status, and what would change it."""

    id: str
    status: JobStatus
    reason: Annotated[str, Meta(examples=[str(Reason.NOT_DUE), str(Reason.NO_WORKER)])]
    text: Annotated[str, Meta(description="One sentence for people.")]
    remedy: Annotated[str | None, Meta(description="What would change the status; null if nothing is necessary.")]
    until: Annotated[
        Instant | None, Meta(description="When the status changes by itself; null if that is not known.")
    ]
    blocked_by: Annotated[list[str], Meta(description="The ids of the jobs that the job waits for.")]


class JobEndpoints:
    """The endpoints that read jobs."""

    async def get(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer one job; raise `JobNotFound` if there is none that the caller may read."""
        return ApiAnswer(content=await view_of(call, await find_job(call, Scope.READ)))

    async def list(self, call: ApiCall[None, JobListQuery]) -> ApiAnswer:
        """Answer a page of the jobs that match filters and that the caller may read."""
        manager = await open_manager(call.app)
        content = await call.app.off_loop.read(_list, manager, call.query, call.identity)
        return ApiAnswer(content=content)

    async def explain(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer why a job has its status.

        If the explanation tells of jobs, types or queues that the caller may not read, its text is replaced by the
        bare reason, and its remedy and the ids of these jobs are left out.
        """
        record = await find_job(call, Scope.READ)
        manager = await open_manager(call.app)
        return ApiAnswer(content=await call.app.off_loop.read(_explain, manager, record, call.identity))

    async def links(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer the jobs that a job is linked with, such as its follow-up, as far as the caller may read them."""
        record = await find_job(call, Scope.READ)
        manager = await open_manager(call.app)
        return ApiAnswer(content=await call.app.off_loop.read(_links, manager, record, call.identity))


def _list(manager: JobManager, query: JobListQuery, identity: Identity) -> dict[str, Any]:
    """Return a page of jobs. Without a search, a few jobs are read and encoded at a time, to save memory."""
    permissions = identity.permissions
    is_search = bool(query.argument or query.text)
    jobs: list[msgspec.Raw] = []
    after, size = query.after, 0
    while True:
        wanted = query.limit - len(jobs)
        with checked_values():
            page: JobPage = manager.list(
                status=query.status,
                queue=query.queue,
                type=query.type,
                arguments={name: OneOf(meanings_of(value)) for name, value in query.argument.items()} or None,
                since=parse_past(query.since, "since"),
                until=parse_past(query.until, "until"),
                text=query.text,
                limit=wanted if is_search else min(wanted, READ_AT_ONCE),
                after=after,
                newest_first=query.newest_first,
                types=permissions.types,
                queues=permissions.queues,
            )
        encoded = [encode_json(to_view(job)) for job in page]
        jobs += map(msgspec.Raw, encoded)
        size += sum(map(len, encoded))
        after = page.next
        if is_search or after is None or len(jobs) >= query.limit or size >= PAGE_BYTES:
            return {
                "jobs": jobs,
                "next": after,
                "is_complete": page.is_complete,
                "scanned": page.scanned,
                "reached": page.reached,
            }


def meanings_of(text: str) -> tuple[Any, ...]:
    """Return the values that the text of an argument may mean: `42` is the number 42 or the string "42"."""
    try:
        return msgspec.json.decode(text), text
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return (text,)


def parse_past(text: str | None, name: str) -> datetime | timedelta | None:
    """Parse an instant, or a time before now such as `2h`; return None for None.

    Raises `Refused` for any other text; `name` is the parameter, for the error.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return timedelta(**{_UNITS[ago["unit"]]: int(ago["number"])})
    try:
        moment = msgspec.convert(text, datetime)
    except (msgspec.ValidationError, ValueError, OverflowError):
        raise invalid_value(f"{name} is {text[:100]!r}, which is no time; write {_TIME}") from None
    if moment.tzinfo is None:
        raise invalid_value(f"{name} is {text[:100]!r}, which has no time zone; write {_TIME}")
    return moment


# -- explanations

_ABOUT_OTHERS = frozenset({Reason.BEHIND, Reason.UNKNOWN_HANDLER, Reason.UNSERVED_QUEUE})
"""Reasons whose texts may name other job types or queues, or tell more of other jobs than their ids."""


def _explain(manager: JobManager, record: JobRecord, identity: Identity) -> ExplanationView:
    found = manager.explain(record.id)
    permissions = identity.permissions
    if permissions.types is None and permissions.queues is None:
        return _explanation(found, found.text, found.remedy, list(found.blocked_by))
    others = manager.engine.find(Query(ids=found.blocked_by)).records if found.blocked_by else []
    visible = {each.id for each in others if identity.allows(Scope.READ, type=each.type, queue=each.queue)}
    text, remedy = found.text, found.remedy
    if found.reason in _ABOUT_OTHERS or not visible.issuperset(found.blocked_by):
        text = f"Job {record.id} ({record.type}): {found.reason}. This token may not read all of the reasons."
        remedy = None
    return _explanation(found, text, remedy, [job_id for job_id in found.blocked_by if job_id in visible])


def _explanation(found: Explanation, text: str, remedy: str | None, blocked_by: list[str]) -> ExplanationView:
    return ExplanationView(
        id=found.job_id,
        status=found.status,
        reason=str(found.reason),
        text=text,
        remedy=remedy,
        until=found.until,
        blocked_by=blocked_by,
    )


class LinkedJobView(Struct, frozen=True, kw_only=True):
    """A job that another job is linked with, and its relation to that job."""

    relation: Annotated[
        Relation, Meta(description="What it is to the job: its predecessor, its follow-up, its replay, ...")
    ]
    id: str
    type: str
    queue: str
    status: JobStatus


class LinkedJobsView(Struct, frozen=True, kw_only=True):
    """The jobs that a job is linked with."""

    links: list[LinkedJobView]


def _links(manager: JobManager, record: JobRecord, identity: Identity) -> LinkedJobsView:
    return LinkedJobsView(
        links=[
            LinkedJobView(
                relation=link.relation,
                id=link.record.id,
                type=link.record.type,
                queue=link.record.queue,
                status=link.record.status,
            )
            for link in find_links(manager.engine, record)
            if identity.allows(Scope.READ, type=link.record.type, queue=link.record.queue)
        ]
    )


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints that read jobs."""
    jobs = JobEndpoints()
    return [
        Endpoint(
            name="list_jobs",
            method="GET",
            path="/jobs",
            subject="jobs",
            summary="List jobs in the order of submission, or the newest first.",
            description=(
                "Jobs that the token may not read are left out. A search by arguments or text reads at most "
                "10,000 jobs for a page. A page with large jobs may be shorter than `limit`: only `next` tells "
                "whether there are more."
            ),
            scopes=(Scope.READ,),
            serve=jobs.list,
            query=JobListQuery,
            answers={
                200: AnswerType(
                    type=JobPageView,
                    description="A page of jobs.",
                    example={
                        "jobs": [EXAMPLE_JOB],
                        "next": "1024",
                        "is_complete": True,
                        "scanned": 0,
                        "reached": None,
                    },
                )
            },
            problems=("invalid-value",),
        ),
        Endpoint(
            name="get_job",
            method="GET",
            path="/jobs/{id}",
            subject="jobs",
            summary="Read a job.",
            scopes=(Scope.READ,),
            serve=jobs.get,
            path_parameters=JOB_ID,
            answers={200: AnswerType(type=JobView, description="The job.", example=EXAMPLE_JOB)},
            problems=("job-not-found",),
        ),
        Endpoint(
            name="explain_job",
            method="GET",
            path="/jobs/{id}/explain",
            subject="jobs",
            summary="Explain why a job has its status, and what would change it.",
            scopes=(Scope.READ,),
            serve=jobs.explain,
            path_parameters=JOB_ID,
            answers={
                200: AnswerType(
                    type=ExplanationView,
                    description="The explanation.",
                    example={
                        "id": EXAMPLE_ID,
                        "status": "PENDING",
                        "reason": "not due",
                        "text": f"Job {EXAMPLE_ID} (shop.cancel_order) is due at 2026-11-17 12:30:00 UTC.",
                        "remedy": None,
                        "until": "2026-11-17T12:30:00Z",
                        "blocked_by": [],
                    },
                )
            },
            problems=("job-not-found",),
        ),
        Endpoint(
            name="get_job_links",
            method="GET",
            path="/jobs/{id}/links",
            subject="jobs",
            summary="List the jobs that a job is linked with.",
            description=(
                "These are the job that it follows, its follow-up job, the dead letter that it replays, and its "
                "replay. Jobs that were deleted, or that the token may not read, are left out."
            ),
            scopes=(Scope.READ,),
            serve=jobs.links,
            path_parameters=JOB_ID,
            answers={
                200: AnswerType(
                    type=LinkedJobsView,
                    description="The linked jobs.",
                    example={
                        "links": [
                            {
                                "relation": "follow-up",
                                "id": EXAMPLE_ID,
                                "type": "shop.notify",
                                "queue": "mail",
                                "status": "PENDING",
                            }
                        ]
                    },
                )
            },
            problems=("job-not-found",),
        ),
    ]
