"""`mainspring schedules`: lists, shows, previews, stores, triggers, pauses and removes schedules."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta

import click

from mainspring.app import Mainspring
from mainspring.cli.app_selection import open_app
from mainspring.cli.argument_parsing import find_job_function, parse_arguments
from mainspring.cli.commands import Argument, CommandGroup
from mainspring.cli.exit_codes import ExitCode, error_message
from mainspring.cli.json_fields import rule_fields, rule_text, schedule_fields
from mainspring.cli.options import (
    PRIORITIES,
    Decorated,
    NumberRange,
    app_options,
    json_option,
    parse_duration,
    parse_instant,
    parse_instant_or_date,
)
from mainspring.cli.output import (
    Cell,
    Styled,
    escape_control,
    format_time,
    print_json,
    print_line,
    print_message,
    print_rich,
    print_table,
)
from mainspring.cli.schedule_views import history_row, preview_rows, schedule_detail
from mainspring.errors import ScheduleNotFound
from mainspring.jobs import timestamps
from mainspring.jobs.policies import CatchUp
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.preview import BoundedRule, first_moment, next_dates
from mainspring.jobs.recurrence.rules import Every
from mainspring.jobs.recurrence.schedule_history import merge_history
from mainspring.jobs.recurrence.schedule_info import ScheduleInfo
from mainspring.jobs.recurrence.schedule_records import Overlap
from mainspring.runners.task import Priority

_EXPRESSION = re.compile(r"@\w+|(?=[^a-zA-Z]*[\d*])[\d*][\w*/,\-]*(\s+[\w*/,\-#?]+){1,6}")

schedules = CommandGroup("schedules", help="List, show, preview, store, trigger, pause and remove schedules.")

name_argument = click.argument("name", cls=Argument, metavar="NAME", help="The name of a schedule.")

names_argument = click.argument(
    "names", cls=Argument, nargs=-1, required=True, metavar="NAME", help="The names of schedules."
)


def zone_options(function: Decorated) -> Decorated:
    """Add the options `--tz`, `--dst-gap` and `--dst-fold` of a cron expression to a command."""
    tz = click.option("--tz", default="UTC", help="The time zone of the cron expression.", metavar="ZONE")
    dst_gap = click.option(
        "--dst-gap",
        default="auto",
        help="Shift or skip a time that does not exist because clocks are set forward; auto: as Debian's cron.",
        metavar="auto|shift|skip",
    )
    dst_fold = click.option(
        "--dst-fold",
        default="auto",
        help="Which one to use when a time occurs twice because clocks are set back; auto: as Debian's cron.",
        metavar="auto|first|second|both",
    )
    return tz(dst_gap(dst_fold(function)))


@schedules.command("preview")
@click.argument(
    "what", cls=Argument, metavar="CRON|NAME", help="A cron expression, or the name of a stored schedule."
)
@zone_options
@click.option("--count", type=NumberRange(1, 10_000), default=10, help="The number of dates.", metavar="NUMBER")
@click.option(
    "--from",
    "since",
    type=parse_instant_or_date,
    show_default="now",
    help="Show dates from this time on; a day begins at midnight in the time zone of the rule.",
    metavar="INSTANT",
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
    after = timestamps.to_instant(first_moment(since, bounded.rule), "from") - (since is not None)
    dates = next_dates(bounded, after, count)
    if as_json:
        print_json({"rule": rule_fields(bounded.rule), "dates": [date.fields() for date in dates]})
    elif dates:
        print_table(("DATE", "UTC", "NOTE"), preview_rows(dates), uncut=("DATE", "NOTE"), droppable=("UTC",))
        print_message(rule_text(bounded.rule))
    else:
        print_message("mainspring: the rule has no further occurrence; check the expression, and the end")
        raise click.exceptions.Exit(ExitCode.FAILURE)


def full_name(application: Mainspring, name: str) -> str:
    """Return the full name of a stored schedule for its short name: `shop.nightly_report` for `nightly_report`.

    A name that is a full name, or matches no stored schedule or several, is returned unchanged.
    """
    stored = [schedule.name for schedule in application.schedules.list()]
    matches = [other for other in stored if other.rpartition(".")[2] == name]
    return matches[0] if name not in stored and len(matches) == 1 else name


def _stored(schedule: ScheduleInfo) -> BoundedRule:
    if schedule.rule is None:
        raise click.BadParameter(
            f"this version cannot read the rule of {schedule.name!r}: a newer version has written it, or its time "
            "zone is unknown; upgrade Mainspring or tzdata"
        )
    if schedule.is_paused:
        print_message(f"{escape_control(schedule.name)} is paused: the dates apply when it is resumed")
    return BoundedRule(schedule.rule, schedule.record.start, schedule.record.end)


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
    due = Styled("paused", "yellow") if schedule.is_paused else format_time(schedule.next_due)
    rule = rule_text(schedule.rule)
    return [schedule.name, due, rule, schedule.queue, schedule.type, format_time(schedule.last_due)]


@schedules.command("show")
@name_argument
@json_option
@app_options
def show_schedule(*, name: str, as_json: bool, app: str | None, url: str | None) -> None:
    """Show everything about a schedule: its job, its rule, its policies and its next dates.

    Example: mainspring schedules show nightly_report
    """
    with open_app(app, url) as application:
        schedule = application.schedules.get(full_name(application, name))
        now = application.manager().engine.now()
    if as_json:
        print_json(schedule_fields(schedule) | {"upcoming": [date.isoformat() for date in schedule.upcoming()]})
    else:
        print_rich(schedule_detail(schedule, now))


@schedules.command("put")
@click.argument(
    "name", cls=Argument, metavar="NAME", help="The name of the schedule: a new one, or one to change."
)
@click.argument("handler", cls=Argument, metavar="HANDLER", help="The job type; its short name is enough.")
@click.argument("pairs", cls=Argument, nargs=-1, metavar="NAME=VALUE", help="The arguments of the handler.")
@click.option("--args", "text", help="The arguments as a JSON object, or as a list.", metavar="JSON")
@click.option("--cron", help="Recur by a cron expression, such as '30 2 * * MON-FRI'.", metavar="EXPRESSION")
@zone_options
@click.option("--every", type=parse_duration, help="Recur at this interval, such as 5m.", metavar="DURATION")
@click.option(
    "--misfire",
    type=click.Choice(("once", "skip")),
    default="once",
    help="Run the latest of the missed occurrences, or none.",
    metavar="once|skip",
)
@click.option(
    "--catch-up",
    type=NumberRange(1),
    help="Run this many of the missed occurrences, the latest ones; used instead of --misfire.",
    metavar="NUMBER",
)
@click.option(
    "--overlap",
    type=click.Choice([str(each) for each in Overlap]),
    default=str(Overlap.SKIP),
    help="While an earlier job has not ended: skip the occurrence, queue it, replace the job, or allow both.",
    metavar="skip|queue|replace|allow",
)
@click.option(
    "--jitter", type=parse_duration, help="Delay each job at random, by up to this time.", metavar="DURATION"
)
@click.option("--start", type=parse_instant, help="No occurrence is before this time.", metavar="INSTANT")
@click.option("--end", type=parse_instant, help="No occurrence is after this time.", metavar="INSTANT")
@click.option("--queue", help="Use this queue instead of the handler's.", metavar="NAME")
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES, case_sensitive=False),
    help="Use this priority instead of the handler's: best-effort, user-visible or user-blocking.",
    metavar="PRIORITY",
)
@json_option
@app_options
def put_schedule(
    *,
    name: str,
    handler: str,
    pairs: tuple[str, ...],
    text: str | None,
    cron: str | None,
    tz: str,
    dst_gap: str,
    dst_fold: str,
    every: timedelta | None,
    misfire: str,
    catch_up: int | None,
    overlap: str,
    jitter: timedelta | None,
    start: datetime | None,
    end: datetime | None,
    queue: str | None,
    priority: str | None,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Store a schedule, or change the one with this name.

    An equal definition changes nothing. A changed one applies from now on.

    Example: mainspring schedules put ann send_digest customer=ann --cron "0 8 * * *" --tz Europe/Berlin

    Example: mainspring schedules put sync sync_stock --every 5m --overlap queue
    """
    rule = _rule(cron, every, tz=tz, dst_gap=dst_gap, dst_fold=dst_fold)
    with open_app(app, url, creates_store=True) as application:
        job = find_job_function(application, handler, "schedules put").options(
            queue=queue, priority=None if priority is None else Priority[priority.upper().replace("-", "_")]
        )
        positional, named = parse_arguments(job.handler, pairs, text)
        schedule = application.schedules.put(
            name,
            job,
            rule,
            arguments=positional or named,
            misfire=misfire if catch_up is None else CatchUp(catch_up),  # type: ignore[arg-type]
            overlap=Overlap(overlap),
            jitter=jitter or 0,
            start=start,
            end=end,
        )
    if as_json:
        print_json(schedule_fields(schedule))
    else:
        due = "paused" if schedule.is_paused else f"next {format_time(schedule.next_due)} UTC"
        print_line(f"{escape_control(name)} stored: {rule_text(schedule.rule)}, {due}")
    if name in application.declared:
        print_message(
            f"mainspring: {escape_control(name)} is declared in code: a worker that starts stores that definition "
            "again; change the code as well"
        )


