"""The pages of dead letters: groups by the fingerprint of the error, replay with a dry run, and purge.

Invariants
- The groups come from a bounded scan, which browsers with the same rights share for a few seconds.
- An action concerns the dead letters that the user has seen: those of the group that had failed when the page was
  made. It reads them again, so that an outdated page does not replay dead letters that were replayed already.
- Replay and purge are the operations of the API. They check the rights for each dead letter and write the audit.
- If the user has selected dead letters, their ids are fields of the forms, and only these are changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mainspring.errors import MainspringError, NotAllowed
from mainspring.jobs.handle import open_manager
from mainspring.jobs.timestamps import to_datetime
from mainspring.plurals import format_count
from mainspring.security.permissions import Scope
from mainspring.web.api.dead_letters import MAX_REPLAYED, ReplayView
from mainspring.web.api.job_views import to_json
from mainspring.web.dashboard import charts
from mainspring.web.dashboard.content import block, json_block, json_line, line
from mainspring.web.dashboard.error_fingerprints import MAX_MESSAGE, MAX_PLACE
from mainspring.web.dashboard.form_values import (
    FormError,
    json_object,
    names_list,
    optional_number,
    sentence_of,
)
from mainspring.web.dashboard.letter_groups import LetterGroup, LetterGroups, scan_letters
from mainspring.web.dashboard.page import Action, ActionCall, Again, Done, Page, PageCall
from mainspring.web.dashboard.snapshots import Source
from mainspring.web.dashboard.time_bins import DAY, describe_length
from mainspring.web.problems import Refused

if TYPE_CHECKING:
    from mainspring.app import Mainspring

SHARED_SECONDS = 5.0
"""For how many seconds browsers with the same rights share one scan of the dead letters."""
GROUPS = 100
"""How many groups of dead letters the list shows at most."""
FILTERS = ("queue", "type")
CHOOSE = "choose"
"""The field `do` of a form that only chooses dead letters, and shows the page that changes them."""
SELECTED = "selected"
"""The field `of` of a form that concerns selected dead letters."""
FIELDS = ("rate", "changes", "without", "limit")
"""The names of the fields in the form that replays dead letters."""


async def _groups(call: PageCall, *, show: str | None = None) -> LetterGroups:
    """Return the dead letters that match the filters in the URL, in groups with the same error.

    The result of a scan within the last 5 s is used again.

    `show` is the key of a group whose first dead letters are read in full.
    """
    permissions, queue, type_ = call.identity.permissions, call.query.get("queue"), call.query.get("type")

    async def read(app: Mainspring) -> LetterGroups:
        manager = await open_manager(app)
        return await app.off_loop.read(
            scan_letters, manager, permissions, queue=queue or None, type=type_ or None, show=show
        )

    rights = [sorted(names) if names is not None else None for names in (permissions.types, permissions.queues)]
    name = f"dead letters {queue!r} {type_!r} {show} {rights}"
    return await call.get(Source(name=name, read=read, seconds=SHARED_SECONDS))


def _scope_of(found: LetterGroups) -> dict[str, Any]:
    """Return for templates how many dead letters a scan has read, whether these are all, and how far back it came.

    Also return the length of a bin of its charts, as text.
    """
    return {
        "scanned": found.scanned,
        "is_complete": found.is_complete,
        "reached": None if found.reached is None else to_datetime(found.reached),
        "bin_length": describe_length(found.bins.length),
    }


def _row(group: LetterGroup, found: LetterGroups) -> dict[str, Any]:
    return {
        "key": group.fingerprint.key,
        "type": group.fingerprint.type,
        "message": line(group.fingerprint.message, MAX_MESSAGE).text,
        "place": None if group.fingerprint.place is None else line(group.fingerprint.place, MAX_PLACE).text,
        "title": line(group.fingerprint.title, MAX_MESSAGE).text,
        "count": group.count,
        "first": to_datetime(group.first),
        "last": to_datetime(group.last),
        "types": group.types.most_common(),
        "queues": group.queues.most_common(),
        "counts": found.bins.counts(group.failed),
    }


async def _list(call: PageCall) -> Mapping[str, Any]:
    found = await _groups(call)
    return {
        "groups": [_row(group, found) for group in found.groups[:GROUPS]],
        "hidden": max(0, len(found.groups) - GROUPS),
        "most": max((group.count for group in found.groups), default=0),
        "queue": call.query.get("queue", ""),
        "type": call.query.get("type", ""),
        **_scope_of(found),
    }


async def _group(call: PageCall) -> Mapping[str, Any]:
    key = call.path["group"]
    found = await _groups(call, show=key)
    group = found.get(key)
    filters = {name: call.query.get(name, "") for name in FILTERS}
    if group is None:
        return {"group": None, "title": "Dead letters", "filters": filters, **_scope_of(found)}
    return {
        **_shown(group, found),
        "filters": filters,
        "until": found.now,
        "ids": [],
        "can_replay": _may_change(call, group),
        "chart": _chart(group, found),
    }


def _shown(group: LetterGroup, found: LetterGroups) -> dict[str, Any]:
    """Return a group of dead letters with the same error, with its first dead letters, for templates."""
    return {
        "title": line(group.fingerprint.title, 80).text,
        "group": _row(group, found),
        "error": block(group.error),
        "letters": [
            {
                "job": job,
                "arguments": json_line(to_json(job.arguments)),
                "whole": json_block(to_json(job.arguments), 5_000),
            }
            for job in group.shown
        ],
        **_scope_of(found),
    }


def _chart(group: LetterGroup, found: LetterGroups) -> Markup:
    bins = found.bins
    starts = [to_datetime(start) for start in bins.starts()]
    form = "%Y-%m-%d" if bins.length >= DAY else "%Y-%m-%d %H:%M"
    data = [
        charts.Column(label=f"{start:{form}} UTC", values=[count])
        for start, count in zip(starts, bins.counts(group.failed), strict=True)
    ]
    ticks = charts.time_ticks(starts[0], to_datetime(bins.start + bins.length * bins.count), most=4)
    return charts.columns(
        data, ["bad"], title=f"failures per {describe_length(bins.length)}", names=["failed"], ticks=ticks
    )


def _may_change(call: PageCall, group: LetterGroup) -> bool:
    return any(call.may("operate", type=type_, queue=queue) for type_ in group.types for queue in group.queues)


# -- replay and purge


async def _confirm(call: PageCall) -> Mapping[str, Any]:
    """Return the context of the pages on which the user confirms the replay or the purge of a group of dead
    letters with the same error.

    Raises `NotAllowed` if the caller may not read dead letters.
    """
    _require_read(call)
    return {**await _group(call), "form": dict.fromkeys(FIELDS, ""), "problem": None, "plan": None}


def _require_read(call: PageCall) -> None:
    """Raise `NotAllowed` if the caller may not read dead letters: these pages show their errors and arguments."""
    if not call.has("read"):
        raise NotAllowed(name=call.identity.name, scope=str(Scope.READ))


async def _find_letters(call: ActionCall) -> tuple[LetterGroup, LetterGroups]:
    """Read the dead letters of a group (with the same error) that had failed when the user's page was made.

    Also return the scan that has found them.

    If the form concerns selected dead letters, read only these. Raises `FormError` if none is left or selected, or
    the form does not say when its page was made, and `NotAllowed` if the caller may not read dead letters.
    """
    _require_read(call)
    try:
        until = int(call.value("until"))
    except ValueError:
        raise FormError("the form does not say when its page was made; load the page again") from None
    selected = frozenset(call.form.get("id", ())) if _is_selection(call) else None
    if selected is not None and not selected:
        raise FormError("no dead letter was selected; check the boxes of some first")
    manager = await open_manager(call.app)
    found = await call.app.off_loop.read(
        scan_letters,
        manager,
        call.identity.permissions,
        queue=call.value("queue") or None,
        type=call.value("type") or None,
        until=until,
        ids=selected,
        show=call.path["group"],
    )
    group = found.get(call.path["group"])
    if group is None:
        raise FormError("no dead letter with this error is left; others may have replayed or purged them")
    return group, found


def _is_selection(call: ActionCall) -> bool:
    """Return whether a form concerns the dead letters that the user has selected, not all with the same error."""
    return call.value("of") == SELECTED


def _chosen(call: ActionCall, group: LetterGroup, found: LetterGroups) -> dict[str, Any]:
    """Return the dead letters that a form concerns, for templates."""
    return {
        **_shown(group, found),
        "filters": {name: call.value(name) for name in FILTERS},
        "until": call.value("until"),
        "ids": group.ids if _is_selection(call) else [],
    }


async def _replay(call: ActionCall) -> Done | Again:
    values = {name: call.value(name) for name in FIELDS}
    try:
        group, found = await _find_letters(call)
    except FormError as error:
        return Done(message=sentence_of(error), location=call.url("dead-letters"), kind="error")
    problem, plan = None, None
    try:
        body = _replay_body(values)
        limit = optional_number(values["limit"], "the number of letters", whole=True)
        ids = group.ids[::-1] if limit is None else group.ids[::-1][: int(limit)]
        if call.value("do") == "replay":
            return await _replay_all(call, ids, body)
        if call.value("do") != CHOOSE:
            plan = await _dry_run(call, ids, body)
    except (FormError, Refused, MainspringError) as error:
        problem = sentence_of(error)
    context = {**_chosen(call, group, found), "form": values, "problem": problem, "plan": plan}
    return Again(page="dead-letter-replay", context=context, status=200 if problem is None else 422)


async def _dry_run(call: ActionCall, ids: list[str], body: Mapping[str, Any]) -> dict[str, Any]:
    view: ReplayView = await call.api(
        "replay_dead_letters", body={**body, "ids": ids[:MAX_REPLAYED], "dry_run": True}
    )
    return {
        "total": len(ids),
        "checked": view.count,
        "seconds": len(ids) / body["rate"] if "rate" in body else None,
        "letters": [
            {"id": letter.letter, "type": letter.type, "arguments": json_line(letter.arguments)}
            for letter in view.letters or []
        ],
    }


def _replay_body(values: Mapping[str, str]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    rate = optional_number(values["rate"], "the rate")
    if rate is not None:
        body["rate"] = rate
    changes, without = json_object(values["changes"], "the new values"), names_list(values["without"])
    return body | ({"changes": changes} if changes else {}) | ({"without": without} if without else {})


async def _replay_all(call: ActionCall, ids: list[str], body: Mapping[str, Any]) -> Done:
    """Replay dead letters in operations of at most 500. With a rate, the due times continue from one to the next.

    If an operation fails after some dead letters were replayed, the message says how many; if none was, the error
    is raised.
    """
    done = left_out = 0
    rate = body.get("rate")
    try:
        for place in range(0, len(ids), MAX_REPLAYED):
            paced = {} if rate is None else {"start": call.now + timedelta(seconds=place / rate)}
            part = {**body, **paced, "ids": ids[place : place + MAX_REPLAYED]}
            answer = await call.api("replay_dead_letters", body=part)
            done += answer.count
            left_out += len(answer.left_out)
    except (Refused, MainspringError) as error:
        if not done:
            raise
        return Done(
            message=f"Replayed {format_count(done, 'dead letter')}, then stopped: {sentence_of(error)}",
            location=call.url("dead-letters"),
            kind="error",
        )
    words = f"Replayed {format_count(done, 'dead letter')}"
    rest = f"; {left_out:,} were changed by another caller meanwhile" if left_out else ""
    return Done(message=f"{words}{rest}.", location=call.url("dead-letters"), kind="warning" if left_out else "ok")


async def _purge(call: ActionCall) -> Done | Again:
    try:
        group, found = await _find_letters(call)
    except FormError as error:
        return Done(message=sentence_of(error), location=call.url("dead-letters"), kind="error")
    if call.value("do") == CHOOSE:
        return Again(page="dead-letter-purge", context=_chosen(call, group, found), status=200)
    done = 0
    for place in range(0, group.count, MAX_REPLAYED):
        part = group.ids[place : place + MAX_REPLAYED]
        done += (await call.api("purge_dead_letters", body={"ids": part})).count
    return Done(message=f"Deleted {format_count(done, 'dead letter')}.", location=call.url("dead-letters"))


# -- declarations


def pages(_app: Mainspring) -> list[Page]:
    """Return the declarations of the pages of dead letters."""
    section = "dead-letters"
    return [
        Page(
            name="dead-letters",
            path="/dead-letters",
            title="Dead letters",
            scopes=(Scope.READ,),
            load=_list,
            live=("groups",),
        ),
        Page(
            name="dead-letter-group",
            path="/dead-letters/{group}",
            title="Dead letters",
            scopes=(Scope.READ,),
            load=_group,
            section=section,
        ),
        Page(
            name="dead-letter-replay",
            path="/dead-letters/{group}/replay",
            title="Replay",
            scopes=(Scope.OPERATE,),
            load=_confirm,
            section=section,
        ),
        Page(
            name="dead-letter-purge",
            path="/dead-letters/{group}/purge",
            title="Purge",
            scopes=(Scope.OPERATE,),
            load=_confirm,
            section=section,
        ),
    ]


def actions(_app: Mainspring) -> list[Action]:
    """Return the declarations of the actions that replay and purge dead letters."""
    return [
        Action(
            name="dead-letter-replay", path="/dead-letters/{group}/replay", scopes=(Scope.OPERATE,), serve=_replay
        ),
        Action(
            name="dead-letter-purge", path="/dead-letters/{group}/purge", scopes=(Scope.OPERATE,), serve=_purge
        ),
    ]
