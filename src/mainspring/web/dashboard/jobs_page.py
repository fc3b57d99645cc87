"""The list of jobs: filters in the URL, pages by position, bounded counts; and changes of all jobs that match.

Invariants
- All filters are in the URL, so a link shows the same jobs to each reader with the same rights.
- A page costs its own rows, however many jobs are stored. Counts stop at 10,000, and searches after 10,000 jobs;
  the page says so.
- A change of many jobs begins with a page that counts them and changes nothing. A form that is sent then changes
  jobs for about a second. The form of the next step is part of its answer, never of a page that a link could open.
- A change of selected rows takes the same way. Their ids are fields of the forms, not parts of the address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import Struct
from starlette.responses import RedirectResponse, Response

from mainspring.errors import JobNotFound, NotAllowed
from mainspring.jobs.bulk_changes import BulkAction
from mainspring.jobs.status import JobStatus
from mainspring.security.permissions import Scope
from mainspring.web.api.bulk_jobs import JobChangeView, JobCountView, NextChangeView
from mainspring.web.api.decoding import invalid_value
from mainspring.web.api.job_views import JobView, ProgressView
from mainspring.web.api.jobs import parse_past
from mainspring.web.api.store_state import statistics_view
from mainspring.web.dashboard.content import Shown, json_line, line
from mainspring.web.dashboard.form_times import TIME_HINT, parse_due, to_past
from mainspring.web.dashboard.overview import STATISTICS
from mainspring.web.dashboard.page import MAX_FIELDS, Action, ActionCall, Again, Done, Page, PageCall
from mainspring.web.dashboard.snapshots import Source
from mainspring.web.problems import Refused

if TYPE_CHECKING:
    from mainspring.app import Mainspring

LIMIT = 50
LIMITS = (25, 50, 100, 200)
PREVIEW = 10
CHANGE_SECONDS = 0.8
"""For how many seconds one sent form changes jobs before the page shows the progress."""
NUMBERS = ("changed", "asked_to_stop", "left")
SEARCH_SECONDS = 10.0
"""For how many seconds the updates of an open page repeat the answer to a search, which may read 10,000 jobs."""
FILTERS = ("status", "queue", "type", "since", "until", "text")
ARGUMENT = "argument."
SINCE_CHOICES = (("15m", "15 minutes"), ("1h", "1 hour"), ("6h", "6 hours"), ("1d", "1 day"), ("7d", "7 days"))
STATUS_LABELS = {
    JobStatus.PENDING: "Pending",
    JobStatus.RUNNING: "Running",
    JobStatus.COMPLETED: "Completed",
    JobStatus.FAILED: "Failed",
    JobStatus.CANCELED: "Canceled",
}
SEE_OTHER = 303
SELECTED = "selected"
"""The field `of` of forms that concern selected jobs: such a form without ids must not change other jobs."""
MAX_BACK = 4_000  # characters of the address of a list
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ListedJob(Struct, frozen=True, kw_only=True):
    """The fields of a job that a row of the list shows. Other fields of the API's answer are not decoded."""

    id: str
    type: str
    queue: str
    status: JobStatus
    due: datetime
    created: datetime
    started: datetime | None
    finished: datetime | None
    arguments: msgspec.Raw
    error: str | None
    attempts: int
    starts: int
    failures: int
    timeouts: int
    crashes: int
    stop_requested: bool
    replayed_as: str | None
    schedule: str | None
    progress: ProgressView | None

    def state(self, now: datetime, paused: Collection[str]) -> str:
        """Return a word for the job's state: its status in lower case, or for a PENDING job why it waits.

        A PENDING job is paused, due, retrying or scheduled. `paused` has the names of paused queues.
        """
        if self.status is not JobStatus.PENDING:
            return self.status.lower()
        if self.queue in paused:
            return "paused"
        if self.due <= now:
            return "due"
        return "retrying" if self.failures + self.timeouts + self.crashes else "scheduled"

    @property
    def at(self) -> datetime:
        """The time that the list shows: when a PENDING job is due, a RUNNING one started, any other one ended."""
        if self.status is JobStatus.PENDING:
            return self.due
        if self.status is JobStatus.RUNNING:
            return self.started or self.due
        return self.finished or self.created

    @property
    def seconds(self) -> float | None:
        """How many seconds the last attempt of an ended job took; None if it has not ended, or never started."""
        if self.started is None or self.finished is None:
            return None
        return max(0.0, (self.finished - self.started).total_seconds())

    @property
    def shown_arguments(self) -> Shown:
        """The arguments of the job as one line of JSON, cut."""
        return json_line(self.arguments)

    @property
    def shown_error(self) -> Shown:
        """The first line of the job's error, cut."""
        return line(self.error)


