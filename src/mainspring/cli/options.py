"""Options and arguments that several commands share, and the parsers of durations and instants.

`mainspring --help` imports this module, so it imports no modules of jobs and engines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

import click

from mainspring.cli.commands import Argument, Option

APPLICATION = "Application and store"
HEALTH = "Health and logs"
STATUSES = ("pending", "running", "completed", "failed", "canceled")
PRIORITIES = ("best-effort", "user-visible", "user-blocking")

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_DATE = re.compile(r"(\d{4}-?\d\d-?\d\d)\s*(Z|[+-]\d\d(?::?\d\d)?)?")
_DATE_AND_TIME = re.compile(r"[\dW-]+T.+")

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class NumberRange(click.ParamType[int | float]):
    """The type of an option that is a number from `least` to `most`, a whole number unless `kind` is float."""

    name = "number"

    def __init__(self, least: float, most: float = math.inf, *, kind: type[int] | type[float] = int) -> None:
        self._least = least
        self._most = most
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        try:
            number = self._kind(value)
        except ValueError:
            self.fail(f"{value!r} is not a {'whole ' if self._kind is int else ''}number", param, ctx)
        if not self._least <= number:
            self.fail(f"{value} is too small, the minimum is {_plain(self._least)}", param, ctx)
        if number > self._most:
            self.fail(f"{value} is too large, the maximum is {_plain(self._most)}", param, ctx)
        return number


def _plain(number: float) -> str:
    return f"{number:,.6f}".rstrip("0").rstrip(".")


def parse_duration(text: str) -> timedelta:
    """Parse a duration, in seconds or with units: `90`, `30m`, `1h30m`, `250ms`.

    Raises a usage error for other text.
    """
    given = text.strip().lower()
    parts = _PART.findall(given)
    has_units = bool(parts) and not _PART.sub("", given).strip()
    try:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts) if has_units else float(given)
        return timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no duration; write seconds, or 250ms, 90s, 30m, 1h30m, 7d, 2w"
        ) from None


def parse_instant(text: str) -> datetime:
    """Parse a date and time with a time zone, `2027-01-01T02:00:00+01:00`, or a date, which means its beginning.

    A date may have a time zone, `2027-01-01+01:00`. Without one it is a date in UTC. Raises a usage error for
    other text, and for a time without a time zone.
    """
    found = parse_instant_or_date(text)
    return found if isinstance(found, datetime) else datetime(found.year, found.month, found.day, tzinfo=UTC)


def parse_instant_or_date(text: str) -> datetime | date:
    """Parse an instant as `parse_instant` does, but return a date without a time zone as a `date`."""
    given = text.strip().upper()
    if on_day := _DATE.fullmatch(given):
        day, zone = on_day.groups(default="")
        form = f"{day}T00:00{zone}"
    else:
        form = given.replace(" ", "T", 1)
    try:
        # `fromisoformat` takes any character for the T. So it would read 2027-01-01+01:00 as one o'clock.
        found = datetime.fromisoformat(form) if _DATE_AND_TIME.fullmatch(form) else None
    except ValueError:
        found = None
    if found is None:
        raise click.BadParameter(
            f"{text!r} is no instant; write 2027-01-01T02:00:00+01:00, or Z for UTC, or a date: 2027-01-01"
        )
    if found.tzinfo is not None:
        return found
    if on_day:
        return found.date()
    raise click.BadParameter(f"{text!r} could mean any time zone; add one: {form}+01:00, or {form}Z for UTC")


def _inherit(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the value of an option that was given after the command; else the one that was given before it.

    Before the command means as in `mainspring --app shop:app jobs list`.
    """
    return context.find_root().params.get(str(parameter.name)) if value is None else value


app_option = click.option(
    "--app",
    cls=Option,
    section=APPLICATION,
    help="The application, whose handlers and store the command uses.",
    metavar="MODULE:APP",
    callback=_inherit,
)
url_option = click.option(
    "--url",
    cls=Option,
    section=APPLICATION,
    help="The store, instead of the one that the application names.",
    metavar="URL",
    callback=_inherit,
)


def app_options(function: Decorated) -> Decorated:
    """Add the options `--app` and `--url` to a command."""
    return app_option(url_option(function))


id_argument = click.argument("job_id", cls=Argument, metavar="ID", help="The id of a job.")
ids_argument = click.argument("ids", cls=Argument, nargs=-1, required=True, metavar="ID", help="The ids of jobs.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
queue_option = click.option("--queue", help="Only jobs of this queue.", metavar="NAME")
type_option = click.option(
    "--type", help="Only jobs of this job type; with --app, its short name is enough.", metavar="NAME"
)
limit_option = click.option(
    "--limit", type=NumberRange(1), default=50, help="List at most this many entries.", metavar="NUMBER"
)
after_option = click.option(
    "--after", help="List the page after this position, which the previous page has printed.", metavar="POSITION"
)
oldest_first_option = click.option("--oldest-first", is_flag=True, help="List the oldest entries first.")
delay_option = click.option(
    "--delay",
    type=parse_duration,
    help="Make the job due after this time from now: 90 (seconds), 30m, 1h30m.",
    metavar="DURATION",
)
at_option = click.option(
    "--at",
    type=parse_instant,
    help="Make the job due at this time: 2027-01-01T02:00:00+01:00, or 2027-01-01.",
    metavar="INSTANT",
)


def log_options(function: Decorated) -> Decorated:
    """Add the options `--log-format` and `--log-level` to a command."""
    return _log_format_option(_log_level_option(function))


_log_format_option = click.option(
    "--log-format",
    cls=Option,
    section=HEALTH,
    type=click.Choice(["console", "json"]),
    default="console",
    help="Log lines for people, or one JSON object per line.",
    metavar="console|json",
)
_log_level_option = click.option(
    "--log-level",
    cls=Option,
    section=HEALTH,
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="The lowest level that is logged: debug, info, warning or error.",
    metavar="LEVEL",
)
health_dir_option = click.option(
    "--health-dir",
    cls=Option,
    section=HEALTH,
    type=click.Path(file_okay=False),
    help="The health files are in mainspring-<uid> below this folder. Without it: MAINSPRING_HEALTH_DIR, else "
    "XDG_RUNTIME_DIR, else the folder for temporary files.",
    metavar="FOLDER",
)
