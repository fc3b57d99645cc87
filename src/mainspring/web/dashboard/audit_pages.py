"""The page of the audit trail: who did what, with filters and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.jobs.audit_drafts import ALL_ACTIONS
from mainspring.security.permissions import Scope
from mainspring.web.api.audit import AuditEntryView
from mainspring.web.dashboard.content import line
from mainspring.web.dashboard.page import Page, PageCall
from mainspring.web.problems import Refused

if TYPE_CHECKING:
    from mainspring.app import Mainspring

FILTERS = ("since", "until", "actor", "action", "job")
SHOWN_JOBS = 5


async def _list(call: PageCall) -> Mapping[str, Any]:
    given = {name: call.query.get(name, "").strip() for name in FILTERS}
    wanted = {name: value for name, value in given.items() if value}
    context: dict[str, Any] = {
        "filters": given,
        "is_filtered": bool(wanted),
        "actions": _action_choices(),
        "problem": None,
        "entries": [],
        "next_url": None,
        "first_url": None,
    }
    after = call.query.get("after")
    try:
        page = await call.api("list_audit", query={**wanted, **({"after": after} if after else {})})
    except Refused as refused:
        return {**context, "problem": refused.problem.detail}
    return {
        **context,
        "entries": [_row(entry) for entry in page.entries],
        "next_url": None if page.next is None else call.url("audit", **wanted, after=page.next),
        "first_url": call.url("audit", **wanted) if after else None,
    }


def _action_choices() -> list[str]:
    """Return the choices of the action filter: each kind of action, such as `job`, followed by its actions."""
    kinds = sorted({action.partition(".")[0] for action in ALL_ACTIONS})
    return [
        each
        for kind in kinds
        for each in (kind, *sorted(action for action in ALL_ACTIONS if action.startswith(f"{kind}.")))
    ]


def _row(entry: AuditEntryView) -> dict[str, Any]:
    kind = entry.action.partition(".")[0]
    return {
        "entry": entry,
        "link": _link(kind, entry),
        "jobs": entry.jobs[:SHOWN_JOBS],
        "more": max(0, entry.count - SHOWN_JOBS) if entry.jobs else 0,
        "details": [(name, _text(value)) for name, value in sorted(entry.details.items())],
    }


def _link(kind: str, entry: AuditEntryView) -> tuple[str, str] | None:
    """Return the section and the name in the URL of an entry's target; None if the target has no page."""
    pages = {"job": "jobs", "dead_letter": "jobs", "schedule": "schedules", "queue": "queues"}
    place = pages.get(kind)
    return None if place is None or entry.target is None else (place, entry.target)


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return line(", ".join(value), 200).text
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()
    return line(text, 200).text


def pages(_app: Mainspring) -> list[Page]:
    """Return the declaration of the page of the audit trail."""
    return [
        Page(
            name="audit",
            path="/audit",
            title="Audit",
            scopes=(Scope.OPERATE,),
            load=_list,
            live=("audit_entries",),
        )
    ]
