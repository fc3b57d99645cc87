"""The pages of schedules: the list with strips of outcomes, one schedule with its calendar, and its form.

Invariants
- Strips and calendars come from bounded scans, which browsers with the same rights share for a few seconds.
- A preview computes a few dates of an expression of bounded length, on a thread. It never describes the
  expression in words, and never lists its values: the cost does not depend on what a caller types.
- The form of a stored schedule has the schedule's version. It changes the schedule only if that is still current.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from starlette.requests import Request

from mainspring.errors import MainspringError, ScheduleNotFound
from mainspring.jobs.handle import open_manager
from mainspring.security.permissions import Permissions, Scope
from mainspring.web.api.schedule_views import CronRule, EveryRule, PreviewView, ScheduleView, etag_of
from mainspring.web.dashboard.content import editable_json, json_block, line
from mainspring.web.dashboard.firing_calendar import CalendarDay, calendar_of, outcome_of
from mainspring.web.dashboard.form_values import (
    FormError,
    json_object,
    optional_instant,
    optional_number,
    sentence_of,
)
from mainspring.web.dashboard.formats import duration
from mainspring.web.dashboard.page import Action, ActionCall, Again, Done, Page, PageCall
from mainspring.web.dashboard.schedule_outcomes import (
    STRIP,
    ScheduleOutcomes,
    coming_dates,
    find_zone,
    outcome_strips,
    outcomes_of,
)
from mainspring.web.dashboard.snapshots import Source
from mainspring.web.problems import Refused

if TYPE_CHECKING:
    from mainspring.app import Mainspring

COMING = 10
"""The number of coming dates that a page lists."""
PLANNED = 400
"""The largest number of coming dates that are computed for the calendar."""
SHOWN_HISTORY = 30
SHARED_SECONDS = 5.0
ZONE_COOKIE = "mainspring_zone"
FIELDS: dict[str, str] = {
    "name": "",
    "type": "",
    "kind": "cron",
    "expression": "",
    "tz": "UTC",
    "dst_gap": "auto",
    "dst_fold": "auto",
    "interval": "",
    "arguments": "",
    "misfire": "once",
    "catch_up": "",
    "overlap": "skip",
    "jitter": "",
    "start": "",
    "end": "",
    "queue": "",
    "priority": "",
}
"""The fields of the form that stores a schedule, with their values for a new schedule."""


def viewer_zone(call: PageCall) -> ZoneInfo | tzinfo:
    """Return the time zone of the viewer: of the URL, else of a cookie that the script sets.

    Return UTC if neither has one, or if the given one is unknown.
    """
    given = call.query.get("zone") or call.request.cookies.get(ZONE_COOKIE, "").replace("%2F", "/")
    return find_zone(given) or UTC


def describe_rule(view: ScheduleView) -> str:
    """Return the rule of a schedule in a few words: `30 2 * * * Europe/Berlin`, `every 5 min`."""
    match view.rule:
        case CronRule():
            return f"{view.rule.expression} {view.rule.tz}"
        case EveryRule():
            return f"every {duration(view.rule.interval)}"
        case _:
            return "a rule of a newer version"


def zone_of(view: ScheduleView) -> ZoneInfo | tzinfo:
    """Return the time zone of a schedule's rule; UTC for an interval and an unknown zone."""
    return (find_zone(view.rule.tz) or UTC) if isinstance(view.rule, CronRule) else UTC


def _rights(permissions: Permissions) -> str:
    return repr([None if names is None else sorted(names) for names in (permissions.types, permissions.queues)])


# -- the list


async def _list(call: PageCall) -> Mapping[str, Any]:
    filters = {name: call.query.get(name, "").strip() for name in ("type", "queue")}
    given = {name: value for name, value in filters.items() if value}
    after = call.query.get("after")
    page = await call.api("list_schedules", query={**given, "limit": 50, **({"after": after} if after else {})})
    strips = await _strips(call, page.schedules)
    return {
        "rows": [_row(call, view, strips[view.name]) for view in page.schedules],
        "filters": filters,
        "is_filtered": bool(given),
        "next_url": None if page.next is None else call.url("schedules", **given, after=page.next),
        "first_url": call.url("schedules", **given) if after else None,
        "can_add": bool(_handlers(call)),
    }


async def _strips(call: PageCall, views: list[ScheduleView]) -> dict[str, ScheduleOutcomes]:
    permissions = call.identity.permissions

    async def read(app: Mainspring) -> dict[str, ScheduleOutcomes]:
        return await app.off_loop.read(outcome_strips, await open_manager(app), views, permissions)

    names = [view.name for view in views]
    name = f"schedule strips {names} {_rights(permissions)}"
    found = await call.get(Source(name=name, read=read, seconds=SHARED_SECONDS))
    return {view.name: found.get(view.name) or ScheduleOutcomes(entries=[], known_since=None) for view in views}


