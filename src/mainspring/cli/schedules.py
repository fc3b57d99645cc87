"""`mainspring schedules`: lists, previews, pauses and resumes schedules.

The preview shows the coming occurrences, and the effect of daylight saving time on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from mainspring.app import Mainspring
from mainspring.cli.documents import rule_fields, rule_text, schedule_fields
from mainspring.cli.exits import ExitCode, in_words
from mainspring.cli.options import App, AsJson, Url, to_instant
from mainspring.cli.output import Cell, at, clean, say, show_json, show_table, write
from mainspring.cli.target import opened
from mainspring.clock import SystemClock
from mainspring.errors import ScheduleNotFound
from mainspring.jobs import timestamps
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.planning import first_due
from mainspring.jobs.recurrence.rules import Rule
from mainspring.jobs.recurrence.schedule_info import ScheduleInfo

_EXPRESSION = re.compile(r"@\w+|(?=[^a-zA-Z]*[\d*])[\d*][\w*/,\-]*(\s+[\w*/,\-#?]+){1,6}")
_MOVED = "moved by a DST gap from "
MORE = 10  # times as many occurrences are searched, to find those that a DST gap drops


@dataclass(frozen=True, slots=True)
class Timetable:
    """A rule with the start and the end of its schedule."""

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
class Date:
    """A line of the preview: an occurrence, or one that a DST gap drops."""

    local: datetime
    note: str | None
    is_skipped: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "local": self.local.isoformat(),
            "utc": self.local.astimezone(UTC),
            "note": self.note,
            "skipped": self.is_skipped,
        }


def preview(
    what: Annotated[
        str, typer.Argument(help="A cron expression, or the name of a stored schedule.", metavar="CRON|NAME")
    ],
    *,
    tz: Annotated[str, typer.Option(help="The time zone of the expression.", metavar="ZONE")] = "UTC",
    count: Annotated[int, typer.Option(help="How many dates.", min=1, max=10_000)] = 10,
    since: Annotated[
        datetime | None,
        typer.Option("--from", help="Begin there, not now.", parser=to_instant, metavar="INSTANT"),
    ] = None,
    dst_gap: Annotated[
        str, typer.Option(help="What becomes of a time that a night lacks.", metavar="shift|skip")
    ] = "shift",
    dst_fold: Annotated[
        str, typer.Option(help="Which of two equal times of a night counts.", metavar="first|second|both")
    ] = "first",
    is_name: Annotated[
        bool, typer.Option("--name", help="It is a name, though it looks like a cron expression.")
    ] = False,
    as_json: AsJson = False,
    app: App = None,
    url: Url = None,
) -> None:
    """Show the next dates of a cron expression or of a schedule; nights in which clocks change are marked.

    Example: mainspring schedules preview "30 2 * * *" --tz Europe/Berlin --count 20
    """
    after = timestamps.to_instant(SystemClock().now() if since is None else since, "from") - (since is not None)
    if is_name or not _EXPRESSION.fullmatch(what.strip()):
        with opened(app, url) as application:
            timetable = _stored(application.schedules.get(full_name(application, what)))
    else:
        timetable = Timetable(Cron(what, tz=tz, dst_gap=dst_gap, dst_fold=dst_fold))  # type: ignore[arg-type]
    dates = dates_of(timetable, after, count)
    if as_json:
        show_json({"rule": rule_fields(timetable.rule), "dates": [date.fields() for date in dates]})
    elif dates:
        show_table(("DATE", "UTC", "NOTE"), _rows(dates), whole=("DATE", "NOTE"), spare=("UTC",))
        say(rule_text(timetable.rule))
    else:
        say("mainspring: it never occurs again")
        raise typer.Exit(ExitCode.REFUSED)


def full_name(application: Mainspring, name: str) -> str:
    """Return the full name for a short one, `shop.nightly_report` for `nightly_report`.

    A name that matches no stored schedule, or several, is returned unchanged.
    """
    stored = [schedule.name for schedule in application.schedules.list()]
    matches = [other for other in stored if other.rpartition(".")[2] == name]
    return matches[0] if name not in stored and len(matches) == 1 else name


def dates_of(timetable: Timetable, after: int, count: int) -> list[Date]:
    """Return the next dates, and between them those that a DST gap drops because the local time does not exist."""
    occurring = timetable.after(after, count)
    dates = {instant: Date(*timetable.rule.local(instant)) for instant in occurring}
    rule = timetable.rule
    if isinstance(rule, Cron) and rule.dst_gap == "skip" and occurring:
        shifted = Cron(rule.expression, tz=rule.tz, dst_gap="shift", dst_fold=rule.dst_fold)
        for instant in Timetable(shifted, timetable.start, timetable.end).after(after, MORE * count):
            if instant > occurring[-1]:
                break
            if instant not in dates:
                local, note = shifted.local(instant)
                missing = (note or "").removeprefix(_MOVED)
                dates[instant] = Date(local, f"skipped: there is no {missing}", is_skipped=True)
    return [dates[instant] for instant in sorted(dates)]


def _stored(schedule: ScheduleInfo) -> Timetable:
    if schedule.rule is None:
        raise typer.BadParameter(f"the rule of {schedule.name!r} was written by a newer version; upgrade this one")
    if schedule.is_paused:
        say(f"{clean(schedule.name)} is paused: these dates hold once it is resumed")
    return Timetable(schedule.rule, schedule.record.start, schedule.record.end)


def _rows(dates: list[Date]) -> Iterator[list[Cell]]:
    time = "%H:%M:%S" if any(date.local.second for date in dates) else "%H:%M"
    for date in dates:
        style = "yellow" if date.note is not None else ""
        shown, utc = f"{date.local:%a %Y-%m-%d {time} %z}", f"{date.local.astimezone(UTC):%Y-%m-%d {time}}"
        if date.is_skipped:
            shown, utc = f"{date.local:%a %Y-%m-%d} -", "-"
        yield [Text(shown, style=style), Text(utc), Text(date.note or "", style=style)]


Names = Annotated[list[str], typer.Argument(help="The names of schedules.", metavar="NAME")]

schedules = typer.Typer(
    name="schedules", help="List, preview, pause and resume what recurs.", no_args_is_help=True
)
schedules.command()(preview)


@schedules.command("list")
def list_schedules(*, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """List the stored schedules; those that are declared in code are stored when a worker starts.

    Example: mainspring schedules list
    """
    with opened(app, url) as application:
        found = application.schedules.list()
    if as_json:
        show_json({"schedules": [schedule_fields(schedule) for schedule in found]})
    elif found:
        show_table(
            ("NAME", "NEXT (UTC)", "RULE", "QUEUE", "HANDLER", "LAST (UTC)"),
            map(_row, found),
            whole=("NAME", "NEXT (UTC)"),
            spare=("HANDLER", "LAST (UTC)", "QUEUE"),
        )
    else:
        say("no schedules; those that are declared in code are stored when a worker starts")


def _row(schedule: ScheduleInfo) -> list[Cell]:
    due = Text("paused", style="yellow") if schedule.is_paused else at(schedule.next_due)
    rule = rule_text(schedule.rule)
    return [schedule.name, due, rule, schedule.queue, schedule.type, at(schedule.last_due)]


@schedules.command("pause")
def pause_schedules(names: Names, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Let schedules rest; jobs that they have made are not touched.

    Example: mainspring schedules pause nightly_report
    """
    with opened(app, url) as application:
        outcomes = _each(application, names, application.schedules.pause)
    _report(outcomes, "paused", as_json=as_json)


@schedules.command("resume")
def resume_schedules(names: Names, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Let schedules go on with their first occurrence from now on.

    Example: mainspring schedules resume nightly_report
    """
    with opened(app, url) as application:
        outcomes = _each(application, names, application.schedules.resume)
    _report(outcomes, "resumed", as_json=as_json)


def _each(
    application: Mainspring, names: list[str], change: Callable[[str], bool]
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
        show_json(
            [
                {
                    "name": name,
                    "changed": outcome is True,
                    "outcome": how if isinstance(outcome, bool) else in_words(outcome),
                }
                for name, outcome in outcomes.items()
            ]
        )
    else:
        for name, outcome in outcomes.items():
            if isinstance(outcome, ScheduleNotFound):
                say(f"mainspring: {in_words(outcome)}")
            else:
                write(f"{clean(name)} {how}" if outcome else f"{clean(name)} was {how} already")
    if any(isinstance(outcome, ScheduleNotFound) for outcome in outcomes.values()):
        raise typer.Exit(ExitCode.REFUSED)
