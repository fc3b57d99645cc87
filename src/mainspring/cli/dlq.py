"""`mainspring dlq`: lists dead letters, replays them with or without changes, and purges them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import click

from mainspring.app import Mainspring
from mainspring.cli.argument_parsing import to_pair
from mainspring.cli.commands import Argument, Group
from mainspring.cli.documents import job_detail, job_fields
from mainspring.cli.exits import ExitCode
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
from mainspring.cli.output import compact, counted, say, show, show_json, show_table, write
from mainspring.cli.pages import LETTERS, show_page
from mainspring.cli.progress import Bar
from mainspring.cli.stopping import Stopping
from mainspring.cli.target import opened
from mainspring.jobs.dead_letters import with_changes
from mainspring.jobs.info import JobInfo
from mainspring.jobs.status import JobStatus

PAGE = 500
CHUNK = 100  # dead letters purged in one call
SHOWN = 20  # for more replays than this, only the number is printed

dlq = Group(
    "dlq", help="List, show, replay and purge dead letters.\n\nA dead letter is a job that has failed for good."
)

letters_argument = click.argument("ids", cls=Argument, nargs=-1, metavar="ID", help="Only these dead letters.")
id_option = click.option(
    "--id", "more_ids", multiple=True, help="The same as an option; may be repeated.", metavar="ID"
)
all_option = click.option("--all", "everything", is_flag=True, help="All dead letters.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only print which dead letters would be affected.")


@dlq.command("list")
@queue_option
@type_option
@limit_option
@after_option
@oldest_first_option
@click.option("--replayed", is_flag=True, help="Include dead letters that were replayed.")
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
    """List dead letters that were not replayed, the newest first.

    Example: mainspring dlq list --queue orders
    """
    with opened(app, url) as application:
        page = application.dead_letters.list(
            queue=queue,
            type=type,
            limit=limit,
            after=after,
            newest_first=not oldest_first,
            replayed=None if replayed else False,
        )
        now = application.manager().engine.now()
    show_page(page, now, LETTERS, as_json=as_json, none="no dead letters")


@dlq.command("show")
@id_argument
@json_option
@app_options
def show_letter(*, job_id: str, as_json: bool, app: str | None, url: str | None) -> None:
    """Show a dead letter: its arguments, and every attempt with its error.

    Example: mainspring dlq show order-42
    """
    with opened(app, url) as application:
        letter = application.dead_letters.get(job_id)
        now = application.manager().engine.now()
    show_json(job_fields(letter)) if as_json else show(job_detail(letter, now))


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
    help="Set an argument of the new jobs; needs --app; may be repeated.",
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
    help="Let at most this many jobs per second become due.",
    metavar="NUMBER",
)
@click.option("--limit", type=NumberRange(1), help="Replay at most this many.", metavar="NUMBER")
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
    given = dict(map(to_pair, changes))
    with opened(app, url) as application:
        letters = _find_all(application, chosen, queue, type, limit, replayed=False)
        _require_some(len(letters), as_json=as_json)
        if dry_run:
            _preview(application, letters, given, removals, as_json=as_json)
            return
        steps = application.dead_letters.replaying(
            *chosen, queue=queue, type=type, limit=limit, rate=rate, changes=given or None, without=removals
        )
        replayed: list[tuple[str, str]] = []
        with Bar("replaying", len(letters)) as bar, Stopping() as stopping:
            try:
                for pairs in steps:
                    replayed += pairs
                    bar.advance(len(pairs))
                    if stopping.is_asked:
                        break
            finally:
                if (replayed or stopping.is_asked) and len(replayed) < len(letters):
                    say(f"mainspring: replayed {len(replayed):,} of {len(letters):,}; the same command goes on")
    _report_replayed(replayed, as_json=as_json)
    stopping.end_if_asked()


def _preview(
    application: Mainspring,
    letters: list[JobInfo],
    changes: dict[str, Any],
    without: Collection[str],
    *,
    as_json: bool,
) -> None:
    rows = []
    for letter in letters:
        arguments = letter.arguments
        if changes or without:  # refuse here what the replay would refuse
            arguments = with_changes(arguments, changes, without)
            application.registry.get(letter.type).arguments.encode_bound(arguments)
        rows.append((letter, arguments))
    if as_json:
        found = [{"letter": letter.id, "type": letter.type, "arguments": data} for letter, data in rows]
        show_json({"dry_run": True, "count": len(found), "letters": found})
        return
    show_table(
        ("ID", "HANDLER", "ARGUMENTS"),
        [(letter.id, letter.type, compact(data)) for letter, data in rows],
        whole=("ID",),
    )
    say(f"{len(rows):,} would be replayed")


def _report_replayed(replayed: list[tuple[str, str]], *, as_json: bool) -> None:
    if as_json:
        pairs = [{"letter": letter, "job": job} for letter, job in replayed]
        show_json({"dry_run": False, "count": len(pairs), "replayed": pairs})
        return
    if len(replayed) <= SHOWN:
        show_table(("DEAD LETTER", "NEW JOB"), replayed, whole=("DEAD LETTER", "NEW JOB"))
    else:
        write(f"replayed {counted(len(replayed), 'dead letter')}")


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
    """Delete dead letters for good, including replayed ones.

    Example: mainspring dlq purge --type cancel_order --yes
    """
    chosen = _choose(ids, more_ids, queue, type, everything=everything)
    with opened(app, url) as application:
        found = [letter.id for letter in _find_all(application, chosen, queue, type, None, replayed=None)]
        _require_some(len(found), as_json=as_json)
        if not dry_run:
            _require_consent(len(found), yes=yes)
            with Bar("purging", len(found)) as bar, Stopping() as stopping:
                remaining = iter(found)
                while chunk := list(islice(remaining, CHUNK)):
                    bar.advance(application.dead_letters.purge(*chunk))
                    if stopping.is_asked:
                        break
            if bar.done < len(found):
                say(f"mainspring: purged {bar.done:,} of {len(found):,}; the same command goes on")
            stopping.end_if_asked()
    if as_json:
        show_json({"dry_run": dry_run, "count": len(found), "purged": [] if dry_run else found})
    else:
        write(f"{'would purge' if dry_run else 'purged'} {counted(len(found), 'dead letter')}")


def _choose(
    ids: tuple[str, ...], more: tuple[str, ...], queue: str | None, type_: str | None, *, everything: bool
) -> list[str]:
    """Return the ids of arguments and options; without ids, a filter or --all is required."""
    chosen = list(dict.fromkeys(ids + more))
    is_filtered = queue is not None or type_ is not None
    if chosen and (is_filtered or everything):
        raise click.BadParameter("give ids, or --type and --queue, or --all; not ids and others")
    if not chosen and not is_filtered and not everything:
        raise click.BadParameter("which dead letters? give ids, --type, --queue, or --all")
    return chosen


def _find_all(
    application: Mainspring,
    ids: list[str],
    queue: str | None,
    type_: str | None,
    limit: int | None,
    *,
    replayed: bool | None,
) -> list[JobInfo]:
    """Read the chosen dead letters, with a bar; it ends early if some of them were replayed before."""
    most = len(ids) or application.counts(queue=queue, type=type_)[JobStatus.FAILED]
    letters = []
    with Bar("looking", most if limit is None else min(most, limit)) as bar:
        for letter in _find(application, ids, queue, type_, limit, replayed=replayed):
            letters.append(letter)
            bar.advance()
    return letters


def _find(
    application: Mainspring,
    ids: list[str],
    queue: str | None,
    type_: str | None,
    limit: int | None,
    *,
    replayed: bool | None,
) -> Iterator[JobInfo]:
    if ids:
        yield from map(application.dead_letters.get, ids[:limit])
        return
    after: str | None = None
    left = sys.maxsize if limit is None else limit
    while left > 0:
        page = application.dead_letters.list(
            queue=queue, type=type_, limit=min(PAGE, left), after=after, replayed=replayed
        )
        yield from page
        left -= len(page)
        after = page.next
        if after is None:
            return


def _require_some(count: int, *, as_json: bool) -> None:
    if count:
        return
    if as_json:
        show_json({"count": 0})
    say("mainspring: no dead letter matches; mainspring dlq list shows what there is")
    raise click.exceptions.Exit(ExitCode.REFUSED)


def _require_consent(count: int, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.BadParameter(
            f"{counted(count, 'dead letter')} would be gone for good; say --yes, or --dry-run to look"
        )
    if not click.confirm(f"Forget {counted(count, 'dead letter')} for good?", err=True):
        raise click.exceptions.Exit(ExitCode.REFUSED)