def _rule(cron: str | None, every: timedelta | None, *, tz: str, dst_gap: str, dst_fold: str) -> Cron | Every:
    if (cron is None) is (every is None):
        raise click.BadParameter("give either --cron EXPRESSION or --every DURATION")
    if every is not None:
        if every <= timedelta():
            raise click.BadParameter(
                f"--every must be longer than 0 s, got {every.total_seconds():g} s; give a duration such as 5m"
            )
        return Every(every)
    assert cron is not None
    return Cron(cron, tz=tz, dst_gap=dst_gap, dst_fold=dst_fold)  # type: ignore[arg-type]


@schedules.command("trigger")
@name_argument
@json_option
@app_options
def trigger_schedule(*, name: str, as_json: bool, app: str | None, url: str | None) -> None:
    """Run the job of a schedule once, now, and print its id.

    The next occurrence of the schedule stays as it is, and a paused schedule stays paused. The overlap policy of
    the schedule applies: with skip, the command fails while an earlier job has not ended.

    Example: mainspring schedules trigger nightly_report
    """
    with open_app(app, url) as application:
        full = full_name(application, name)
        job_id = application.schedules.trigger(full).id
    print_json({"schedule": full, "id": job_id}) if as_json else print_line(job_id)


@schedules.command("history")
@name_argument
@click.option("--limit", type=NumberRange(1, 10_000), default=20, help="The number of entries.", metavar="NUMBER")
@json_option
@app_options
def show_history(*, name: str, limit: int, as_json: bool, app: str | None, url: str | None) -> None:
    """Show the latest jobs of a schedule, and its occurrences without a job.

    Example: mainspring schedules history nightly_report --limit 50
    """
    with open_app(app, url) as application:
        full = full_name(application, name)
        left_out = application.schedules.history(full, limit)
        entries = merge_history(application.schedules.jobs(full, limit), left_out, limit)
    if as_json:
        print_json({"schedule": full, "history": [entry.fields() for entry in entries]})
    elif entries:
        rows = [history_row(entry) for entry in entries]
        print_table(("AT (UTC)", "OUTCOME", "JOB", "NOTE"), rows, uncut=("AT (UTC)", "OUTCOME", "JOB"))
    else:
        print_message(
            f"{escape_control(full)} has no history yet; mainspring schedules show {full} shows its dates"
        )


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


@schedules.command("remove")
@names_argument
@json_option
@app_options
def remove_schedules(*, names: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Remove schedules with their history; jobs that they have submitted stay.

    Example: mainspring schedules remove nightly_report
    """
    with open_app(app, url) as application:
        declared = {name for name in names if full_name(application, name) in application.declared}

        def remove(name: str) -> bool:
            application.schedules.remove(name)
            return True

        outcomes = _each(application, names, remove)
    for name in sorted(declared):
        if outcomes[name] is True:
            print_message(
                f"mainspring: {escape_control(name)} is declared in code: a worker that starts stores it again; "
                "remove the declaration as well"
            )
    _report(outcomes, "removed", as_json=as_json)


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
