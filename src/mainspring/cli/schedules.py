"""`mainspring schedules`: lists, previews, pauses and resumes schedules.

The preview shows the coming occurrences, and the effect of daylight saving time on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import click
from rich.text import Text

from mainspring.app import Mainspring
from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import Argument, CommandGroup
from mainspring.cli.exit_codes import ExitCode, error_message
from mainspring.cli.json_fields import rule_fields, rule_text, schedule_fields
from mainspring.cli.options import NumberRange, app_options, json_option, parse_instant_or_date
from mainspring.cli.output import (
    Cell,
    escape_control,
    format_time,
    print_json,
    print_line,
    print_message,
    print_table,
)
from mainspring.clock import SystemClock
from mainspring.errors import ScheduleNotFound
from mainspring.jobs import timestamps
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.planning import first_due
from mainspring.jobs.recurrence.rules import Rule
from mainspring.jobs.recurrence.schedule_info import ScheduleInfo

_EXPRESSION = re.compile(r"@\w+|(?=[^a-zA-Z]*[\d*])[\d*][\w*/,\-]*(\s+[\w*/,\-#?]+){1,6}")
_MOVED = "moved by a DST gap from "
SEARCH_FACTOR = 10  # the factor by which more occurrences are searched, to find those that a DST gap drops


@dataclass(frozen=True, slots=True)
class BoundedRule:
    """A rule, with the start and the end of its schedule."""

    rule: Rule
    start: int | None = None
    end: int | None = None

    def after(self, instant: int, count: int) -> list[int]:
        """Return the next `count` occurrences after an instant."""
        found: list[int] = []
        following = first_due(self.rule, self.start, self.end, instant)
        while following is not None and len(found) < count:
            found.append(following)
            following = first_due(self.rule, self.start, self.end, following)
        return found


@dataclass(frozen=True, slots=True)
class PreviewDate:
    """A line of the preview: an occurrence, or a time that a DST gap drops."""

    local: datetime
    note: str | None
    is_skipped: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the line as fields for JSON."""
        return {
            "local": self.local.isoformat(),
            "utc": self.local.astimezone(UTC),
            "note": self.note,
            "skipped": self.is_skipped,
        }


schedules = CommandGroup("schedules", help="List, preview, pause and resume schedules.")

names_argument = click.argument(
    "names", cls=Argument, nargs=-1, required=True, metavar="NAME", help="The names of schedules."
)