_decode_job = msgspec.json.Decoder(ListedJob).decode


def filters_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the filters in a URL or a form, named and written as the parameters of `list_jobs`.

    Empty filters are left out, except arguments: a job may have an empty text as argument.
    """
    found = {name: given[name].strip() for name in FILTERS if given.get(name, "").strip()}
    if "status" in found:
        found["status"] = found["status"].upper()
    found |= {name: to_past(found[name]) for name in ("since", "until") if name in found}
    arguments = {name: value for name, value in given.items() if name.startswith(ARGUMENT) and name != ARGUMENT}
    name = given.get("argument_name", "").strip()
    if name:
        arguments[f"{ARGUMENT}{name}"] = given.get("argument_value", "")
    return found | arguments


def _options_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the order and the page size in a URL, as far as they are valid and differ from the defaults."""
    found = {}
    if given.get("order") == "oldest":
        found["order"] = "oldest"
    limit = given.get("limit", "")
    if limit.isdecimal() and int(limit[:6]) in LIMITS and int(limit) != LIMIT:
        found["limit"] = limit
    return found


def is_search(filters: Mapping[str, str]) -> bool:
    """Return whether filters contain text or arguments, for which the store may have to read each job."""
    return "text" in filters or any(name.startswith(ARGUMENT) for name in filters)


async def load_jobs(call: PageCall) -> Mapping[str, Any] | Response:
    """Return the template context of the list of jobs; or a redirect to the canonical URL of the filters."""
    given = call.query
    filters, options = filters_of(given), _options_of(given)
    after = given.get("after") or None
    canonical = {**filters, **options, **({} if after is None else {"after": after})}
    if canonical != given:  # such as empty fields of the form: links that are shared are short
        return RedirectResponse(call.url("jobs", **canonical), SEE_OTHER)
    page: dict[str, Any] = {"jobs": [], "next": None, "is_complete": True, "scanned": 0, "reached": None}
    counts: dict[str, JobCountView | None] = {}
    error = None
    try:
        page, counts = await asyncio.gather(
            _search_or_list(call, filters, int(options.get("limit", LIMIT)), after, options.get("order")),
            _counts(call, filters),
        )
    except Refused as refused:
        error = refused.problem.detail
    jobs = [_decode_job(raw) for raw in page["jobs"]]
    statistics = statistics_view(await call.get(STATISTICS), call.identity)
    types = {group.type for group in statistics.groups} | set(_own_types(call))
    arguments = [
        (name.removeprefix(ARGUMENT), value) for name, value in filters.items() if name.startswith(ARGUMENT)
    ]
    without_status = {name: value for name, value in {**filters, **options}.items() if name != "status"}
    return {
        "jobs": jobs,
        "filters": filters,
        "filter_url": lambda **changed: call.url("jobs", **_merged({**filters, **options}, changed)),
        "without": lambda name: call.url("jobs", **{key: each for key, each in filters.items() if key != name}),
        "status_urls": [
            (label, str(status), call.url("jobs", **{**without_status, "status": str(status)}))
            for status, label in STATUS_LABELS.items()
        ],
        "all_url": call.url("jobs", **without_status),
        "counts": counts,
        "options": options,
        "arguments": arguments,
        "is_search": is_search(filters),
        "is_first": after is None,
        "is_complete": page["is_complete"],
        "scanned": page["scanned"],
        "reached": page["reached"],
        "next_url": None if page["next"] is None else call.url("jobs", **canonical | {"after": page["next"]}),
        "first_url": call.url("jobs", **filters, **options),
        "queues": sorted({group.queue for group in statistics.groups} | set(statistics.paused_queues)),
        "types": sorted(types),
        "since_choices": SINCE_CHOICES,
        "limits": LIMITS,
        "limit": int(options.get("limit", LIMIT)),
        "error": error,
        "bulk_urls": _bulk_urls(call, filters),
        "selected_actions": _selected_actions(call, filters),
        "here_query": urlencode(canonical),
        "paused": statistics.paused_queues,
        "has_handlers": bool(call.app.registry.all()),
    }


