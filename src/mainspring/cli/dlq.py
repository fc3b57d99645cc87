"""`mainspring dlq`: lists dead letters, replays them with or without changes, and purges them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from mainspring.app import Mainspring
from mainspring.cli.app_selection import open_app
from mainspring.cli.argument_parsing import convert_values, split_pairs
from mainspring.cli.commands import Argument, CommandGroup
from mainspring.cli.deferred_signals import DeferredSignals
from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.job_filters import report_unknown_names
from mainspring.cli.job_views import DEAD_LETTER_TABLE, job_detail, print_page
from mainspring.cli.json_fields import job_fields
from mainspring.cli.options import (
    NumberRange,
    after_option,
    app_options,
    id_argument,
    json_option,
    limit_option,
    oldest_first_option,
    queue_option,
    type_option,
)
from mainspring.cli.output import (
    compact_json,
    print_json,
    print_line,
    print_message,
    print_rich,
    print_table,
)
from mainspring.cli.progress import ProgressBar
from mainspring.jobs.dead_letters import (
    PlannedReplay,
    audit_details,
    plan_replay,
    purge_planned,
    replay_planned,
    with_changes,
)
from mainspring.jobs.handlers import Handler
from mainspring.jobs.info import JobInfo, JobPage
from mainspring.jobs.status import JobStatus
from mainspring.plurals import format_count

PAGE = 500
SHOWN = 20  # if more were replayed, only their number is printed

dlq = CommandGroup(
    "dlq",
    help="List, show, replay and purge dead letters.\n\nA dead letter failed for good and was not replayed.",
)

letters_argument = click.argument(
    "ids", cls=Argument, nargs=-1, metavar="ID", help="The ids of dead letters; give these, or filters, or --all."
)
id_option = click.option(
    "--id", "more_ids", multiple=True, help="The same as the argument ID; may be repeated.", metavar="ID"
)
all_option = click.option("--all", "everything", is_flag=True, help="Choose all dead letters, without a filter.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only print which dead letters would be affected.")


@dlq.command("list")
@queue_option
@type_option
@limit_option
@after_option
@oldest_first_option
@click.option("--replayed", is_flag=True, help="Include failed jobs that were replayed.")
@json_option
@app_options
def list_letters(
    *,
    queue: str | None,
    type: str | None,
    limit: int,
    after: str | None,
    oldest_first: bool,
    replayed: bool,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """List dead letters, which are failed jobs that were not replayed, the last failure first.

    Example: mainspring dlq list --queue orders
    """
    with open_app(app, url) as application:
        page = application.dead_letters.list(
            queue=queue,
            type=type,
            limit=limit,
            after=after,
            newest_first=not oldest_first,
            replayed=None if replayed else False,
        )
        now = application.manager().engine.now()
        print_page(page, now, DEAD_LETTER_TABLE, as_json=as_json, none="no dead letters")
        if not page:
            report_unknown_names(application, queue=queue, type=type)


@dlq.command("show")
@id_argument
@json_option
@app_options
def show_letter(*, job_id: str, as_json: bool, app: str | None, url: str | None) -> None:
    """Show a dead letter: its arguments, and every attempt with its error.

    Example: mainspring dlq show order-42
    """
    with open_app(app, url) as application:
        letter = application.dead_letters.get(job_id)
        detail = None if as_json else job_detail(letter, application.manager())
    print_json(job_fields(letter)) if detail is None else print_rich(detail)


@dlq.command("replay")
@letters_argument
@id_option
@queue_option
@type_option
@all_option
@click.option(
    "--set",
    "changes",
    multiple=True,
    help="Set an argument of the new jobs, as in submit; needs --app; may be repeated.",
    metavar="NAME=VALUE",
)
@click.option(
    "--unset",
    "removals",
    multiple=True,
    help="Remove an argument that the handler no longer has; needs --app; may be repeated.",
    metavar="NAME",
)
@click.option(
    "--rate",
    type=NumberRange(0.000_001, kind=float),
    help="Spread the due times: at most this many jobs per second.",
    metavar="NUMBER",
)
@click.option("--limit", type=NumberRange(1), help="Replay at most this many dead letters.", metavar="NUMBER")
@dry_run_option
@json_option
@app_options
def replay_letters(
    *,
    ids: tuple[str, ...],
    more_ids: tuple[str, ...],
    queue: str | None,
    type: str | None,
    everything: bool,
    changes: tuple[str, ...],
    removals: tuple[str, ...],
    rate: float | None,
    limit: int | None,
    dry_run: bool,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Submit dead letters again, as new jobs.

    Each new job is linked with its dead letter. A dead letter can be replayed once.

    Example: mainspring dlq replay --type cancel_order --set order_id=43 --rate 10 --dry-run
    """
    chosen = _choose(ids, more_ids, queue, type, everything=everything)
    texts = split_pairs(changes)

    def change(handler: Handler, arguments: Mapping[str, Any]) -> dict[str, Any]:
        others = with_changes(arguments, {}, {*removals, *texts})
        return others | convert_values(texts, lambda values: handler.arguments.encode_bound(others | values))

    with open_app(app, url) as application:
        manager = application.manager()
        plans = plan_replay(
            manager,
            chosen,
            queue=queue,
            type=type,
            all=everything,
            limit=limit,
            change=change if texts or removals else None,
        )
        _require_some(application, len(plans), queue, type, as_json=as_json)
        if dry_run:
            _preview(plans, as_json=as_json)
            return
        replayed: list[tuple[str, str]] = []
        details = audit_details(
            queue=queue, type=type, all=everything, limit=limit, changed=texts, removed=removals
        )
        with ProgressBar("replaying", len(plans)) as bar, DeferredSignals() as signals:
            try:
                for pairs in replay_planned(manager, plans, rate=rate, is_by_id=bool(chosen), details=details):
                    replayed += pairs
                    bar.advance(len(pairs))
                    if signals.is_stop_requested:
                        break
            finally:
                if (replayed or signals.is_stop_requested) and len(replayed) < len(plans):
                    print_message(
                        f"mainspring: replayed {len(replayed):,} of {len(plans):,} dead letters; "
                        "to continue, run the same command without the ids that are done"
                    )
    _report_replayed(replayed, as_json=as_json)
    signals.exit_if_requested()


