"""The run log: a file in which handlers of many processes record their starts and ends.

Each entry is one `write` in append mode, so entries of several processes never mix and a `kill -9` loses none.
A reader may still see the first part of an entry that is just being written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import NamedTuple

from mainspring import current_job

RUN_LOG = "run_log.txt"  # in the working directory


class Entry(NamedTuple):
    """One line of the run log."""

    event: str
    """`start` or `end`."""
    job: str
    argument: str
    token: int
    process: int
    instant_ns: int
    """On the monotonic clock, which all processes of a machine share."""


@contextmanager
def recorded(argument: object, *, aloud: bool = False) -> Iterator[None]:
    """Record the start and the end of a handler; with `aloud`, print them on stdout, too."""
    note("start", argument, aloud=aloud)
    yield
    note("end", argument, aloud=aloud)


def note(event: str, argument: object, *, aloud: bool = False) -> None:
    """Record an event of the job that runs here."""
    job = current_job()
    line = f"{event} {job.id} {argument} {job.fencing_token} {os.getpid()} {now_ns()}\n"
    descriptor = os.open(RUN_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    if aloud:
        say(f"{event} {argument}")


def now_ns() -> int:
    """Return an instant on the clock of the run log."""
    return time.monotonic_ns()  # noqa: TID251 - compared between processes


def say(line: str) -> None:
    """Write a line to stdout in one call, from any thread."""
    os.write(1, f"{line}\n".encode())


def work_for(seconds: float) -> None:
    """Wait, as a handler that waits for I/O."""
    Event().wait(seconds)


def read_run_log(path: Path) -> list[Entry]:
    """Read all complete entries, in the order in which they were written."""
    if not path.exists():
        return []
    entries = []
    complete, _, _ = path.read_text().rpartition("\n")
    for line in complete.splitlines():
        event, job, argument, token, process, instant = line.split(" ")
        entries.append(Entry(event, job, argument, int(token), int(process), int(instant)))
    return entries