def _merged(filters: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**filters, **changed}.items() if value}


async def _search_or_list(
    call: PageCall, filters: Mapping[str, str], limit: int, after: str | None, order: str | None
) -> dict[str, Any]:
    """Return a page of jobs. Updates of an open page repeat the answer to a search for ten seconds."""

    async def read(_app: Mainspring) -> dict[str, Any]:
        return await _list(call, filters, limit=limit, after=after, order=order)

    if not call.is_live or not is_search(filters):
        return await read(call.app)
    parts = (_rights(call), sorted(filters.items()), limit, after, order)
    return await call.get(Source(name=f"search {parts!r}", read=read, seconds=SEARCH_SECONDS))


async def _list(
    call: PageCall, filters: Mapping[str, str], *, limit: int, after: str | None, order: str | None = None
) -> dict[str, Any]:
    query = {**filters, "limit": limit, "after": after, "newest_first": order != "oldest"}
    found: dict[str, Any] = await call.api("list_jobs", query=query)
    return found


async def _counts(call: PageCall, filters: Mapping[str, str]) -> dict[str, JobCountView | None]:
    """Return how many jobs match the filters, without that by status: in total (key `""`) and for each status.

    Return `{}` for a search by text or arguments, because its count would read all jobs.
    """
    if is_search(filters):
        return {}
    others = {name: value for name, value in filters.items() if name != "status"}
    names = ["", *STATUS_LABELS]

    async def read(_app: Mainspring) -> dict[str, JobCountView | None]:
        found = await asyncio.gather(
            *(
                call.api("count_jobs", query={**others, **({"status": str(name)} if name else {})})
                for name in names
            )
        )
        return dict(zip(map(str, names), found, strict=True))

    if not call.is_live:
        return await read(call.app)
    return await call.get(Source(name=f"counts {_rights(call)} {sorted(others.items())!r}", read=read))


def _rights(call: PageCall) -> str:
    """Return the rights of the caller, as a part of the name of a source."""
    rights = call.identity.permissions
    limited = [None if names is None else sorted(names) for names in (rights.types, rights.queues)]
    return repr((sorted(rights.scopes), *limited))


def _own_types(call: PageCall) -> list[str]:
    """Return the job types of this process's handlers whose jobs, in the handler's queue, the caller may read."""
    return [
        handler.name
        for handler in call.app.registry.all()
        if call.may("read", type=handler.name, queue=handler.options.queue)
    ]


# -- changes of all jobs that match

ACTIONS = {
    BulkAction.CANCEL: ("Cancel", "canceled", "Jobs that run are asked to stop. A canceled job never runs again."),
    BulkAction.RUN_NOW: ("Run now", "made due now", "They start when workers have free slots."),
    BulkAction.RESCHEDULE: ("Reschedule", "rescheduled", "All of them are due at the same time."),
    BulkAction.RETRY: (
        "Retry",
        "retried",
        "They run again as the same jobs; their failed attempts are forgotten.",
    ),
}
"""For each action: its label, the word for what was done (`canceled`), and a sentence that explains it."""


