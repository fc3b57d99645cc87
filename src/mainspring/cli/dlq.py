"""`mainspring dlq`: lists dead letters, replays them with or without changes, and purges them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from mainspring.app import Mainspring
from mainspring.cli.argument_parsing import to_pair
from mainspring.cli.documents import job_detail, job_fields
from mainspring.cli.exits import ExitCode
from mainspring.cli.options import After, App, AsJson, Id, Limit, OldestFirst, QueueName, TypeName, Url
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

Ids = Annotated[list[str] | None, typer.Argument(help="Only these dead letters.", metavar="ID")]
MoreIds = Annotated[list[str] | None, typer.Option("--id", help="The same as an option.", metavar="ID")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say which.")]

dlq = typer.Typer(name="dlq", help="Dead letters: jobs that were given up.", no_args_is_help=True)


@dlq.command("list")
def list_letters(
    *,
    queue: QueueName = None,
    type: TypeName = None,
    limit: Limit = 50,
    after: After = None,
    oldest_first: OldestFirst = False,
    replayed: Annotated[bool, typer.Option("--replayed", help="Also those that were replayed.")] = False,
    as_json: AsJson = False,
    app: App = None,
    url: Url = None,
) -> None:
    """List dead letters that were not replayed yet, those that were submitted last first.

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
def show_letter(job_id: Id, *, as_json: AsJson = False, app: App = None, url: Url = None) -> None:
    """Show a dead letter: its arguments, and every attempt with its error.

    Example: mainspring dlq show order-42
    """
    with opened(app, url) as application:
        letter = application.dead_letters.get(job_id)
        now = application.manager().engine.now()
    show_json(job_fields(letter)) if as_json else show(job_detail(letter, now))


@dlq.command("replay")
def replay_letters(
    ids: Ids = None,
    *,
    more_ids: MoreIds = None,
    queue: QueueName = None,
    type: TypeName = None,
    everything: All = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another argument for the new jobs; needs --app.", metavar="NAME=VALUE"),
    ] = None,
    removals: Annotated[
        list[str] | None,
        typer.Option("--unset", help="An argument that the handler has no more; needs --app.", metavar="NAME"),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Let so many a second become due, at most.", min=0.000_001)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="How many at most.", min=1)] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    app: App = None,
    url: Url = None,
) -> None:
    """Submit dead letters again, as new jobs that are linked with them; each is replayed once.

    Example: mainspring dlq replay --type cancel_order --set order_id=43 --rate 10 --dry-run
    """
    chosen = _choose(ids, more_ids, queue, type, everything=everything)
    given = dict(map(to_pair, changes or ()))
    without = tuple(removals or ())
    with opened(app, url) as application:
        letters = _find_all(application, chosen, queue, type, limit, replayed=False)
        _require_some(len(letters), as_json=as_json)
        if dry_run:
            _preview(application, letters, given, without, as_json=as_json)
            return
        steps = application.dead_letters.replaying(
            *chosen, queue=queue, type=type, limit=limit, rate=rate, changes=given or None, without=without
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
def purge_letters(
    ids: Ids = None,
    *,
    more_ids: MoreIds = None,
    queue: QueueName = None,
    type: TypeName = None,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    app: App = None,
    url: Url = None,
) -> None:
    """Forget dead letters for good, those that were replayed included.

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
    ids: list[str] | None, more: list[str] | None, queue: str | None, type_: str | None, *, everything: bool
) -> list[str]:
    """Return the ids of arguments and options; without ids, a filter or --all is required."""
    chosen = list(dict.fromkeys([*(ids or ()), *(more or ())]))
    is_filtered = queue is not None or type_ is not None
    if chosen and (is_filtered or everything):
        raise typer.BadParameter("give ids, or --type and --queue, or --all; not ids and others")
    if not chosen and not is_filtered and not everything:
        raise typer.BadParameter("which dead letters? give ids, --type, --queue, or --all")
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
    raise typer.Exit(ExitCode.REFUSED)


def _require_consent(count: int, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"{counted(count, 'dead letter')} would be gone for good; say --yes, or --dry-run to look"
        )
    if not typer.confirm(f"Forget {counted(count, 'dead letter')} for good?", err=True):
        raise typer.Exit(ExitCode.REFUSED)