def _row(call: PageCall, view: ScheduleView, outcomes: ScheduleOutcomes) -> dict[str, Any]:
    return {
        "view": view,
        "rule": describe_rule(view),
        "strip": strip_of(outcomes),
        "local": None if view.next_due is None else view.next_due.astimezone(zone_of(view)),
        "may_change": call.may("operate", type=view.type, queue=view.queue),
    }


def strip_of(outcomes: ScheduleOutcomes) -> list[dict[str, Any]]:
    """Return the last 20 outcomes of a schedule for its strip, the latest at the end."""
    return [
        {
            "outcome": outcome_of(entry),
            "at": entry.at,
            "job_id": entry.job_id,
            "word": (entry.status or entry.kind).lower() + (f", {entry.count:,} times" if entry.count > 1 else ""),
        }
        for entry in reversed(outcomes.entries[:STRIP])
    ]


# -- one schedule


async def _schedule(call: PageCall) -> Mapping[str, Any]:
    name = call.path["name"]
    view: ScheduleView = await call.api("get_schedule", path={"name": name})
    preview = await _preview_of(call, name)
    outcomes = await _outcomes(call, view)
    zone, here = zone_of(view), viewer_zone(call)
    dates = [] if preview is None else coming_dates(preview.dates[:COMING], here)
    return {
        "title": view.name,
        "view": view,
        "rule": describe_rule(view),
        "zone": str(zone),
        "here_zone": str(here),
        "dates": dates,
        "days": _calendar(call, preview, outcomes, zone),
        "today": call.now.astimezone(zone).date(),
        "strip_entries": strip_of(outcomes),
        "history": [
            {
                "entry": entry,
                "outcome": outcome_of(entry),
                "local": entry.at.astimezone(zone),
                "note": line(entry.note),
            }
            for entry in outcomes.entries[:SHOWN_HISTORY]
        ],
        "known_since": outcomes.known_since,
        "arguments": json_block(view.arguments),
        "may_change": call.may("operate", type=view.type, queue=view.queue),
    }


async def _preview_of(call: PageCall, name: str) -> PreviewView | None:
    """Return the coming dates of a stored schedule; None if it is gone, or this server cannot read its rule."""
    try:
        found: PreviewView = await call.api("preview_schedule", query={"name": name, "count": PLANNED})
    except (Refused, ScheduleNotFound):
        return None
    return found


async def _outcomes(call: PageCall, view: ScheduleView) -> ScheduleOutcomes:
    permissions = call.identity.permissions

    async def read(app: Mainspring) -> ScheduleOutcomes:
        return await app.off_loop.read(outcomes_of, await open_manager(app), view, permissions)

    name = f"schedule {view.name!r} {_rights(permissions)}"
    return await call.get(Source(name=name, read=read, seconds=SHARED_SECONDS))


def _calendar(
    call: PageCall, preview: PreviewView | None, outcomes: ScheduleOutcomes, zone: tzinfo
) -> list[CalendarDay]:
    dates = [] if preview is None or preview.is_paused else [date for date in preview.dates if not date.is_skipped]
    return calendar_of(
        outcomes.entries,
        [date.local for date in dates],
        zone=zone,
        now=call.now,
        known_since=outcomes.known_since,
        known_until=dates[-1].local if len(dates) >= PLANNED else None,
    )


# -- the form


async def _new(call: PageCall) -> Mapping[str, Any]:
    names: tuple[str, ...] = ("type", "expression", "tz")
    given = {name: call.query[name] for name in names if name in call.query}
    return await _form(call, {**FIELDS, **given})


async def _edit(call: PageCall) -> Mapping[str, Any]:
    name = call.path["name"]
    await call.api("get_schedule", path={"name": name})  # checks the rights
    version = await _version(call, name)  # before its content: a change between the two is noticed
    view: ScheduleView = await call.api("get_schedule", path={"name": name})
    return await _form(call, form_of(view), stored=name, version=version)


async def _version(call: PageCall, name: str) -> str:
    """Return the version of a schedule, as the API's header `ETag` has it.

    The caller must have checked the rights.
    """
    return etag_of((await call.app.schedules.get_async(name)).record)


def with_header(call: PageCall, header: tuple[bytes, bytes]) -> Request:
    """Return the request of a form with one more header, such as `If-Match`, which forms cannot send."""
    return Request({**call.request.scope, "headers": [*call.request.scope["headers"], header]})


