"""`mainspring migrate`: moves the jobs of a SQLite file to NATS, each once; a stopped move can be continued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, cast

import click

from mainspring.app import Mainspring
from mainspring.cli.commands import Argument, Command
from mainspring.cli.exits import ExitCode
from mainspring.cli.options import app_option, json_option
from mainspring.cli.output import say, show_json, show_table, write
from mainspring.cli.progress import Bar
from mainspring.cli.stopping import Stopping
from mainspring.cli.target import find_application, require_store
from mainspring.clock import SystemClock
from mainspring.engines.nats.provider import is_nats
from mainspring.engines.nats.settings import without_password
from mainspring.engines.sqlite.departing import Departure
from mainspring.engines.sqlite.provider import is_sqlite, to_path
from mainspring.jobs.migration_records import MigrationDifference
from mainspring.moving import Mover, Plan, Undoing, plan, require_move

if TYPE_CHECKING:
    from mainspring.engines.nats.engine import NatsEngine

SHOWN = 20  # deviations in the table; --json has all


@click.command("migrate", cls=Command)
@click.argument("source", cls=Argument, metavar="FROM", help="The sqlite:/// URL of the file.")
@click.argument(
    "goal",
    cls=Argument,
    required=False,
    metavar="TO",
    help="The nats:// URL of the target; without it, the store of --app or MAINSPRING_URL.",
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--undo", is_flag=True, help="Undo a move, if no worker has run jobs on the target.")
@click.option(
    "--force",
    is_flag=True,
    help="Finish in spite of differences; with --undo, do not contact the target.",
)
@json_option
@app_option
def migrate(
    *, source: str, goal: str | None, dry_run: bool, undo: bool, force: bool, as_json: bool, app: str | None
) -> None:
    """Move jobs and schedules from a SQLite file to NATS.

    Pending jobs, dead letters, schedules, pauses and limits are moved. Stop the workers first. If the command is
    stopped or killed, run it again to continue.

    Example: mainspring migrate sqlite:///shop.db "nats://127.0.0.1:4222?prefix=shop"
    """
    application = _application_at(source, goal, app)
    with closing(Departure(str(to_path(source)))) as departure:
        departure.open()
        if dry_run:
            _show_plan(plan(departure), application.url, as_json=as_json)
        elif undo and force:
            state = require_move(departure)
            departure.take_back()
            say(f"mainspring: {state.target} was not asked; if it is there after all, let no worker run on it")
            _show_undone(source, as_json=as_json)
        elif undo:
            _undo(departure, application, source, as_json=as_json)
        else:
            _move(departure, application, source, force=force, as_json=as_json)


def _application_at(source: str, goal: str | None, app: str | None) -> Mainspring:
    """Return the application whose store the jobs move to; its NATS settings have the credentials."""
    if not is_sqlite(source):
        raise click.BadParameter(f"jobs move from a sqlite:/// file, not from {without_password(source)!r}")
    require_store(Mainspring(source))
    if goal is None:
        application = find_application(app, None)
    else:
        application = Mainspring(goal, nats=None if app is None else find_application(app, None).nats)
    if not is_nats(application.url):
        where = without_password(application.url)
        raise click.BadParameter(f"jobs move to nats:// or tls://, not to {where!r}; name the target, too")
    return application


@contextmanager
def _opened(application: Mainspring) -> Iterator[NatsEngine]:
    engine = cast("NatsEngine", application.make_engine(SystemClock()))
    engine.open(lambda: None)
    with closing(engine):
        yield engine


def _move(departure: Departure, application: Mainspring, source: str, *, force: bool, as_json: bool) -> None:
    goal = without_password(application.url)
    with ExitStack() as stack:
        mover = Mover(departure, stack.enter_context(_opened(application)), goal)
        stopping = stack.enter_context(Stopping())
        mover.begin()
        planned = plan(departure)
        seconds = 0.0
        if not mover.is_complete:
            command = f"mainspring migrate {source} '{goal}'"
            seconds = _run(mover.copying(), "moving", planned.jobs - mover.done_before, stopping, command)
            seconds += _run(mover.verifying(), "comparing", planned.jobs, stopping, command)
        if mover.deviations and not force:
            _show_deviations(mover.deviations, planned, goal, as_json=as_json)
            raise click.exceptions.Exit(ExitCode.REFUSED)
        mover.finish()
    _show_moved(mover, planned, source, goal, seconds, as_json=as_json)


def _run(steps: Iterator[int], what: str, total: int, stopping: Stopping, command: str) -> float:
    """Run all steps, with a bar, and return the seconds taken; Ctrl+C ends the command after the current step."""
    with Bar(what, total) as bar:
        for count in steps:
            bar.advance(count)
            if stopping.is_asked:
                break
        seconds = bar.seconds
    if stopping.is_asked:
        say(f"mainspring: stopped while {what}, after {bar.done:,} of {total:,} jobs; {command} goes on")
    stopping.end_if_asked()
    return seconds


def _undo(departure: Departure, application: Mainspring, source: str, *, as_json: bool) -> None:
    goal = without_password(application.url)
    with ExitStack() as stack:
        undoing = Undoing(departure, stack.enter_context(_opened(application)), goal)
        stopping = stack.enter_context(Stopping())
        total = 2 * undoing.total()  # each job is checked first, then removed
        with closing(undoing.undoing()) as steps:
            _run(steps, "taking back", total, stopping, f"mainspring migrate {source} '{goal}' --undo")
    _show_undone(source, as_json=as_json)


# -- output


def _fields(planned: Plan, goal: str, state: str) -> dict[str, Any]:
    names = ("pending", "dead_letters", "schedules", "paused_queues", "limits", "left_behind")
    return {"state": state, "to": goal} | {name: getattr(planned, name) for name in names}


def _amounts(planned: Plan) -> str:
    counted = (
        (planned.pending, "pending job"),
        (planned.dead_letters, "dead letter"),
        (planned.schedules, "schedule"),
        (planned.limits, "limit"),
        (planned.paused_queues, "paused queue"),
    )
    return ", ".join(f"{number:,} {what}{'' if number == 1 else 's'}" for number, what in counted)


def _show_plan(planned: Plan, url: str, *, as_json: bool) -> None:
    goal = without_password(url)
    if as_json:
        more = {"running": planned.running, "workers": planned.workers}
        show_json(_fields(planned, goal, "planned") | more)
        return
    write(f"would move {_amounts(planned)} to {goal}")
    if planned.running:
        write(f"{planned.running:,} RUNNING jobs move when their workers are stopped")
    write(f"{planned.left_behind:,} COMPLETED and CANCELED jobs would stay behind")
    if planned.workers:
        say(f"mainspring: stop worker {', '.join(planned.workers)} first")


def _show_moved(mover: Mover, planned: Plan, source: str, goal: str, seconds: float, *, as_json: bool) -> None:
    moved_now = 0 if mover.is_complete else planned.jobs - mover.done_before
    if as_json:
        more = {"moved_now": moved_now, "seconds": round(seconds, 3), "deviations": mover.deviations}
        show_json(_fields(planned, goal, "moved") | more)
        return
    if mover.is_complete:
        write(f"{source} was moved to {goal} before; nothing was left to do")
    else:
        rate = f"{moved_now / max(seconds, 0.001):,.0f} jobs/s"
        write(f"moved {_amounts(planned)} to {goal} in {seconds:.1f} s ({rate}), and compared them")
    if mover.deviations:
        write(f"{len(mover.deviations):,} of them differ, and were left there as they are")
    write(f"{planned.left_behind:,} COMPLETED and CANCELED jobs stay in {source}, which cannot be used any more")


def _show_deviations(deviations: list[MigrationDifference], planned: Plan, goal: str, *, as_json: bool) -> None:
    if as_json:
        show_json(_fields(planned, goal, "incomplete") | {"deviations": deviations})
    else:
        rows = [(deviation.what, deviation.name, deviation.problem) for deviation in deviations[:SHOWN]]
        show_table(("WHAT", "NAME", "PROBLEM"), rows, whole=("NAME",))
    say(
        f"mainspring: {len(deviations):,} differ at {goal}, all others are there; workers wait: put it right and "
        "run the same command, or accept it with --force, or take the move back with --undo"
    )


def _show_undone(source: str, *, as_json: bool) -> None:
    if as_json:
        show_json({"state": "undone", "from": source})
    else:
        write(f"taken back: {source} is used again as it was")
