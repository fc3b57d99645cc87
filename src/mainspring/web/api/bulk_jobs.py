"""The endpoints for all jobs that filters choose: count them, and change them.

Invariants
- They count only jobs that the caller may read, and change only jobs that it may operate on.
- A request takes a bounded time: it counts at most 10,000 jobs of each status and changes at most 500. `next` of
  the answer continues a change. Its time `until` is kept, so that jobs that are submitted meanwhile are not
  changed.
- A caller without the scope `read` may not filter by arguments or text: the number of jobs would tell the values.
- The answers have numbers only.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from mainspring.errors import NotAllowed
from mainspring.jobs.bulk_changes import (
    MAX_COUNTED,
    STEP,
    BulkAction,
    BulkStep,
    JobCount,
    JobSelection,
    change_jobs,
    check_filters,
    check_ids,
    count_jobs,
)
from mainspring.jobs.handle import open_manager
from mainspring.jobs.manager import JobManager
from mainspring.jobs.search import OneOf
from mainspring.jobs.status import JobStatus
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.jobs.timestamps import to_datetime, to_past
from mainspring.security.permissions import Identity, Scope
from mainspring.web.api.decoding import checked_values, invalid_value
from mainspring.web.api.endpoint import OK, AnswerType, ApiAnswer, ApiCall, Endpoint, Instant, NoQuery
from mainspring.web.api.job_views import EXAMPLE_ID
from mainspring.web.api.jobs import meanings_of, parse_past

if TYPE_CHECKING:
    from mainspring.app import Mainspring


ActionName = Literal["cancel", "retry", "run-now", "reschedule"]


class JobFilterFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters by which a request chooses jobs, the same as those of `list_jobs`."""

    status: Annotated[JobStatus | None, Meta(description="Only jobs with this status.")] = None
    queue: Annotated[str | None, Meta(description="Only jobs of this queue.")] = None
    type: Annotated[str | None, Meta(description="Only jobs of this type.")] = None
    argument: Annotated[
        dict[str, str], Meta(description="Only jobs with these arguments: 42 and the text `42` are both found.")
    ] = {}
    since: Annotated[
        str | None, Meta(description="Only jobs submitted at this instant or later, or within `2h`, `7d`.")
    ] = None
    until: Annotated[str | None, Meta(description="Only jobs submitted before this instant, or `2h` ago.")] = None
    text: Annotated[
        str | None, Meta(description="Only jobs with this text in the id, the type, the arguments or the error.")
    ] = None

    @property
    def chosen(self) -> list[str] | None:
        """The ids to which the request restricts the filters: always None here; a subclass may have ids."""
        return None

    def selection(self, identity: Identity, now: int) -> JobSelection:
        """Return a selection of the jobs that match these filters and the types and queues of the caller.

        Raises `NotAllowed` for a filter by arguments or text without the scope `read`, and `Refused` for a wrong
        time.
        """
        if (self.argument or self.text) and not identity.permissions.has(Scope.READ):
            raise NotAllowed(name=identity.name, scope=str(Scope.READ), type=self.type, queue=self.queue)
        return JobSelection(
            status=self.status,
            queue=self.queue,
            type=self.type,
            arguments={name: OneOf(meanings_of(value)) for name, value in self.argument.items()} or None,
            since=_moment(self.since, "since", now),
            until=_moment(self.until, "until", now),
            text=self.text,
            types=identity.permissions.types,
            queues=identity.permissions.queues,
            ids=None if self.chosen is None else tuple(dict.fromkeys(self.chosen)),
        )


def _moment(text: str | None, name: str, now: int) -> datetime | None:
    moment = parse_past(text, name)
    with checked_values():
        return None if moment is None else to_datetime(to_past(moment, now, name))