def form_of(view: ScheduleView) -> dict[str, str]:
    """Return the values of the fields in the form that changes a stored schedule."""
    rule, fields = view.rule, {**FIELDS, "name": view.name, "type": view.type}
    if isinstance(rule, CronRule):
        fields |= {
            "expression": rule.expression,
            "tz": rule.tz,
            "dst_gap": rule.dst_gap,
            "dst_fold": rule.dst_fold,
        }
    elif isinstance(rule, EveryRule):
        fields |= {"kind": "every", "interval": _number(rule.interval)}
    text = editable_json(view.arguments)
    return fields | {
        "arguments": "" if text in ("null", "{}") else text,
        "misfire": view.misfire,
        "catch_up": "" if view.catch_up is None else str(view.catch_up),
        "overlap": view.overlap,
        "jitter": _number(view.jitter) if view.jitter else "",
        "start": _to_field(view.start),
        "end": _to_field(view.end),
        "queue": view.queue,
        "priority": view.priority,
    }


def _number(value: float) -> str:
    """Return a number as text with all its digits, so that a form sends back the same number."""
    return str(int(value)) if value == int(value) else repr(value)


def _to_field(instant: datetime | None) -> str:
    return "" if instant is None else instant.astimezone(UTC).replace(tzinfo=None).isoformat()


async def _form(
    call: PageCall,
    values: Mapping[str, str],
    *,
    stored: str | None = None,
    version: str = "",
    problem: str | None = None,
) -> dict[str, Any]:
    preview = await _preview(call, values) if values["expression"] and values["kind"] == "cron" else None
    return {
        "title": "New schedule" if stored is None else f"Change {stored}",
        "form": values,
        "stored": stored,
        "version": version,
        "problem": problem,
        "handlers": _handlers(call),
        **(preview or _NO_PREVIEW),
    }


_NO_PREVIEW: dict[str, Any] = {"dates": [], "preview_problem": None, "zone": "", "here_zone": ""}


def _handlers(call: PageCall) -> list[str]:
    """Return the job types of this process's handlers that the caller may schedule."""
    return sorted(
        handler.name
        for handler in call.app.registry.all()
        if call.may("operate", type=handler.name, queue=handler.options.queue)
    )


