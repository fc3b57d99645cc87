"""`mainspring audit`: lists who changed jobs, queues, schedules and tokens."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click
from msgspec.structs import asdict

from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import Command
from mainspring.cli.job_filters import parse_past
from mainspring.cli.options import app_options, json_option, limit_option
from mainspring.cli.output import Cell, compact_json, format_time, print_json, print_message, print_table
from mainspring.jobs.audit import AuditEntry
from mainspring.jobs.audit_drafts import ALL_ACTIONS
from mainspring.plurals import format_count
from mainspring.similar_names import did_you_mean


def parse_action(text: str) -> str:
    """Return an action of the audit trail, such as `job.cancel`, or a kind of actions, such as `job`.

    Raises a usage error for other text.
    """
    action = text.strip().lower()
    kinds = [known.partition(".")[0] for known in ALL_ACTIONS]
    if action in (*ALL_ACTIONS, *kinds):
        return action
    known = sorted({*ALL_ACTIONS, *kinds})
    hint = did_you_mean(action, known) or f"the actions are {', '.join(sorted(ALL_ACTIONS))}"
    raise click.BadParameter(f"{text!r} is no action; {hint}")


@click.command("audit", cls=Command)
@click.option(
    "--since",
    type=parse_past,
    help="Only entries from this time on: 2h (ago), or 2027-01-01T02:00:00Z.",
    metavar="TIME",
)
@click.option("--until", type=parse_past, help="Only entries before this time.", metavar="TIME")
@click.option("--actor", help="Only changes by this user, with or without host, or by this token.", metavar="NAME")
@click.option(
    "--action",
    type=parse_action,
    help="Only this action, such as job.cancel, or this kind, such as queue.",
    metavar="ACTION",
)
@click.option("--job", help="Only changes of this job.", metavar="ID")
@limit_option
@json_option
@app_options
def audit(
    *,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    actor: str | None,
    action: str | None,
    job: str | None,
    limit: int,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """List who changed jobs, queues, schedules and tokens, the latest change first.

    The list has what the commands of this program and the HTTP API changed: cancels, retries, replays, edits,
    purges, pauses, changes and triggers of schedules, tokens. Submits are not in it, nor changes by the code of an
    application, unless it names an actor with acting_as(). Times are in UTC.

    Example: mainspring audit --since 7d --actor alice --action job.cancel
    """
    with open_app(app, url) as application:
        found = application.audit(limit, since=since, until=until, actor=actor, action=action, job=job)
    if as_json:
        print_json({"entries": [entry_fields(entry) for entry in found]})
    elif found:
        print_table(
            ("TIME", "ACTOR", "ACTION", "TARGET", "SOURCE", "DETAILS"),
            [_row(entry) for entry in found],
            uncut=("TIME", "ACTION"),
            droppable=("SOURCE", "DETAILS"),
        )
    else:
        print_message("no entries in the audit trail match")


def entry_fields(entry: AuditEntry) -> dict[str, Any]:
    """Return the fields of an entry of the audit trail, for JSON output."""
    return asdict(entry)


def _row(entry: AuditEntry) -> list[Cell]:
    target = entry.target if entry.target is not None else format_count(entry.count, "job")
    return [format_time(entry.at), entry.actor, entry.action, target, entry.source, _details(entry)]


def _details(entry: AuditEntry) -> str:
    given = dict(entry.details)
    if entry.token is not None:
        given["by_token"] = entry.token
    if entry.target is not None and entry.jobs:
        given["job"] = entry.jobs[0]
    return " ".join(f"{name}={_value(value)}" for name, value in given.items()) or "-"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)