@schedules.command("preview")
@click.argument(
    "what", cls=Argument, metavar="CRON|NAME", help="A cron expression, or the name of a stored schedule."
)
@click.option("--tz", default="UTC", help="The time zone of the expression.", metavar="ZONE")
@click.option("--count", type=NumberRange(1, 10_000), default=10, help="The number of dates.", metavar="NUMBER")
@click.option(
    "--from",
    "since",
    type=parse_instant_or_date,
    show_default="now",
    help="Show only dates at or after this time, or from this day on, in the time zone of the rule.",
    metavar="INSTANT",
)
@click.option(
    "--dst-gap",
    default="auto",
    help="Shift or skip a time that does not exist because clocks are set forward.",
    metavar="auto|shift|skip",
)
@click.option(
    "--dst-fold",
    default="auto",
    help="Which one to use when a time occurs twice because clocks are set back.",
    metavar="auto|first|second|both",
)
@click.option(
    "--name",
    "is_name",
    is_flag=True,
    help="Treat the argument as the name of a schedule, even if it looks like a cron expression.",
)
@json_option
@app_options
def preview(
    *,
    what: str,
    tz: str,
    count: int,
    since: datetime | date | None,
    dst_gap: str,
    dst_fold: str,
    is_name: bool,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Show the next dates of a cron expression or of a schedule.

    Dates that are affected by a change of clocks are marked.

    Example: mainspring schedules preview "30 2 * * *" --tz Europe/Berlin --count 20
    """
    if is_name or not _EXPRESSION.fullmatch(what.strip()):
        with open_app(app, url) as application:
            bounded = _stored(application.schedules.get(full_name(application, what)))
    else:
        bounded = BoundedRule(Cron(what, tz=tz, dst_gap=dst_gap, dst_fold=dst_fold))  # type: ignore[arg-type]
    after = timestamps.to_instant(_first_moment(since, bounded.rule), "from") - (since is not None)
    dates = next_dates(bounded, after, count)
    if as_json:
        print_json({"rule": rule_fields(bounded.rule), "dates": [date.fields() for date in dates]})
    elif dates:
        print_table(("DATE", "UTC", "NOTE"), _rows(dates), uncut=("DATE", "NOTE"), droppable=("UTC",))
        print_message(rule_text(bounded.rule))
    else:
        print_message("mainspring: the rule has no further occurrence")
        raise click.exceptions.Exit(ExitCode.FAILURE)


def _first_moment(since: datetime | date | None, rule: Rule) -> datetime:
    """Return the instant at which a preview begins. A date begins at midnight in the time zone of the rule."""
    if since is None:
        return SystemClock().now()
    if isinstance(since, datetime):
        return since
    zone = ZoneInfo(rule.tz) if isinstance(rule, Cron) else UTC
    return datetime(since.year, since.month, since.day, tzinfo=zone)


def full_name(application: Mainspring, name: str) -> str:
    """Return the full name of a schedule for a short one, `shop.nightly_report` for `nightly_report`.

    A name that matches no stored schedule, or several, is returned unchanged.
    """
    stored = [schedule.name for schedule in application.schedules.list()]
    matches = [other for other in stored if other.rpartition(".")[2] == name]
    return matches[0] if name not in stored and len(matches) == 1 else name


def next_dates(bounded: BoundedRule, after: int, count: int) -> list[PreviewDate]:
    """Return the next occurrences, and between them the times that do not exist because of a DST gap."""
    occurring = bounded.after(after, count)
    dates = {instant: PreviewDate(*bounded.rule.local(instant)) for instant in occurring}
    rule = bounded.rule
    if isinstance(rule, Cron) and rule.dst_gap == "skip" and occurring:
        shifted = Cron(rule.expression, tz=rule.tz, dst_gap="shift", dst_fold=rule.dst_fold)
        for instant in BoundedRule(shifted, bounded.start, bounded.end).after(after, SEARCH_FACTOR * count):
            if instant > occurring[-1]:
                break
            if instant not in dates:
                local, note = shifted.local(instant)
                missing = (note or "").removeprefix(_MOVED)
                dates[instant] = PreviewDate(local, f"skipped: there is no {missing}", is_skipped=True)
    return [dates[instant] for instant in sorted(dates)]


def _stored(schedule: ScheduleInfo) -> BoundedRule:
    if schedule.rule is None:
        raise click.BadParameter(f"the rule of {schedule.name!r} was written by a newer version; upgrade this one")
    if schedule.is_paused:
        print_message(f"{escape_control(schedule.name)} is paused: the dates apply when it is resumed")
    return BoundedRule(schedule.rule, schedule.record.start, schedule.record.end)


def _rows(dates: list[PreviewDate]) -> Iterator[list[Cell]]:
    time = "%H:%M:%S" if any(line.local.second for line in dates) else "%H:%M"
    for line in dates:
        style = "yellow" if line.note is not None else ""
        shown, utc = f"{line.local:%a %Y-%m-%d {time} %z}", f"{line.local.astimezone(UTC):%Y-%m-%d {time}}"
        if line.is_skipped:
            shown, utc = f"{line.local:%a %Y-%m-%d} -", "-"
        yield [Text(shown, style=style), Text(utc), Text(line.note or "", style=style)]


@schedules.command("list")
@json_option
@app_options
def list_schedules(*, as_json: bool, app: str | None, url: str | None) -> None:
    """List the stored schedules.

    A worker stores the schedules that are declared in code when it starts.

    Example: mainspring schedules list
    """
    with open_app(app, url) as application:
        found = application.schedules.list()
    if as_json:
        print_json({"schedules": [schedule_fields(schedule) for schedule in found]})
    elif found:
        print_table(
            ("NAME", "NEXT (UTC)", "RULE", "QUEUE", "HANDLER", "LAST (UTC)"),
            map(_row, found),
            uncut=("NAME", "NEXT (UTC)"),
            droppable=("HANDLER", "LAST (UTC)", "QUEUE"),
        )
    else:
        print_message("no schedules; those that are declared in code are stored when a worker starts")


def _row(schedule: ScheduleInfo) -> list[Cell]:
    due = Text("paused", style="yellow") if schedule.is_paused else format_time(schedule.next_due)
    rule = rule_text(schedule.rule)
    return [schedule.name, due, rule, schedule.queue, schedule.type, format_time(schedule.last_due)]


@schedules.command("pause")
@names_argument
@json_option
@app_options
def pause_schedules(*, names: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Pause schedules; jobs that they have submitted are not affected.

    Example: mainspring schedules pause nightly_report
    """
    with open_app(app, url) as application:
        outcomes = _each(application, names, application.schedules.pause)
    _report(outcomes, "paused", as_json=as_json)


@schedules.command("resume")
@names_argument
@json_option
@app_options
def resume_schedules(*, names: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Resume schedules, from their next occurrence on.

    Example: mainspring schedules resume nightly_report
    """
    with open_app(app, url) as application:
        outcomes = _each(application, names, application.schedules.resume)
    _report(outcomes, "resumed", as_json=as_json)


def _each(
    application: Mainspring, names: tuple[str, ...], change: Callable[[str], bool]
) -> dict[str, bool | ScheduleNotFound]:
    outcomes: dict[str, bool | ScheduleNotFound] = {}
    for name in names:
        try:
            outcomes[name] = change(full_name(application, name))
        except ScheduleNotFound as error:
            outcomes[name] = error
    return outcomes


def _report(outcomes: dict[str, bool | ScheduleNotFound], how: str, *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "changed": outcome is True,
                    "outcome": how if isinstance(outcome, bool) else error_message(outcome),
                }
                for name, outcome in outcomes.items()
            ]
        )
    else:
        for name, outcome in outcomes.items():
            if isinstance(outcome, ScheduleNotFound):
                print_message(f"mainspring: {error_message(outcome)}")
            else:
                print_line(
                    f"{escape_control(name)} {how}" if outcome else f"{escape_control(name)} was {how} already"
                )
    if any(isinstance(outcome, ScheduleNotFound) for outcome in outcomes.values()):
        raise click.exceptions.Exit(ExitCode.FAILURE)