def _bulk_urls(call: PageCall, filters: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the labels and URLs of the bulk actions that the caller and the status of the filters allow."""
    if not call.has("operate"):
        return []
    status = filters.get("status")
    return [
        (label, call.url("bulk", action=str(action), **filters))
        for action, (label, _, _) in ACTIONS.items()
        if status is None or status in action.statuses
    ]


def _selected_actions(call: PageCall, filters: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the names and labels of the actions on selected rows that the caller and the filters allow."""
    if not call.has("operate"):
        return []
    status = filters.get("status")
    return [
        (str(action), label)
        for action, (label, _, _) in ACTIONS.items()
        if status is None or status in action.statuses
    ]


def _action_of(name: str) -> BulkAction:
    try:
        return BulkAction(name)
    except ValueError:
        raise invalid_value(f"there is no action {name[:50]!r}; choose one on the page of jobs") from None


async def load_bulk(call: PageCall) -> Mapping[str, Any] | Response:
    """Return the template context of the dry run: how many jobs an action would change, and the first of them.

    A caller without the scope `read` gets neither. Without an action in the URL, return a redirect to the list of
    jobs.
    """
    if "action" not in call.query:
        return RedirectResponse(call.url("jobs"), SEE_OTHER)
    action = _action_of(call.query.get("action", ""))
    filters = filters_of(call.query)
    # The times are fixed now: jobs that are submitted later are not changed, and all steps see the same jobs.
    chosen = {**filters, "until": (call.now + timedelta(microseconds=1)).isoformat(), **_instants(call, filters)}
    count: JobCountView | None = None
    jobs: list[ListedJob] = []
    if call.has("read"):
        count = await call.api("count_jobs", query={**chosen, "action": str(action)})
        for status in action.statuses:
            if filters.get("status") in (None, status) and len(jobs) < PREVIEW:
                page = await _list(call, {**chosen, "status": str(status)}, limit=PREVIEW, after=None)
                jobs += [_decode_job(raw) for raw in page["jobs"]]
    return _describe(call, action, filters) | {
        "hidden": {**chosen, "action": str(action)},
        "count": count,
        "jobs": jobs[:PREVIEW],
    }


def _instants(call: PageCall, filters: Mapping[str, str]) -> dict[str, str]:
    """Return the filters `since` and `until`, if they are given, as instants: `2h` is two hours ago."""
    found: dict[str, str] = {}
    for name in ("since", "until"):
        moment = parse_past(filters.get(name), name)
        if isinstance(moment, timedelta):
            moment = call.now - min(moment, call.now - EPOCH)
        if moment is not None:
            found[name] = moment.isoformat()
    return found


async def _check_selected(call: ActionCall, action: BulkAction, ids: tuple[str, ...]) -> Again:
    """Show how many of the selected jobs an action would change, and the first of them; change nothing."""
    answer: JobChangeView = await call.api(
        "change_jobs", body={"action": str(action), "ids": ids, "dry_run": True, **_some_due(action)}
    )
    jobs: list[ListedJob] = []
    for job_id in ids if call.has("read") else ():
        job = await _find(call, job_id)
        if job is not None and job.status in action.statuses:
            jobs.append(job)
        if len(jobs) == PREVIEW:
            break
    context = _describe(call, action, {}, ids) | {
        "hidden": {"action": str(action), "back": call.value("back")},
        "count": JobCountView(number=answer.total or 0, is_exact=answer.is_exact, scanned=0),
        "jobs": jobs,
    }
    return Again(page="bulk", context=context, status=200)


def _some_due(action: BulkAction) -> dict[str, Any]:
    """Return a due time for the dry run of a reschedule, whose form asks for the true one."""
    return {"delay": 0} if action is BulkAction.RESCHEDULE else {}


async def _find(call: ActionCall, job_id: str) -> ListedJob | None:
    """Return a job; None if there is none, or the caller may not read it."""
    try:
        view: JobView = await call.api("get_job", path={"id": job_id})
    except (JobNotFound, NotAllowed):
        return None
    return _decode_job(msgspec.json.encode(view))


def _selected_ids(call: ActionCall) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in call.form.get("id", ()) if each))


