"""`mainspring queues`: counts the jobs of each queue, and pauses and resumes queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import click

from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import Argument, CommandGroup
from mainspring.cli.json_fields import queue_fields, waiting_fields
from mainspring.cli.options import STATUSES, app_options, json_option
from mainspring.cli.output import Cell, Styled, escape_control, print_json, print_line, print_message, print_table
from mainspring.clock import NANOSECONDS, to_nanoseconds
from mainspring.jobs.queues import QueueStatistics, count_queues
from mainspring.jobs.store_statistics import MAX_COUNTED
from mainspring.similar_names import did_you_mean

if TYPE_CHECKING:
    from mainspring.jobs.statistics import QueueTotals

queues = CommandGroup("queues", help="Count the jobs of queues, pause and resume queues.")

NUMBERS = ("PENDING", "DUE", "BLOCKED", "RUNNING", "COMPLETED", "FAILED", "CANCELED")
"""The columns with counts: those of all statuses, and behind PENDING how many of these are due or blocked."""

names_argument = click.argument(
    "names", cls=Argument, nargs=-1, required=True, metavar="NAME", help="The names of queues."
)


@queues.command("list")
@click.argument("names", cls=Argument, nargs=-1, metavar="NAME", help="Only these queues.")
@json_option
@app_options
def list_queues(*, names: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Count the jobs of queues by status.

    The list has all queues with jobs, handlers, schedules or quotas, and paused queues. FAILED counts the dead
    letters that were not replayed, as in `mainspring dlq list`. Of the pending jobs, DUE could start now, and
    BLOCKED are due, but wait for a pause, a limit or their sequence; the others are due later. QUOTA shows how
    many jobs may be pending, and how many may be submitted within a time.

    Example: mainspring queues list
    """
    with open_app(app, url) as application:
        known = [queue.name for queue in application.all_queues()]
        chosen = [application.queue(name).name for name in names] if names else known
        found = count_queues(application.manager(), chosen)
        statistics = application.statistics()
    totals = {queue.name: statistics.queue(queue.name) for queue in found}
    if as_json:
        print_json({"queues": [queue_fields(queue) | waiting_fields(totals[queue.name]) for queue in found]})
    elif found:
        has_quotas = any(_quota(queue) for queue in found)
        print_table(
            ("QUEUE", "PAUSED", *NUMBERS, *(("QUOTA",) if has_quotas else ())),
            [
                [*_row(queue, totals[queue.name]), *((_quota(queue) or "-",) if has_quotas else ())]
                for queue in found
            ],
            uncut=("PAUSED",),
            droppable=("CANCELED", "COMPLETED"),
            right_aligned=NUMBERS,
        )
    else:
        print_message("no queues")
    report_unknown_queues(names, known)


def _row(queue: QueueStatistics, totals: QueueTotals) -> list[Cell]:
    paused = Styled("paused", "yellow") if queue.is_paused else "-"
    pending, *others = (f"{getattr(queue, status):,}" for status in STATUSES)
    waiting = [_at_least(count, is_exact=totals.is_exact) for count in (totals.due, totals.blocked)]
    return [queue.name, paused, pending, *waiting, *others]


def _at_least(count: int, *, is_exact: bool) -> str:
    """Return a count as text. The store stops to count at `MAX_COUNTED` jobs of a job type."""
    return f"{count:,}" if is_exact or count < MAX_COUNTED else f"{count:,}+"


def _quota(queue: QueueStatistics) -> str:
    parts = [] if queue.max_depth is None else [f"{queue.max_depth:,} pending"]
    if queue.submit_rate is not None:
        seconds = to_nanoseconds(queue.submit_rate.per, "per") / NANOSECONDS
        parts.append(f"{queue.submit_rate.n:,} submits in {seconds:g} s")
    return ", ".join(parts)


@queues.command("pause")
@names_argument
@json_option
@app_options
def pause_queues(*, names: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Pause queues: no worker starts their jobs; running jobs continue.

    Example: mainspring queues pause mail
    """
    with open_app(app, url) as application:
        known = {queue.name for queue in application.all_queues()}
        changed = {name: application.queue(name).pause() for name in names}
    _report(changed, "paused", as_json=as_json)
    report_unknown_queues(changed, known)


@queues.command("resume")
@names_argument
@json_option
@app_options
def resume_queues(*, names: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Resume queues: workers start their jobs again.

    Example: mainspring queues resume mail
    """
    with open_app(app, url) as application:
        known = {queue.name for queue in application.all_queues()}
        changed = {name: application.queue(name).resume() for name in names}
    _report(changed, "resumed", as_json=as_json)
    report_unknown_queues(changed, known)


def report_unknown_queues(names: Iterable[str], known: Collection[str]) -> None:
    """Print a message for each queue that has no jobs, handlers or schedules, with queues that are spelt alike."""
    for name in names:
        if name not in known:
            remedy = did_you_mean(name, known) or "mainspring queues list shows the others"
            print_message(f"mainspring: queue {name!r} has no jobs, handlers or schedules yet; {remedy}")


def _report(changed: dict[str, bool], how: str, *, as_json: bool) -> None:
    """Print the new state of each queue. A queue that already had it is no error."""
    if as_json:
        print_json([{"name": name, "changed": is_changed, "outcome": how} for name, is_changed in changed.items()])
        return
    for name, is_changed in changed.items():
        print_line(f"{escape_control(name)} {how}" if is_changed else f"{escape_control(name)} was {how} already")
