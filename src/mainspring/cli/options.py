"""Options that several commands share, and the parsers of durations and instants.

`mainspring --help` imports this module, so it imports nothing from the rest of the package.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

WHERE = "Which application or store"
HEALTH = "Health and logs"

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def _inherit(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Return the value given before the command, `mainspring --app shop:app jobs list`, if none follows it."""
    return context.find_root().params.get(str(parameter.name)) if value is None else value


App = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="The application; its handlers are known.",
        metavar="MODULE:APP",
        callback=_inherit,
        rich_help_panel=WHERE,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The store, without handlers; with --app, that application on this store.",
        metavar="URL",
        callback=_inherit,
        rich_help_panel=WHERE,
    ),
]
Id = Annotated[str, typer.Argument(help="The id of a job.", metavar="ID")]
Ids = Annotated[list[str], typer.Argument(help="The ids of jobs.", metavar="ID")]
HealthDir = Annotated[
    str | None,
    typer.Option(
        "--health-dir",
        help="Where workers leave their signs of life for `mainspring healthcheck`; else MAINSPRING_HEALTH_DIR, "
        "XDG_RUNTIME_DIR or the folder for temporary files.",
        metavar="FOLDER",
        rich_help_panel=HEALTH,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
QueueName = Annotated[str | None, typer.Option("--queue", help="Only this queue.", metavar="NAME")]
TypeName = Annotated[
    str | None,
    typer.Option("--type", help="Only this handler; with --app its short name will do.", metavar="NAME"),
]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", min=1)]
OldestFirst = Annotated[bool, typer.Option("--oldest-first", help="In the order of their submission.")]
After = Annotated[str | None, typer.Option("--after", help="Go on where the page before ended.", metavar="PLACE")]


class StatusName(StrEnum):
    """The job states as command line values; the names are those of `JobStatus`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class PriorityName(StrEnum):
    """The priorities as command line values; the names are those of `Priority`."""

    BEST_EFFORT = "best-effort"
    USER_VISIBLE = "user-visible"
    USER_BLOCKING = "user-blocking"


def to_duration(text: str) -> timedelta:
    """Parse a duration, in seconds or with units: `90`, `30m`, `1h30m`, `250ms`."""
    given = text.strip().lower()
    try:
        return timedelta(seconds=float(given))
    except ValueError:
        parts = _PART.findall(given)
        if parts and not _PART.sub("", given).strip():
            return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        pass
    raise typer.BadParameter(f"{text!r} is no duration; write seconds, or 250ms, 90s, 30m, 1h30m, 7d, 2w")


def to_instant(text: str) -> datetime:
    """Parse an ISO 8601 date and time with a time zone: `2027-01-01T02:00:00+01:00`."""
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no instant; write 2027-01-01T02:00:00+01:00, or Z for UTC"
        ) from None
    if instant.tzinfo is None:
        raise typer.BadParameter(f"{text!r} could mean any time zone; add one: {text.strip()}+01:00, or Z for UTC")
    return instant


Delay = Annotated[
    timedelta | None,
    typer.Option("--delay", help="Due so much later: 90, 30m, 1h30m.", parser=to_duration, metavar="DURATION"),
]
At = Annotated[
    datetime | None,
    typer.Option("--at", help="Due then: 2027-01-01T02:00:00+01:00.", parser=to_instant, metavar="INSTANT"),
]