async def change(call: ActionCall) -> Again | Done | Response:
    """Change the jobs that a form chooses by filters or ids, for about a second, and show the progress.

    If jobs are left, the page has a form that continues the change. If the field `do` of the form is `check`,
    change nothing, and show which of the selected jobs the action would change.
    """
    sent = {name: values[-1] for name, values in call.form.items() if name != "id"}
    action = _action_of(sent.get("action", ""))
    ids = _selected_ids(call)
    if sent.get("do") == "check":
        if not ids:
            message = "No job was selected. Check the boxes of some jobs first."
            return Done(message=message, location=_list_url(call, {}), kind="warning")
        return await _check_selected(call, action, ids)
    if sent.get("of") == SELECTED and not ids:
        raise invalid_value("the form has no ids of jobs; select the jobs again")
    filters = filters_of(sent)
    arguments = {
        name.removeprefix(ARGUMENT): value for name, value in filters.items() if name.startswith(ARGUMENT)
    }
    body: dict[str, Any] = {name: value for name, value in filters.items() if not name.startswith(ARGUMENT)}
    body |= {"action": str(action), "argument": arguments, "after": sent.get("after") or None}
    body |= {"ids": ids} if ids else {}
    shown = {name: value for name, value in filters.items() if name != "until"}
    back = {"back": sent["back"]} if ids and "back" in sent else {}
    context = _describe(call, action, {} if ids else shown, ids) | {
        "hidden": {**filters, **back, "action": str(action)},
        "when": sent.get("when", ""),
    }
    try:
        if action is BulkAction.RESCHEDULE:
            due = parse_due(sent.get("when", ""), "the new due time")
            if not due:
                raise invalid_value(f"the new due time is empty; write {TIME_HINT}")
            body |= due
        progress = {name: _number(sent.get(f"done_{name}")) for name in NUMBERS}
        following = await _change_for_a_while(call, body, progress)
    except Refused as refused:
        context |= {"error": refused.problem.detail}
        if "total" in sent:
            is_exact = sent.get("is_exact") == "yes"
            context["count"] = JobCountView(number=_number(sent["total"]), is_exact=is_exact, scanned=0)
        return Again(page="bulk", context=context, status=refused.problem.status)
    if following is not None:
        hidden = {**filters, **back, "action": str(action), "after": following.after}
        hidden["until"] = following.until.isoformat()
        if following.at is not None:
            hidden["when"] = following.at.isoformat()
        context["hidden"] = hidden | {f"done_{name}": str(number) for name, number in progress.items()}
    total = _number(sent.get("total"))
    context |= {
        "progress": progress,
        "is_done": following is None,
        "total": total,
        "is_exact": sent.get("is_exact") == "yes",
        "seen": sum(progress.values()),
    }
    return Again(page="bulk", context=context, status=200)


async def _change_for_a_while(
    call: ActionCall, body: dict[str, Any], progress: dict[str, int]
) -> NextChangeView | None:
    """Change jobs, step by step, for about a second, and add the numbers to `progress`.

    Return the fields that continue the change; None if all jobs are done.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + CHANGE_SECONDS
    while True:
        answer: JobChangeView = await call.api("change_jobs", body=body)
        for name in NUMBERS:
            progress[name] += getattr(answer, name)
        following = answer.next
        if following is None or now() >= deadline:
            return following
        body |= {"after": following.after, "until": following.until.isoformat()}
        if following.at is not None:
            body = {name: value for name, value in body.items() if name != "delay"} | {"at": following.at}


def _list_url(call: PageCall, filters: Mapping[str, str]) -> str:
    """Return the URL of the list that the user came from: by the field `back` of a form, else by the filters."""
    if not isinstance(call, ActionCall) or not call.value("back"):
        return call.url("jobs", **filters)
    given = dict(parse_qsl(call.value("back")[:MAX_BACK], max_num_fields=MAX_FIELDS))
    after = {"after": given["after"]} if "after" in given else {}
    return call.url("jobs", **filters_of(given), **_options_of(given), **after)


def _describe(
    call: PageCall, action: BulkAction, filters: Mapping[str, str], ids: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the part of the template context that all pages of a bulk change share.

    - `ids`: the jobs that the user has selected; empty if filters choose the jobs
    """
    label, done, meaning = ACTIONS[action]
    return {
        "title": f"{label} jobs",
        "action": action,
        "label": label,
        "done": done,
        "meaning": meaning,
        "filters": filters,
        "hidden": {},
        "when": "",
        "count": None,
        "jobs": [],
        "ids": ids,
        "list_url": _list_url(call, filters),
        "time_hint": TIME_HINT,
        "error": None,
        "progress": None,
    }


def _number(text: str | None) -> int:
    """Return a number that an earlier answer has put into the form, for display only; 0 for other text."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= 12 else 0


JOBS_PAGE = Page(
    name="jobs", path="/jobs", title="Jobs", scopes=(Scope.READ,), load=load_jobs, live=("tabs", "rows")
)
BULK_PAGE = Page(
    name="bulk", path="/bulk", title="Change jobs", scopes=(Scope.OPERATE,), load=load_bulk, section="jobs"
)


def pages(_app: Mainspring) -> list[Page]:
    """Return the declarations of the list of jobs and of the page that changes many jobs."""
    return [JOBS_PAGE, BULK_PAGE]


def actions(_app: Mainspring) -> list[Action]:
    """Return the declaration of the action that changes many jobs."""
    return [Action(name="bulk", path="/bulk", scopes=(Scope.OPERATE,), serve=change)]