class JobCountQuery(JobFilterFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of a count of jobs."""

    action: Annotated[
        ActionName | None, Meta(description="Only jobs that this action of `change_jobs` would concern.")
    ] = None


class JobCountView(Struct, frozen=True, kw_only=True):
    """How many jobs match the filters."""

    number: int
    is_exact: Annotated[bool, Meta(description="False if there may be more: the count has stopped.")]
    scanned: Annotated[int, Meta(description="How many jobs a search by arguments or text has read.")]


class JobChangeBody(JobFilterFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs to change, by filters, ids or `all`, and the action."""

    action: Annotated[ActionName, Meta(description="The change that is made to each job.")]
    all: Annotated[bool, Meta(description="Change all jobs that the token may change, without a filter.")] = False
    ids: Annotated[
        Annotated[list[str], Meta(max_length=STEP)] | None,
        Meta(description="Change only jobs with these ids. Not together with `argument` or `text`."),
    ] = None
    delay: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="For `reschedule`: how many seconds from now the jobs are due."),
    ] = None
    at: Annotated[Instant | None, Meta(description="For `reschedule`: when the jobs are due.")] = None
    after: Annotated[str | None, Meta(description="`next.after` of the answer before.")] = None
    dry_run: Annotated[bool, Meta(description="Count the jobs, and change nothing.")] = False

    @property
    def chosen(self) -> list[str] | None:
        """The ids to which the request restricts the filters; None if it names no ids."""
        return self.ids


class NextChangeView(Struct, frozen=True, kw_only=True):
    """The fields that the next request puts into the same body, to continue the change."""

    after: str
    until: Instant
    at: Instant | None


class JobChangeView(Struct, frozen=True, kw_only=True):
    """The answer to a change of many jobs: how many were changed, or, for a dry run, how many match."""

    is_dry_run: bool
    total: Annotated[
        int | None, Meta(description="How many jobs match; null unless it is a dry run, which counts them.")
    ] = None
    is_exact: Annotated[bool, Meta(description="False if there may be more than `total`.")] = True
    changed: int = 0
    asked_to_stop: Annotated[int, Meta(description="How many RUNNING jobs were asked to stop.")] = 0
    left: Annotated[
        int,
        Meta(description="How many jobs were left as they are: they have started or ended meanwhile, or are due."),
    ] = 0
    next: Annotated[
        NextChangeView | None,
        Meta(description="The fields of the next request; null if all jobs are done, or if it is a dry run."),
    ] = None


class BulkEndpoints:
    """The endpoints that count the jobs which match filters, and change all of them in the same way."""

    async def count(self, call: ApiCall[None, JobCountQuery]) -> ApiAnswer:
        """Answer how many jobs match filters and may be read by the caller; the count stops at 10,000.

        With `action`, only jobs that this action can change count, up to 10,000 of each status. Raises `Refused`
        for a wrong value.
        """
        manager = await open_manager(call.app)
        selection = call.query.selection(call.identity, manager.engine.now())
        action = None if call.query.action is None else BulkAction(call.query.action)
        found = await call.app.off_loop.read(_count, manager, selection, action)
        return ApiAnswer(content=JobCountView(number=found.number, is_exact=found.is_exact, scanned=found.scanned))

    async def change(self, call: ApiCall[JobChangeBody, NoQuery]) -> ApiAnswer:
        """Cancel, retry, run now or reschedule jobs that match filters or ids, at most 500 in one request.

        With `dry_run`, only count all of these jobs. Raises `Refused` if there is neither a filter nor `ids` nor
        `all`, or a value is wrong.
        """
        manager = await open_manager(call.app)
        body, now = call.body, manager.engine.now()
        filters = (body.status, body.queue, body.type, body.argument, body.since, body.until, body.text)
        if not body.all and not any(filters) and body.ids is None:
            raise invalid_value(
                'the request chooses no jobs; give a filter such as queue or type, or ids, or "all": true'
            )
        selection = body.selection(call.identity, now)
        action = BulkAction(body.action)
        if body.status is not None and body.status not in action.statuses:
            raise invalid_value(
                f"the action {action} concerns jobs that are {' or '.join(action.statuses)}, and status is "
                f"{body.status}; leave status out, or give one of these"
            )
        due = _due(body, action, manager.engine.latest())
        with checked_values():
            check_ids(selection)
        if body.dry_run:
            found = await call.app.off_loop.read(_count, manager, selection, action)
            content = JobChangeView(is_dry_run=True, total=found.number, is_exact=found.is_exact)
            return ApiAnswer(content=content)
        until = to_datetime(now + 1) if selection.until is None else selection.until
        chosen = replace(selection, until=until)
        after = body.after
        step = await call.app.off_loop.write(_change, manager, chosen, action, due, after)
        following = None
        if step.after is not None:
            following = NextChangeView(after=step.after, until=until, at=None if due is None else to_datetime(due))
        return ApiAnswer(
            content=JobChangeView(
                is_dry_run=False,
                changed=step.changed,
                asked_to_stop=step.asked_to_stop,
                left=step.left,
                next=following,
            )
        )