async def _preview(call: PageCall, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the coming dates of a cron expression for the template, or `preview_problem` if it is wrong."""
    here = viewer_zone(call)
    found: dict[str, Any] = {**_NO_PREVIEW, "here_zone": str(here)}
    query = {
        "expression": values.get("expression", ""),
        "tz": values.get("tz") or "UTC",
        "dst_gap": values.get("dst_gap") or "auto",
        "dst_fold": values.get("dst_fold") or "auto",
        "count": COMING,
    }
    try:
        preview: PreviewView = await call.api("preview_schedule", query=query)
    except (Refused, MainspringError) as error:
        return {**found, "preview_problem": sentence_of(error)}
    zone = preview.rule.tz if isinstance(preview.rule, CronRule) else "UTC"
    return {**found, "zone": zone, "dates": coming_dates(preview.dates, here)}


async def _preview_page(call: PageCall) -> Mapping[str, Any]:
    """Return the context of the preview alone. The script puts it into the form while the user types."""
    values = {name: call.query.get(name, "") for name in ("expression", "tz", "dst_gap", "dst_fold")}
    return await _preview(call, values) if values["expression"].strip() else _NO_PREVIEW


def body_of(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of the operation `put_schedule` for the values of a form.

    Raises `FormError` for an empty interval, and for a number, an instant or JSON that cannot be read. The
    operation checks the rest.
    """
    if values["kind"] == "every":
        interval = optional_number(values["interval"], "the interval")
        if interval is None:
            raise FormError("the interval is empty; write a number of seconds, such as 300")
        rule: dict[str, Any] = {"kind": "every", "interval": interval}
    else:
        rule = {
            "kind": "cron",
            "expression": values["expression"],
            "tz": values["tz"].strip() or "UTC",
            "dst_gap": values["dst_gap"] or "auto",
            "dst_fold": values["dst_fold"] or "auto",
        }
    body = {
        "type": values["type"].strip(),
        "rule": rule,
        "arguments": json_object(values["arguments"], "the arguments"),
        "misfire": values["misfire"] or "once",
        "overlap": values["overlap"] or "skip",
        "jitter": optional_number(values["jitter"], "the jitter") or 0.0,
        "start": optional_instant(values["start"], "the start"),
        "end": optional_instant(values["end"], "the end"),
        "queue": values["queue"].strip() or None,
        "priority": values["priority"] or None,
    }
    if values["misfire"] == "catch-up":
        most = optional_number(values["catch_up"], "how many occurrences to catch up", whole=True)
        body["catch_up"] = None if most is None else int(most)
    return body


async def _put(call: ActionCall) -> Done | Again:
    stored = call.path.get("name")
    values = {name: call.value(name, default) for name, default in FIELDS.items()}
    name = stored or values["name"].strip()
    version = call.value("version")
    problem = None
    if call.value("do") != "preview":
        try:
            if not name:
                raise FormError("the schedule has no name; write one, such as nightly-report")
            header = (b"if-none-match", b"*") if stored is None else (b"if-match", version.encode())
            answer = await call.operations.invoke(
                "put_schedule",
                with_header(call, header),
                call.identity,
                path={"name": name},
                query={},
                body=body_of(values),
            )
            words = "Stored" if answer.is_new else "Changed"
            return Done(message=f"{words} schedule {name}.", location=call.url("schedules", name))
        except (FormError, Refused, MainspringError) as error:
            problem = sentence_of(error)
    context = await _form(call, values, stored=stored, version=version, problem=problem)
    return Again(page="schedule-edit", context=context, status=200 if problem is None else 422)


# -- actions


async def _pause(call: ActionCall) -> Done:
    name = call.path["name"]
    answer = await call.api("pause_schedule", path={"name": name}, body={})
    return Done(
        message=f"Paused schedule {name}." if answer.is_changed else f"Schedule {name} was paused already."
    )


async def _resume(call: ActionCall) -> Done:
    name = call.path["name"]
    answer = await call.api("resume_schedule", path={"name": name}, body={})
    return Done(message=f"Resumed schedule {name}." if answer.is_changed else f"Schedule {name} was not paused.")


async def _trigger(call: ActionCall) -> Done:
    name = call.path["name"]
    answer = await call.api("trigger_schedule", path={"name": name}, body={})
    return Done(message=f"Triggered schedule {name}: job {answer.id}.")


async def _remove(call: ActionCall) -> Done:
    name = call.path["name"]
    await call.api("delete_schedule", path={"name": name})
    return Done(message=f"Removed schedule {name}. Its jobs stay.", location=call.url("schedules"))


async def _confirm_removal(call: PageCall) -> Mapping[str, Any]:
    view: ScheduleView = await call.api("get_schedule", path={"name": call.path["name"]})
    return {"title": f"Remove {view.name}", "view": view, "rule": describe_rule(view)}


# -- declarations


def pages(_app: Mainspring) -> list[Page]:
    """Return the declarations of the pages of schedules."""
    read, operate, section = (Scope.READ,), (Scope.OPERATE,), "schedules"
    return [
        Page(
            name="schedules",
            path="/schedules",
            title="Schedules",
            scopes=read,
            load=_list,
            live=("schedule_table",),
        ),
        Page(
            name="schedule-new",
            path="/new-schedule",
            title="New schedule",
            scopes=operate,
            load=_new,
            section=section,
            template="schedule-edit.html",
        ),
        Page(name="schedule-preview", path="/schedule-preview", title="Preview", scopes=read, load=_preview_page),
        Page(
            name="schedule",
            path="/schedules/{name}",
            title="Schedule",
            scopes=read,
            load=_schedule,
            live=("schedule_state", "schedule_history"),
            section=section,
        ),
        Page(
            name="schedule-edit",
            path="/schedules/{name}/edit",
            title="Change",
            scopes=operate,
            load=_edit,
            section=section,
        ),
        Page(
            name="schedule-remove",
            path="/schedules/{name}/remove",
            title="Remove",
            scopes=operate,
            load=_confirm_removal,
            section=section,
        ),
    ]


def actions(_app: Mainspring) -> list[Action]:
    """Return the declarations of the actions on schedules."""
    scopes = (Scope.OPERATE,)
    return [
        Action(name="schedule-new", path="/new-schedule", scopes=scopes, serve=_put),
        Action(name="schedule-edit", path="/schedules/{name}/edit", scopes=scopes, serve=_put),
        Action(name="schedule-pause", path="/schedules/{name}/pause", scopes=scopes, serve=_pause),
        Action(name="schedule-resume", path="/schedules/{name}/resume", scopes=scopes, serve=_resume),
        Action(name="schedule-trigger", path="/schedules/{name}/trigger", scopes=scopes, serve=_trigger),
        Action(name="schedule-remove", path="/schedules/{name}/remove", scopes=scopes, serve=_remove),
    ]