def _preview(plans: Sequence[PlannedReplay], *, as_json: bool) -> None:
    rows = [(plan.letter, plan.arguments) for plan in plans]
    if as_json:
        found = [{"letter": letter.id, "type": letter.type, "arguments": data} for letter, data in rows]
        print_json({"dry_run": True, "count": len(found), "letters": found})
        return
    print_table(
        ("ID", "HANDLER", "ARGUMENTS"),
        [(letter.id, letter.type, compact_json(data)) for letter, data in rows],
        uncut=("ID",),
    )
    print_message(f"{format_count(len(rows), 'dead letter')} would be replayed")


def _report_replayed(replayed: list[tuple[str, str]], *, as_json: bool) -> None:
    if as_json:
        pairs = [{"letter": letter, "job": job} for letter, job in replayed]
        print_json({"dry_run": False, "count": len(pairs), "replayed": pairs})
        return
    if len(replayed) <= SHOWN:
        print_table(("DEAD LETTER", "NEW JOB"), replayed, uncut=("DEAD LETTER", "NEW JOB"))
    else:
        print_line(f"replayed {format_count(len(replayed), 'dead letter')}")


@dlq.command("purge")
@letters_argument
@id_option
@queue_option
@type_option
@all_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@dry_run_option
@json_option
@app_options
def purge_letters(
    *,
    ids: tuple[str, ...],
    more_ids: tuple[str, ...],
    queue: str | None,
    type: str | None,
    everything: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Delete dead letters for good, and failed jobs that were replayed.

    Example: mainspring dlq purge --type cancel_order --yes
    """
    chosen = _choose(ids, more_ids, queue, type, everything=everything)
    with open_app(app, url) as application:
        letters = _find_all(application, chosen, queue, type)
        found = [letter.id for letter in letters]
        _require_some(application, len(found), queue, type, as_json=as_json)
        if dry_run:
            _preview_purge(letters, application.manager().engine.now(), as_json=as_json)
            return
        _require_consent(len(found), yes=yes)
        with ProgressBar("purging", len(found)) as bar, DeferredSignals() as signals:
            details = audit_details(queue=queue, type=type, all=everything)
            for count in purge_planned(application.manager(), found, details=details):
                bar.advance(count)
                if signals.is_stop_requested:
                    break
        if bar.done < len(found):
            print_message(
                f"mainspring: purged {bar.done:,} of {len(found):,} dead letters; "
                "to continue, run the same command without the ids that are done"
            )
        signals.exit_if_requested()
    if as_json:
        print_json({"dry_run": False, "count": len(found), "purged": found})
    else:
        print_line(f"purged {format_count(len(found), 'dead letter')}")


def _preview_purge(letters: list[JobInfo], now: int, *, as_json: bool) -> None:
    if as_json:
        ids = [letter.id for letter in letters]
        print_json({"dry_run": True, "count": len(ids), "purged": [], "would_purge": ids})
        return
    print_page(JobPage(letters, None), now, DEAD_LETTER_TABLE, as_json=False, none="no dead letters")
    print_message(f"{format_count(len(letters), 'dead letter')} would be purged")


def _choose(
    ids: tuple[str, ...], more: tuple[str, ...], queue: str | None, type_: str | None, *, everything: bool
) -> list[str]:
    """Return the ids of dead letters that arguments and options name; empty if filters or `--all` choose them.

    Raises a usage error if ids are combined with these, or if nothing is given.
    """
    chosen = list(dict.fromkeys(ids + more))
    is_filtered = queue is not None or type_ is not None
    if chosen and (is_filtered or everything):
        raise click.BadParameter(
            "ids cannot be combined with --type, --queue or --all; leave out the ids or these options"
        )
    if not chosen and not is_filtered and not everything:
        raise click.BadParameter("no dead letters are chosen; give ids, --type, --queue, or --all")
    return chosen


def _find_all(application: Mainspring, ids: list[str], queue: str | None, type_: str | None) -> list[JobInfo]:
    """Return the dead letters with these ids, or those of a queue and a type, and failed jobs that were replayed.

    Show a progress bar meanwhile.
    """
    most = len(ids) or application.counts(queue=queue, type=type_)[JobStatus.FAILED]
    letters = []
    with ProgressBar("looking", most) as bar:
        for letter in _find(application, ids, queue, type_):
            letters.append(letter)
            bar.advance()
    return letters


def _find(application: Mainspring, ids: list[str], queue: str | None, type_: str | None) -> Iterator[JobInfo]:
    if ids:
        yield from map(application.dead_letters.get, ids)
        return
    after: str | None = None
    while True:
        page = application.dead_letters.list(queue=queue, type=type_, limit=PAGE, after=after, replayed=None)
        yield from page
        after = page.next
        if after is None:
            return


def _require_some(
    application: Mainspring, count: int, queue: str | None, type_: str | None, *, as_json: bool
) -> None:
    if count:
        return
    if as_json:
        print_json({"count": 0})
    print_message("mainspring: no dead letter matches; see mainspring dlq list")
    report_unknown_names(application, queue=queue, type=type_)
    raise click.exceptions.Exit(ExitCode.FAILURE)


def _require_consent(count: int, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.BadParameter(
            f"{format_count(count, 'dead letter')} would be deleted for good; give --yes, or --dry-run to list "
            "them"
        )
    if not click.confirm(f"Delete {format_count(count, 'dead letter')} for good?", err=True):
        raise click.exceptions.Exit(ExitCode.FAILURE)
