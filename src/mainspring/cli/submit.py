"""`mainspring submit`: submits one job from the command line, or a file of jobs.

Every line of a file is checked before the first job is stored. An interrupted submit says how to continue.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import click

from mainspring.cli.app_selection import open_app
from mainspring.cli.argument_parsing import decode_json, find_job_function, parse_arguments, to_call
from mainspring.cli.commands import Argument, Command
from mainspring.cli.deferred_signals import DeferredSignals
from mainspring.cli.options import PRIORITIES, NumberRange, app_options, at_option, delay_option, json_option
from mainspring.cli.output import print_json, print_line, print_message
from mainspring.cli.progress import ProgressBar
from mainspring.errors import InvalidArguments
from mainspring.jobs.handlers import Handler
from mainspring.jobs.job_function import JobFunction
from mainspring.plurals import format_count
from mainspring.runners.task import Priority

CHUNK = 1_000  # how many jobs one commit stores, and how many one step of the bar has

Calls: TypeAlias = list[dict[str, Any]]


def read_calls(handler: Handler, file: Path, skip: int) -> Calls:
    """Return the arguments of each job in a file of JSON lines, checked against the handler.

    The first `skip` jobs are left out, unchecked. Empty lines do not count. Raises a usage error for a file that
    cannot be read, for a line that is no JSON object or list, and if no jobs are left; and `InvalidArguments` for
    arguments that do not match the handler.
    """
    name = "stdin" if str(file) == "-" else str(file)
    calls: Calls = []
    for place, (number, line) in enumerate(_lines(file)):
        if place < skip:
            continue
        where = f"{name}, line {number}"
        positional, named = to_call(decode_json(line, where), where)
        try:
            given = handler.arguments.bind(positional, named)
            handler.arguments.encode_bound(given)
        except InvalidArguments as error:
            raise InvalidArguments(
                handler=f"{where}: {error.handler}", parameter=error.parameter, problem=error.problem
            ) from error
        calls.append(given)
    if not calls:
        raise click.BadParameter(
            f"{name} has no jobs{f' after the first {skip:,}' if skip else ''}; write one JSON object in each line"
        )
    return calls


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        stream = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise click.BadParameter(f"the file {file} cannot be read: {error.strerror}") from error
    with stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, line


def submit_all(job: JobFunction[..., Any], calls: Calls, skipped: int, *, as_json: bool) -> None:
    """Store all jobs in chunks of 1,000, with a progress bar, and print how many were stored.

    After Ctrl+C or an error, print how to continue with `--skip`; `skipped` is how many jobs were skipped before.
    """
    ids: list[str] = []
    remaining = iter(calls)
    with ProgressBar("submitting", len(calls)) as bar, DeferredSignals() as signals:
        try:
            while not signals.is_stop_requested and (chunk := list(islice(remaining, CHUNK))):
                ids += job.submit_many(chunk)
                bar.advance(len(chunk))
        finally:
            seconds = bar.seconds
            if len(ids) < len(calls):
                # a commit that failed may have stored a part of its jobs
                certainty = "" if signals.is_stop_requested else "at least "
                how_many = f"stored {certainty}{len(ids):,} of {format_count(len(calls), 'job')}"
                print_message(f"mainspring: {how_many}; continue with --skip {skipped + len(ids)}")
    signals.exit_if_requested()
    if as_json:
        print_json({"count": len(ids), "seconds": round(seconds, 3), "ids": ids})
    else:
        rate = len(ids) / max(seconds, 0.001)
        print_line(f"submitted {format_count(len(ids), 'job')} in {seconds:.1f} s ({rate:,.0f}/s)")


@click.command("submit", cls=Command)
@click.argument("handler", cls=Argument, metavar="HANDLER", help="The job type; its short name is enough.")
@click.argument("pairs", cls=Argument, nargs=-1, metavar="NAME=VALUE", help="The arguments of the handler.")
@click.option("--args", "text", help="The arguments as a JSON object, or as a list.", metavar="JSON")
@delay_option
@at_option
@click.option("--queue", help="Use this queue instead of the handler's.", metavar="NAME")
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES, case_sensitive=False),
    help="Use this priority instead of the handler's: best-effort, user-visible or user-blocking.",
    metavar="PRIORITY",
)
@click.option("--id", "job_id", help="Give the job this id, which no other job may have.", metavar="ID")
@click.option(
    "--unique",
    help="If a job with this key is pending or running, print its id, and store no new job.",
    metavar="KEY",
)
@click.option("--sequence", help="Give the job this key. Jobs with the same key run one at a time.", metavar="KEY")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Submit a job for each line of this file: a JSON object or list of arguments; - is stdin.",
    metavar="JOBS.JSONL",
)
@click.option(
    "--skip",
    type=NumberRange(0),
    default=0,
    help="Skip this many jobs of the file, because they were submitted before.",
    metavar="NUMBER",
)
@json_option
@app_options
def submit(
    *,
    handler: str,
    pairs: tuple[str, ...],
    text: str | None,
    delay: timedelta | None,
    at: datetime | None,
    queue: str | None,
    priority: str | None,
    job_id: str | None,
    unique: str | None,
    sequence: str | None,
    file: Path | None,
    skip: int,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Submit a job, or a file of jobs.

    A job is durable when its id is printed. All lines of a file are checked before the first job is stored.

    Example: mainspring submit cancel_order order_id=42 --delay 30m

    Example: mainspring submit cancel_order --file orders.jsonl --delay 30m
    """
    if delay is not None and at is not None:
        raise click.BadParameter("--delay and --at both set the due time; give one of them")
    with open_app(app, url, creates_store=True) as application:
        job = find_job_function(application, handler, "submit").options(
            delay=delay,
            at=at,
            id=job_id,
            queue=queue,
            priority=None if priority is None else Priority[priority.upper().replace("-", "_")],
            unique=unique,
            sequence=sequence,
        )
        if file is not None:
            _refuse_beside_file(pairs, text, job_id)
            submit_all(job, read_calls(job.handler, file, skip), skip, as_json=as_json)
            return
        positional, named = parse_arguments(job.handler, pairs, text)
        submitted = job.submit(*positional, **named).id
    print_json({"id": submitted, "type": job.name}) if as_json else print_line(submitted)


def _refuse_beside_file(pairs: tuple[str, ...], text: str | None, job_id: str | None) -> None:
    for given, option in ((pairs, "name=value"), (text, "--args"), (job_id, "--id")):
        if given:
            raise click.BadParameter(f"{option} cannot be used with --file: the lines of the file are the jobs")
