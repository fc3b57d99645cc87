"""The page of callbacks: paused receivers, and deliveries with their status, attempts, answers and latency.

A callback is a job whose handler sends a request: of a type that `app.http_job` declares, or of `HTTP_TYPE`, whose
jobs have the URL as an argument. So its deliveries are jobs, and everything about jobs holds for them.

Invariants
- The list reads one page of jobs of these types. Numbers come from the statistics and the counts by minute.
- Values of redacted parameters do not appear: the page shows the URL, the method and the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mainspring.jobs.activity_rows import ActivityRow
from mainspring.jobs.handle import open_manager
from mainspring.jobs.histogram import Histogram
from mainspring.jobs.info import JobInfo
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.permissions import Permissions, Scope
from mainspring.web.api.callbacks import CallbackPauseView
from mainspring.web.api.decoding import checked_values
from mainspring.web.dashboard.content import line
from mainspring.web.dashboard.page import Action, ActionCall, Done, Page, PageCall
from mainspring.web.dashboard.queue_pages import LAST_HOUR, readable_rows

if TYPE_CHECKING:
    from mainspring.app import Mainspring

HTTP_TYPE = "mainspring.http"
"""The type of callbacks whose URL is an argument of the job."""
SHOWN = 50
MAX_URL = 200


def callback_types(app: Mainspring) -> list[str]:
    """Return the names of the job types whose handlers send HTTP requests, sorted, with `HTTP_TYPE`."""
    declared = {handler.name for handler in app.registry.all() if getattr(handler, "is_callback", False)}
    return sorted(declared | {HTTP_TYPE})


def _read(
    manager: JobManager, permissions: Permissions, types: list[str], status: str, after: str | None
) -> tuple[list[JobInfo], str | None]:
    """Return a page of callback jobs that the caller may read, the newest first, and the cursor of the next page.

    The cursor is None if there is no next page. `status` is empty for all statuses. Raises `Refused` for a wrong
    `after`.
    """
    allowed = [name for name in types if permissions.types is None or name in permissions.types]
    if not allowed:
        return [], None
    query = Query(
        status=JobStatus(status) if status else None,
        types=tuple(allowed),
        queues=None if permissions.queues is None else tuple(sorted(permissions.queues)),
        newest_first=True,
        limit=SHOWN,
        after=after,
    )
    with checked_values():
        page = manager.engine.find(query)
    return manager.infos(page.records), page.end


async def _list(call: PageCall) -> Mapping[str, Any]:
    types = callback_types(call.app)
    chosen, status = call.query.get("type", ""), call.query.get("status", "").upper()
    status = status if status in list(JobStatus) else ""
    wanted = [chosen] if chosen in types else types
    manager = await open_manager(call.app)
    jobs, end = await call.app.off_loop.read(
        _read, manager, call.identity.permissions, wanted, status, call.query.get("after") or None
    )
    filters = {"type": chosen if chosen in types else "", "status": status}
    return {
        "rows": [_row(call.app, job) for job in jobs],
        "types": [name for name in types if _may_read(call, name)],
        "statuses": [status.value for status in JobStatus],
        "filters": filters,
        "is_filtered": bool(filters["type"] or status),
        "next_url": None if end is None else call.url("callbacks", **filters, after=end),
        "first_url": call.url("callbacks", **filters) if call.query.get("after") else None,
        "numbers": await _numbers(call, set(wanted)),
        "pauses": [_pause(pause) for pause in (await call.api("list_callback_pauses")).pauses],
    }


def _pause(pause: CallbackPauseView) -> dict[str, Any]:
    named = pause.url or pause.type
    return {"pause": pause, "whom": "all job types" if named is None else line(named, MAX_URL).text}


async def _resume(call: ActionCall) -> Done:
    host = call.value("host")
    type_ = call.value("type")
    answer = await call.api("resume_callbacks", body={"host": host, "type": type_ or None})
    text = f"{answer.host} gets requests again." if answer.lifted else f"{answer.host} was not paused."
    return Done(message=text)


def _may_read(call: PageCall, type_: str) -> bool:
    """Return whether the caller may read jobs of a type in the queue of its handler.

    If no handler of the type is registered, return whether the caller may read them in all queues.
    """
    handler = call.app.registry.get(type_) if type_ in call.app.registry else None
    return call.may("read", type=type_, queue=None if handler is None else handler.options.queue)


def _row(app: Mainspring, job: JobInfo) -> dict[str, Any]:
    arguments = job.arguments if isinstance(job.arguments, Mapping) else {}
    result = job.result if isinstance(job.result, Mapping) else {}
    url = arguments.get("url")
    handler = app.registry.get(job.type) if job.type in app.registry else None
    function = getattr(handler, "function", None)  # has the URL and the method if `app.http_job` declares them
    target = url if isinstance(url, str) else getattr(function, "url", None)
    method = arguments.get("method") or getattr(function, "method", "")
    answer = result.get("status")
    return {
        "job": job,
        "url": line(_without_query(str(target)), MAX_URL).text if target else None,
        "method": line(str(method), 10).text,
        "answer": answer if isinstance(answer, int) else None,
        "error": line(job.error) if job.error and job.status is not JobStatus.COMPLETED else None,
        "latency": _latency(job),
    }


def _without_query(url: str) -> str:
    """Return a URL without its query, fragment and credentials, which may have secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0]
    return parts._replace(query="", fragment="", netloc=parts.netloc.rpartition("@")[2]).geturl()


def _latency(job: JobInfo) -> float | None:
    """Return how long the last ended attempt of a job took, in seconds; None if that is not known."""
    if job.finished is not None and job.started is not None and job.finished >= job.started:
        return (job.finished - job.started).total_seconds()
    if job.history and job.history[-1].started is not None:
        return (job.history[-1].ended - job.history[-1].started).total_seconds()
    return None


async def _numbers(call: PageCall, types: set[str]) -> dict[str, Any]:
    """Return the numbers about callbacks of these types that the caller may read, by name.

    For the last hour: how many attempts completed and failed, and the median and the 99th percentile of their
    duration in seconds (None without attempts). For now: how many callbacks wait, and how many are dead letters.
    """
    read: list[ActivityRow] = await call.get(LAST_HOUR)
    rows = [row for row in readable_rows(read, call.identity) if row.type in types]
    durations = Histogram()
    for row in rows:
        for histogram in row.duration.values():
            durations.add(histogram)
    groups = [group for group in (await call.api("get_statistics")).groups if group.type in types]
    median, slow = durations.quantile(0.5), durations.quantile(0.99)
    return {
        "delivered": sum(row.attempts.get("completed", 0) for row in rows),
        "failed": sum(row.attempts.get(name, 0) for row in rows for name in ("failed", "timeout", "crashed")),
        "median": None if median is None else median / MICROSECONDS,
        "slow": None if slow is None else slow / MICROSECONDS,
        "waiting": sum(group.due + group.blocked + group.scheduled for group in groups),
        "dead": sum(group.dead_letters for group in groups),
    }


def actions(_app: Mainspring) -> list[Action]:
    """Return the declaration of the action that lifts the pauses of a host, or of one of its job types."""
    return [
        Action(name="callbacks-resume", path="/callbacks/resume", scopes=(Scope.OPERATE,), serve=_resume),
    ]


def pages(_app: Mainspring) -> list[Page]:
    """Return the declaration of the page of callbacks."""
    return [
        Page(
            name="callbacks",
            path="/callbacks",
            title="Callbacks",
            scopes=(Scope.READ,),
            load=_list,
            live=("deliveries",),
        )
    ]
