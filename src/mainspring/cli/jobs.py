"""`mainspring jobs`: lists, shows, cancels, retries and reschedules jobs, and makes them due now."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime, timedelta

import click

from mainspring.app import Mainspring
from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import Argument, CommandGroup
from mainspring.cli.exit_codes import ExitCode, error_message
from mainspring.cli.job_filters import JobFilters, filter_options
from mainspring.cli.job_views import JOB_TABLE, job_detail, print_page
from mainspring.cli.json_fields import job_fields
from mainspring.cli.options import (
    after_option,
    app_options,
    at_option,
    delay_option,
    id_argument,
    ids_argument,
    json_option,
    limit_option,
    oldest_first_option,
)
from mainspring.cli.output import escape_control, print_json, print_message, print_rich
from mainspring.errors import EngineUnavailable, MainspringError
from mainspring.jobs.status import JobStatus

jobs = CommandGroup("jobs", help="List, show, cancel, retry and reschedule jobs.")


@jobs.command("list")
@filter_options
@limit_option
@after_option
@oldest_first_option
@json_option
@app_options
def list_jobs(
    *,
    filters: JobFilters,
    limit: int,
    after: str | None,
    oldest_first: bool,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """List jobs, the last submitted first.

    A search by --argument or --text reads at most 10,000 jobs for a page. If that is not enough, the command
    prints how to continue. --since, --type, --queue and --status shorten the search.

    Example: mainspring jobs list --status failed --type cancel_order --argument order_id=42 --since 2h
    """
    with open_app(app, url) as application:
        page = application.jobs(**filters.options(), limit=limit, after=after, newest_first=not oldest_first)
        now = application.manager().engine.now()
        print_page(page, now, JOB_TABLE, as_json=as_json, none="no jobs")
        if not page and page.is_complete:
            filters.report_unknown_names(application)


@jobs.command("show")
@id_argument
@json_option
@app_options
def show_job(*, job_id: str, as_json: bool, app: str | None, url: str | None) -> None:
    """Show everything about a job: arguments, times, attempts, errors.

    Example: mainspring jobs show order-42
    """
    with open_app(app, url) as application:
        job = application.get(job_id)
        detail = None if as_json else job_detail(job, application.manager())
    print_json(job_fields(job)) if detail is None else print_rich(detail)


@jobs.command("cancel")
@click.argument("ids", cls=Argument, nargs=-1, metavar="ID", help="The ids of jobs.")
@filter_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask before the jobs that match the filters are canceled.")
@click.option("--dry-run", is_flag=True, help="Only print which jobs would be canceled.")
@json_option
@app_options
def cancel_jobs(
    *,
    ids: tuple[str, ...],
    filters: JobFilters,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Cancel pending jobs, and ask running jobs to stop.

    Name the jobs by their ids, or choose them by filters. Filters choose only pending and running jobs, and the
    command asks before it cancels them. The exit code is 1 if a job was running, because it may still run; if an
    id is unknown, or is that of a job that has ended; and if no job matches the filters, or you answer no.

    Example: mainspring jobs cancel order-42 order-43

    Example: mainspring jobs cancel --type cancel_order --argument order_id=42 --since 2h --dry-run
    """
    if ids and not filters.is_empty:
        raise click.BadParameter("jobs are chosen by ids or by filters such as --type; give one of them, not both")
    if not ids and filters.is_empty:
        raise click.BadParameter(
            "no jobs are chosen; give ids, or filters such as --queue, --type and --argument; --status pending "
            "chooses all pending jobs"
        )
    with open_app(app, url) as application:
        if ids and not dry_run:
            outcomes = _each(application, ids, _cancel)
        else:
            from mainspring.cli.bulk_cancel import cancel_by_filters  # noqa: PLC0415 - it imports rich, for progress bars

            cancel_by_filters(application, ids, filters, yes=yes, dry_run=dry_run, as_json=as_json)
            return
    _report(outcomes, done="canceled", as_json=as_json)


def _cancel(application: Mainspring, job_id: str) -> str:
    if application.cancel(job_id):
        return "canceled"
    status = application.get(job_id).status
    return "asked to stop" if status is JobStatus.RUNNING else _too_late(job_id, status)


@jobs.command("run-now")
@ids_argument
@json_option
@app_options
def run_jobs_now(*, ids: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Make pending jobs due now, also those that wait for a retry.

    Example: mainspring jobs run-now order-42
    """
    with open_app(app, url) as application:
        outcomes = _each(application, ids, _run_now)
    _report(outcomes, done="due now", as_json=as_json)


def _run_now(application: Mainspring, job_id: str) -> str:
    return "due now" if application.run_now(job_id) else _too_late(job_id, application.get(job_id).status)


@jobs.command("retry")
@ids_argument
@json_option
@app_options
def retry_jobs(*, ids: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Run dead letters again now, as the same jobs.

    Example: mainspring jobs retry order-42
    """
    with open_app(app, url) as application:
        outcomes = _each(application, ids, _retry)
    _report(outcomes, done="pending", as_json=as_json)


def _retry(application: Mainspring, job_id: str) -> str:
    application.retry(job_id)
    return "pending"


@jobs.command("reschedule")
@ids_argument
@delay_option
@at_option
@json_option
@app_options
def reschedule_jobs(
    *,
    ids: tuple[str, ...],
    delay: timedelta | None,
    at: datetime | None,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Change the due time of pending jobs.

    Example: mainspring jobs reschedule order-42 --delay 30m
    """
    if (delay is None) == (at is None):
        raise click.BadParameter(
            "give the new due time, either with --delay 30m (0 is now) or with --at 2027-01-01T02:00:00Z"
        )
    with open_app(app, url) as application:
        outcomes = _each(application, ids, lambda app, job_id: _reschedule(app, job_id, delay, at))
    _report(outcomes, done="rescheduled", as_json=as_json)


def _reschedule(application: Mainspring, job_id: str, delay: timedelta | None, at: datetime | None) -> str:
    is_done = application.reschedule(job_id, delay=delay, at=at)
    return "rescheduled" if is_done else _too_late(job_id, application.get(job_id).status)


def _too_late(job_id: str, status: JobStatus) -> str:
    return f"too late, because the job is {status}; mainspring explain {shlex.quote(job_id)} says more"


def _each(
    application: Mainspring, ids: tuple[str, ...], change: Callable[[Mainspring, str], str]
) -> list[tuple[str, str]]:
    """Apply `change` to each job, and return the ids with the outcomes as texts.

    The error of one job becomes its outcome, and the others continue. `EngineUnavailable` is raised, because every
    job would fail with it.
    """
    outcomes = []
    for job_id in ids:
        try:
            outcomes.append((job_id, change(application, job_id)))
        except EngineUnavailable:
            raise
        except MainspringError as error:
            outcomes.append((job_id, error_message(error)))
    return outcomes


def _report(outcomes: list[tuple[str, str]], *, done: str, as_json: bool) -> None:
    is_done = all(outcome == done for _, outcome in outcomes)
    if as_json:
        print_json([{"id": job_id, "done": outcome == done, "outcome": outcome} for job_id, outcome in outcomes])
    else:
        for job_id, outcome in outcomes:
            if outcome == done:
                print_rich(f"{escape_control(job_id)} {outcome}")
            else:
                print_message(f"mainspring: {escape_control(job_id)}: {escape_control(outcome)}")
    if not is_done:
        raise click.exceptions.Exit(ExitCode.FAILURE)
