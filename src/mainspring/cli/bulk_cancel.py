"""Cancels the jobs that filters choose: `mainspring jobs cancel --type cancel_order --since 2h`.

The command first reads the ids of all matching jobs, counts them and asks. Then it cancels them, a hundred in a
transaction. A job that ends meanwhile is left as it is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import click
from msgspec.structs import replace

from mainspring.app import Mainspring
from mainspring.cli.deferred_signals import DeferredSignals
from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.job_filters import JobFilters
from mainspring.cli.job_views import JOB_TABLE, print_page
from mainspring.cli.output import escape_control, print_json, print_line, print_message
from mainspring.cli.progress import ProgressBar
from mainspring.jobs.audit import AuditNote
from mainspring.jobs.commands import Changed
from mainspring.jobs.info import JobInfo, JobPage
from mainspring.jobs.status import JobStatus
from mainspring.plurals import format_count

PAGE = 500
CHUNK = 100  # how many jobs one transaction cancels
SHOWN = 20  # how many jobs a dry run shows; it counts the others
CANCELABLE = ("pending", "running")


class ChosenJobs(NamedTuple):
    """The jobs that match the filters of a command that cancels jobs."""

    statuses: dict[str, JobStatus]
    """The status of each job, by id, when it was read."""
    first: list[JobInfo]

    @property
    def description(self) -> str:
        """How many jobs there are, with their statuses: `12 jobs (10 pending, 2 running)`."""
        counts = Counter(status.lower() for status in self.statuses.values())
        parts = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
        return f"{format_count(len(self.statuses), 'job')} ({parts})"

    @property
    def effect(self) -> str:
        """What the command does to the jobs, as text: RUNNING jobs can only be asked to stop."""
        has_running = JobStatus.RUNNING in self.statuses.values()
        return "canceled or asked to stop" if has_running else "canceled"


def cancel_by_filters(
    application: Mainspring,
    ids: tuple[str, ...],
    filters: JobFilters,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Ask the user, and cancel the PENDING and RUNNING jobs that match the filters. With `yes`, do not ask.

    With `dry_run`, only print these jobs, or those of `ids` if ids are given. Exits with 1 if no job matches, if
    the user answers no, or if a RUNNING job could only be asked to stop. Raises a usage error if the filters name
    another status, or if no user can be asked because stdin is no terminal.
    """
    if filters.status not in (None, *CANCELABLE):
        raise click.BadParameter(
            f"a job that is {filters.status} has ended and cannot be canceled; give --status pending or running"
        )
    chosen = _choose(_get_unended(application, ids) if ids else _find(application, filters))
    if not chosen.statuses:
        if as_json:
            print_json({"dry_run": dry_run, "count": 0})
        print_message("mainspring: no pending or running job matches; see mainspring jobs list")
        filters.report_unknown_names(application)
        raise click.exceptions.Exit(ExitCode.FAILURE)
    if dry_run:
        _preview(application, chosen, as_json=as_json)
        return
    _require_consent(chosen, yes=yes)
    _cancel(application, chosen, filters, as_json=as_json)


def _get_unended(application: Mainspring, ids: tuple[str, ...]) -> Iterator[JobInfo]:
    for job_id in ids:
        job = application.get(job_id)
        if job.status.lower() in CANCELABLE:
            yield job
        else:
            print_message(f"mainspring: {escape_control(job_id)} cannot be canceled: it is {job.status}")


def _find(application: Mainspring, filters: JobFilters) -> Iterator[JobInfo]:
    for status in CANCELABLE if filters.status is None else (filters.status,):
        options = replace(filters, status=status).options()
        after: str | None = None
        while True:
            page = application.jobs(**options, limit=PAGE, after=after)
            yield from page
            after = page.next
            if after is None:
                break


def _choose(found: Iterator[JobInfo]) -> ChosenJobs:
    statuses: dict[str, JobStatus] = {}
    first: list[JobInfo] = []
    with ProgressBar("looking", 0) as bar:
        for job in found:
            if len(statuses) < SHOWN and job.id not in statuses:
                first.append(job)
            statuses[job.id] = job.status  # a job that has started meanwhile is found twice
            bar.advance()
    return ChosenJobs(statuses, first)


def _preview(application: Mainspring, chosen: ChosenJobs, *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, "count": len(chosen.statuses), "jobs": list(chosen.statuses)})
        return
    now = application.manager().engine.now()
    print_page(JobPage(chosen.first, None), now, JOB_TABLE, as_json=False, none="no jobs")
    more = len(chosen.statuses) - len(chosen.first)
    print_message(f"{f'and {more:,} more; ' if more else ''}{chosen.description} would be {chosen.effect}")


def _require_consent(chosen: ChosenJobs, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.BadParameter(
            f"{chosen.description} would be {chosen.effect}; give --yes, or --dry-run to list them"
        )
    if not click.confirm(f"Cancel {chosen.description}?", err=True):
        raise click.exceptions.Exit(ExitCode.FAILURE)


def _cancel(application: Mainspring, chosen: ChosenJobs, filters: JobFilters, *, as_json: bool) -> None:
    ids = list(chosen.statuses)
    manager = application.manager()
    draft = manager.begin_audit(len(ids), AuditNote(details=filters.audit_details(manager.engine.now())))
    outcomes: dict[str, list[str]] = {"canceled": [], "asked_to_stop": [], "too_late": []}
    with ProgressBar("canceling", len(ids)) as bar, DeferredSignals() as signals:
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            for job_id, changed in zip(part, manager.cancel_many(part, audit=draft), strict=True):
                outcomes[_outcome(changed)].append(job_id)
            bar.advance(len(part))
            if signals.is_stop_requested:
                break
    if bar.done < len(ids):
        print_message(
            f"mainspring: stopped after {bar.done:,} of {len(ids):,} jobs; run the same command to continue"
        )
    _report(outcomes, as_json=as_json)
    signals.exit_if_requested()
    if outcomes["asked_to_stop"]:
        raise click.exceptions.Exit(ExitCode.FAILURE)


def _outcome(changed: Changed) -> str:
    if changed.is_done:
        return "canceled"
    return "asked_to_stop" if changed.status is JobStatus.RUNNING else "too_late"


def _report(outcomes: dict[str, list[str]], *, as_json: bool) -> None:
    canceled, asked, late = outcomes.values()
    if as_json:
        print_json({"dry_run": False, "count": len(canceled), **outcomes})
        return
    print_line(f"canceled {format_count(len(canceled), 'job')}")
    if asked:
        print_message(f"mainspring: asked {format_count(len(asked), 'running job')} to stop")
    if late:
        print_message(f"mainspring: {format_count(len(late), 'job')} had ended already")