def _count(manager: JobManager, selection: JobSelection, action: BulkAction | None) -> JobCount:
    with checked_values():
        return count_jobs(manager, selection, action)


def _change(
    manager: JobManager, selection: JobSelection, action: BulkAction, due: int | None, after: str | None
) -> BulkStep:
    with checked_values():
        check_filters(manager, selection, action, after)
    return change_jobs(manager, selection, action, due=due, after=after)


def _due(body: JobChangeBody, action: BulkAction, latest: int) -> int | None:
    """Return the new due time in microseconds for `reschedule`, None for other actions.

    Raises `Refused` if the due time is missing, wrong, given twice, or given for another action.
    """
    if action is not BulkAction.RESCHEDULE:
        if body.delay is not None or body.at is not None:
            raise invalid_value(f"the action {action} takes no due time; leave delay and at out")
        return None
    if (body.delay is None) == (body.at is None):
        raise invalid_value("the action reschedule needs one new due time; give either delay or at")
    with checked_values():
        wait = None if body.delay is None else timedelta(seconds=body.delay)
        return SubmitOptions().changed(delay=wait, at=body.at).due(latest)


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints that count and change many jobs."""
    bulk = BulkEndpoints()
    return [
        Endpoint(
            name="count_jobs",
            method="GET",
            path="/job-count",
            subject="jobs",
            summary="Count the jobs that match filters.",
            description=(
                f"The count stops at {MAX_COUNTED:,}, so that it is fast with any number of jobs. Jobs that the "
                "token may not read are not counted."
            ),
            scopes=(Scope.READ,),
            serve=bulk.count,
            query=JobCountQuery,
            answers={
                OK: AnswerType(
                    type=JobCountView,
                    description="The number of jobs.",
                    example={"number": 42, "is_exact": True, "scanned": 0},
                )
            },
            problems=("invalid-value",),
        ),
        Endpoint(
            name="change_jobs",
            method="POST",
            path="/jobs/change",
            subject="jobs",
            summary="Cancel, retry or reschedule all jobs that match filters, or named jobs.",
            description=(
                "Give filters, `ids`, or `all`. With `dry_run`, the answer has their number. One request "
                f"changes at most {STEP}: if `next` of the answer is not null, send the same body with its fields "
                "instead of `until`, `after`, `delay` and `at`. Filters by arguments or text need the scope "
                "`read`, too."
            ),
            scopes=(Scope.OPERATE,),
            serve=bulk.change,
            body=JobChangeBody,
            body_examples={
                "cancel a type": {"action": "cancel", "type": "shop.cancel_order", "since": "2h"},
                "how many": {"action": "retry", "queue": "orders", "dry_run": True},
                "later": {"action": "reschedule", "queue": "orders", "delay": 3600},
                "these": {"action": "retry", "ids": [EXAMPLE_ID]},
            },
            answers={
                OK: AnswerType(
                    type=JobChangeView,
                    description="How many jobs were changed, or would be.",
                    example={
                        "is_dry_run": False,
                        "total": None,
                        "is_exact": True,
                        "changed": 12,
                        "asked_to_stop": 0,
                        "left": 0,
                        "next": None,
                    },
                )
            },
            problems=("invalid-value",),
        ),
    ]
