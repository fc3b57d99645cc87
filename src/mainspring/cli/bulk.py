"""Submitting a file: every line is checked before the first is stored, and whoever is stopped can go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import typer

from mainspring.cli.calls import call_of, decoded
from mainspring.cli.output import say, show_json, write
from mainspring.cli.progress import Bar
from mainspring.cli.stopping import Stopping
from mainspring.errors import InvalidArguments
from mainspring.jobs.handlers import Handler
from mainspring.jobs.job import Job

CHUNK = 1_000  # jobs of one commit, and of one step of the bar

Calls: TypeAlias = list[dict[str, Any]]


def read_calls(handler: Handler, file: Path, skip: int) -> Calls:
    """Read a line of JSON for each job and check it against the handler; empty lines do not count."""
    name = "stdin" if str(file) == "-" else str(file)
    calls: Calls = []
    for place, (number, line) in enumerate(_lines(file)):
        if place < skip:
            continue
        where = f"{name}, line {number}"
        positional, named = call_of(decoded(line, where), where)
        try:
            given = handler.arguments.bind(positional, named)
            handler.arguments.encode_stored(given)
        except InvalidArguments as error:
            raise InvalidArguments(
                handler=f"{where}: {error.handler}", parameter=error.parameter, problem=error.problem
            ) from error
        calls.append(given)
    if not calls:
        raise typer.BadParameter(f"{name} has no jobs{f' after the first {skip:,}' if skip else ''}")
    return calls


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        stream = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from error
    with stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, line


def submit_all(job: Job[..., Any], calls: Calls, skipped: int, *, as_json: bool) -> None:
    """Store all jobs, a chunk after the other, with a bar; Ctrl+C stops between two chunks."""
    ids: list[str] = []
    remaining = iter(calls)
    with Bar("submitting", len(calls)) as bar, Stopping() as stopping:
        try:
            while not stopping.is_asked and (chunk := list(islice(remaining, CHUNK))):
                ids += job.submit_many(chunk)
                bar.advance(len(chunk))
        finally:
            seconds = bar.seconds
            if len(ids) < len(calls):
                certainty = "" if stopping.is_asked else "at least "  # a store that failed may have kept a part
                how_many = f"{certainty}{len(ids):,} of {len(calls):,} jobs were stored"
                say(f"mainspring: {how_many}; go on with --skip {skipped + len(ids)}")
    stopping.end_if_asked()
    if as_json:
        show_json({"count": len(ids), "seconds": round(seconds, 3), "ids": ids})
    else:
        write(f"submitted {len(ids):,} jobs in {seconds:.1f} s ({len(ids) / max(seconds, 0.001):,.0f}/s)")
