"""`mainspring migrate`: moves the jobs of a SQLite file to NATS, each exactly once.

A migration that was stopped or killed continues with the next call.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, cast

import click

from mainspring.app import Mainspring
from mainspring.cli.acting_user import acting_user
from mainspring.cli.app_selection import load_application, require_store
from mainspring.cli.commands import Argument, Command
from mainspring.cli.deferred_signals import DeferredSignals
from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.options import app_option, json_option
from mainspring.cli.output import print_json, print_line, print_message, print_table
from mainspring.cli.progress import ProgressBar
from mainspring.clock import SystemClock
from mainspring.engines.nats.provider import is_nats
from mainspring.engines.nats.settings import without_password
from mainspring.engines.sqlite.export import SqliteExport
from mainspring.engines.sqlite.provider import is_sqlite, timeout_of, to_path
from mainspring.jobs.migration_records import MigrationDifference
from mainspring.migration import MigrationPlan, MigrationUndo, Migrator, plan_migration, require_move
from mainspring.plurals import format_count

if TYPE_CHECKING:
    from mainspring.engines.nats.engine import NatsEngine

SHOWN = 20  # how many differences the table shows; --json has all


@click.command("migrate", cls=Command)
@click.argument("source", cls=Argument, metavar="FROM", help="The sqlite:/// URL of the file.")
@click.argument(
    "target",
    cls=Argument,
    required=False,
    metavar="TO",
    help="The nats:// URL of the target; without it, the store of --app or MAINSPRING_URL.",
)
@click.option("--dry-run", is_flag=True, help="Only count what would be moved.")
@click.option("--undo", is_flag=True, help="Undo a migration, if no worker has run jobs on the target.")
@click.option(
    "--force",
    is_flag=True,
    help="Finish the migration although jobs on the target differ; with --undo, do not contact the target.",
)
@json_option
@app_option
def migrate(
    *, source: str, target: str | None, dry_run: bool, undo: bool, force: bool, as_json: bool, app: str | None
) -> None:
    """Move jobs and schedules from a SQLite file to NATS.

    Pending jobs, dead letters, schedules, pauses and limits are moved. Stop the workers first. If the command is
    stopped or killed, run it again to continue.

    Example: mainspring migrate sqlite:///shop.db "nats://127.0.0.1:4222?prefix=shop"
    """
    application = _application_at(source, target, app)
    with closing(SqliteExport(to_path(source), busy_timeout=timeout_of(source))) as export:
        export.open()
        if dry_run:
            _show_plan(plan_migration(export), application.url, as_json=as_json)
        elif undo and force:
            state = require_move(export)
            export.unmark()
            print_message(
                f"mainspring: {state.target} was not contacted; if it still exists, let no worker run on it"
            )
            _show_undone(source, as_json=as_json)
        elif undo:
            _undo(export, application, source, as_json=as_json)
        else:
            with acting_user():
                _move(export, application, source, force=force, as_json=as_json)


def _application_at(source: str, target: str | None, app: str | None) -> Mainspring:
    """Return the application whose NATS store gets the jobs: that of `target`, else of `app`.

    The NATS settings of `app` have the credentials. Raises a usage error if `source` is no `sqlite:///` URL or the
    store is not on NATS, and `EngineUnavailable` if the SQLite file does not exist.
    """
    if not is_sqlite(source):
        raise click.BadParameter(
            f"jobs move from a sqlite:/// file, not from {without_password(source)!r}; give the URL of the file"
        )
    require_store(Mainspring(source))
    if target is None:
        application = load_application(app, None)
    else:
        application = Mainspring(target, nats=None if app is None else load_application(app, None).nats)
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


def _move(export: SqliteExport, application: Mainspring, source: str, *, force: bool, as_json: bool) -> None:
    target = without_password(application.url)
    with ExitStack() as stack:
        migrator = Migrator(export, stack.enter_context(_opened(application)), target)
        signals = stack.enter_context(DeferredSignals())
        migrator.begin()
        planned = plan_migration(export)
        seconds = 0.0
        if not migrator.is_complete:
            command = shlex.join(("mainspring", "migrate", source, target))
            seconds = _run(migrator.copying(), "moving", planned.jobs - migrator.done_before, signals, command)
            seconds += _run(migrator.verifying(), "comparing", planned.jobs, signals, command)
        if migrator.deviations and not force:
            _show_deviations(migrator.deviations, planned, target, as_json=as_json)
            raise click.exceptions.Exit(ExitCode.FAILURE)
        migrator.finish()
    _show_moved(migrator, planned, source, target, seconds, as_json=as_json)


def _run(steps: Iterator[int], what: str, total: int, signals: DeferredSignals, command: str) -> float:
    """Run all steps of a migration, show a progress bar, and return the seconds taken.

    Ctrl+C ends the command after the current step, with a message how to continue. Each step is the number of jobs
    that it has processed.
    """
    with ProgressBar(what, total) as bar:
        for count in steps:
            bar.advance(count)
            if signals.is_stop_requested:
                break
        seconds = bar.seconds
    if signals.is_stop_requested:
        print_message(
            f"mainspring: stopped while {what}, after {bar.done:,} of {format_count(total, 'job')}; "
            f"continue with: {command}"
        )
    signals.exit_if_requested()
    return seconds


def _undo(export: SqliteExport, application: Mainspring, source: str, *, as_json: bool) -> None:
    target = without_password(application.url)
    with ExitStack() as stack:
        undo = MigrationUndo(export, stack.enter_context(_opened(application)), target)
        signals = stack.enter_context(DeferredSignals())
        total = 2 * undo.total()  # each job is first checked, then removed
        with closing(undo.run()) as steps:
            command = shlex.join(("mainspring", "migrate", source, target, "--undo"))
            _run(steps, "undoing", total, signals, command)
    _show_undone(source, as_json=as_json)


# -- output


def _fields(planned: MigrationPlan, target: str, state: str) -> dict[str, Any]:
    names = ("pending", "dead_letters", "schedules", "paused_queues", "limits", "left_behind")
    return {"state": state, "to": target} | {name: getattr(planned, name) for name in names}


def _amounts(planned: MigrationPlan) -> str:
    counted = (
        (planned.pending, "pending job"),
        (planned.dead_letters, "dead letter"),
        (planned.schedules, "schedule"),
        (planned.limits, "limit"),
        (planned.paused_queues, "paused queue"),
    )
    return ", ".join(f"{number:,} {what}{'' if number == 1 else 's'}" for number, what in counted)


def _show_plan(planned: MigrationPlan, url: str, *, as_json: bool) -> None:
    target = without_password(url)
    if as_json:
        more = {"running": planned.running, "workers": planned.workers}
        print_json(_fields(planned, target, "planned") | more)
        return
    print_line(f"would move {_amounts(planned)} to {target}")
    if planned.running:
        print_line(f"RUNNING jobs, which move when their workers are stopped: {planned.running:,}")
    print_line(f"{format_count(planned.left_behind, 'COMPLETED or CANCELED job')} would stay behind")
    if planned.workers:
        print_message(f"mainspring: stop these workers first: {', '.join(planned.workers)}")


def _show_moved(
    migrator: Migrator, planned: MigrationPlan, source: str, target: str, seconds: float, *, as_json: bool
) -> None:
    moved_now = 0 if migrator.is_complete else planned.jobs - migrator.done_before
    if as_json:
        more = {"moved_now": moved_now, "seconds": round(seconds, 3), "deviations": migrator.deviations}
        print_json(_fields(planned, target, "moved") | more)
        return
    if migrator.is_complete:
        print_line(f"{source} was moved to {target} before; nothing is left to do")
    else:
        rate = f"{moved_now / max(seconds, 0.001):,.0f} jobs/s"
        print_line(f"moved {_amounts(planned)} to {target} in {seconds:.1f} s ({rate}), and compared them")
    if migrator.deviations:
        print_line(
            f"{format_count(len(migrator.deviations), 'difference')} accepted: these jobs, schedules and settings "
            f"stay at {target} as they are"
        )
    print_line(f"{source} can no longer be used; COMPLETED and CANCELED jobs stay in it: {planned.left_behind:,}")


def _show_deviations(
    deviations: list[MigrationDifference], planned: MigrationPlan, target: str, *, as_json: bool
) -> None:
    if as_json:
        print_json(_fields(planned, target, "incomplete") | {"deviations": deviations})
    else:
        rows = [(deviation.what, deviation.name, deviation.problem) for deviation in deviations[:SHOWN]]
        print_table(("WHAT", "NAME", "PROBLEM"), rows, uncut=("NAME",))
    differ = format_count(
        len(deviations), "job, schedule, limit or queue differs", "jobs, schedules, limits or queues differ"
    )
    print_message(
        f"mainspring: {differ} at {target} from the file, all others are equal; workers cannot start there yet: "
        "correct the differences and run the same command, or accept them with --force, or undo the move with "
        "--undo"
    )


def _show_undone(source: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"state": "undone", "from": source})
    else:
        print_line(f"undone: {source} can be used again")
