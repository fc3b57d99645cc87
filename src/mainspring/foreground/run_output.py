"""The output of a worker in the foreground: a banner with store, handlers and slots, the schedules, the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from mainspring.plurals import format_count

if TYPE_CHECKING:
    from mainspring.foreground.foreground import Application


MAX_SCHEDULES = 20  # how many schedules are listed; the others are only counted
STOPPING = "stopping: no more jobs start; running jobs may finish (stop once more to hand them back at once)"


class RunOutput(Protocol):
    """Shows the start, the readiness and the end of a worker in the foreground."""

    def show_banner(self, banner: Banner) -> None:
        """Show the banner. The store is open, and no job has been claimed yet."""

    def show_http(self, notice: HttpNotice) -> None:
        """Show that an HTTP server listens beside the worker, and how to reach it."""

    def show_ready(self, threads: int, schedules: Sequence[NextFiring]) -> None:
        """Show that the worker claims jobs, and the next occurrences of schedules."""

    def show_stopping(self) -> None:
        """Show that the worker stops, because the first signal has arrived or files have changed."""

    def show_stopped(self) -> None:
        """Show that the worker has stopped. Jobs that it handed back are not shown here, but logged."""


class PlainRunOutput:
    """Prints the output of a worker as plain lines on stdout."""

    def show_banner(self, banner: Banner) -> None:
        handlers = ", ".join(f"{name} ({queue})" for name, queue in banner.handlers) or "none"
        _print(f"Mainspring runs jobs from {banner.engine}")
        _print(f"  version {banner.version}, pid {banner.pid}, {banner.slots}")
        _print(f"  handlers: {handlers}")
        if banner.queues is not None:
            _print(f"  queues: {', '.join(banner.queues)}")

    def show_http(self, notice: HttpNotice) -> None:
        for line in notice.lines:
            _print(f"  {line}")

    def show_ready(self, threads: int, schedules: Sequence[NextFiring]) -> None:
        for schedule in schedules[:MAX_SCHEDULES]:
            _print(f"  schedule: {schedule.name}, next {next_date_of(schedule)}")
        if len(schedules) > MAX_SCHEDULES:
            _print(f"  and {len(schedules) - MAX_SCHEDULES} more schedules")
        _print(f"  {format_count(threads, 'thread')} at work; stop with Ctrl+C or SIGTERM")

    def show_stopping(self) -> None:
        _print(STOPPING)

    def show_stopped(self) -> None:
        _print("stopped")


def next_date_of(schedule: NextFiring) -> str:
    """Return the next occurrence of a schedule as text; `never (paused or over)` if there is none."""
    return "never (paused or over)" if schedule.next_due is None else f"{schedule.next_due:%Y-%m-%d %H:%M:%S} UTC"


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class NextFiring:
    """The name of a schedule and its next occurrence; None if the schedule is paused or has ended."""

    name: str
    next_due: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpNotice:
    """The address of an HTTP server and how it admits callers, for the output of `run` and `serve`.

    Invariant: only `terminal_lines` has the token of the link.
    """

    url: str
    link: str | None
    """A URL with a token that is valid until the process ends; None if the store has tokens or for `--no-auth`."""
    is_open: bool
    """Whether every user of this machine is admitted."""
    token_command: str
    """The command that makes a token for this server."""

    @property
    def terminal_lines(self) -> tuple[str, ...]:
        """The notice as lines for the user at a terminal, with the token of the link."""
        if self.link is None:
            return self.lines
        return (
            f"HTTP at {self.link}",
            "the link allows everything until this process ends; mainspring tokens create makes lasting tokens",
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """The notice as lines for a file, a pipe or a log, which more people read than may use the token."""
        if self.is_open:
            return (f"HTTP at {self.url}, without a token: every user of this machine may do everything",)
        if self.link is None:
            return (f"HTTP at {self.url}, for the tokens of the store: mainspring tokens list",)
        return (
            f"HTTP at {self.url}",
            f"a link that logs in is printed on a terminal only; make a token: {self.token_command}",
        )

    @property
    def facts(self) -> dict[str, str | bool]:
        """The notice as a dict for JSON output, without the token of the link."""
        return {"url": self.url, "open": self.is_open}


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """The facts that a worker shows when it starts."""

    engine: str
    """The description of the store, with the absolute path or the servers, never with a password."""
    version: str
    pid: int
    handlers: tuple[tuple[str, str], ...]
    """The names of the handlers, each with its queue."""
    threads: int
    coroutines: int
    processes: int
    has_processes: bool
    """Whether any handler runs in a child process."""
    queues: tuple[str, ...] | None

    @classmethod
    def of(cls, app: Application) -> Banner:
        """Collect the facts of an application. This opens the store."""
        handlers = app.registry.all()
        return cls(
            engine=app.manager().engine.description,
            version=version("mainspring"),
            pid=os.getpid(),
            handlers=tuple((handler.name, handler.options.queue) for handler in handlers),
            threads=app.threads,
            coroutines=app.coroutines,
            processes=app.processes.count,
            has_processes=any(handler.is_process for handler in handlers),
            queues=app.queues,
        )

    @property
    def slots(self) -> str:
        """The number of threads, coroutines and, if they are used, processes, as text."""
        processes = f", {format_count(self.processes, 'process', 'processes')}" if self.has_processes else ""
        return f"{format_count(self.threads, 'thread')}, {format_count(self.coroutines, 'coroutine')}{processes}"
