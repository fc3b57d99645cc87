"""The messages of a worker in the foreground: its store, handlers, schedules and slots, and when it stops."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mainspring.foreground.foreground import Application


MOST_SCHEDULES = 20  # more are not listed
STOPPING = "stopping: no new jobs; those that run may finish (once more to hand them back at once)"


class Voice(Protocol):
    """Prints the messages of a worker in the foreground."""

    def greet(self, greeting: Greeting) -> None:
        """Report the start: the store is open, no job has been claimed yet."""

    def tell_ready(self, threads: int, schedules: Sequence[ScheduledNext]) -> None:
        """Report that the worker claims jobs."""

    def tell_stopping(self) -> None:
        """Report that the first signal has arrived."""

    def tell_stopped(self) -> None:
        """Report the end: every job was settled or handed back."""


class PlainVoice:
    """Prints plain lines on stdout."""

    def greet(self, greeting: Greeting) -> None:
        handlers = ", ".join(f"{name} ({queue})" for name, queue in greeting.handlers) or "none"
        _say(f"Mainspring runs jobs from {greeting.engine}")
        _say(f"  version {greeting.version}, pid {greeting.pid}, {greeting.places}")
        _say(f"  handlers: {handlers}")
        if greeting.queues is not None:
            _say(f"  queues: {', '.join(greeting.queues)}")

    def tell_ready(self, threads: int, schedules: Sequence[ScheduledNext]) -> None:
        for schedule in schedules[:MOST_SCHEDULES]:
            _say(f"  schedule: {schedule.name}, next {next_of(schedule)}")
        if len(schedules) > MOST_SCHEDULES:
            _say(f"  and {len(schedules) - MOST_SCHEDULES} more schedules")
        _say(f"  {threads} threads at work; stop with Ctrl+C or SIGTERM")

    def tell_stopping(self) -> None:
        _say(STOPPING)

    def tell_stopped(self) -> None:
        _say("stopped")


def next_of(schedule: ScheduledNext) -> str:
    """Return the next date of a schedule as text."""
    return "never (paused or over)" if schedule.next_due is None else f"{schedule.next_due:%Y-%m-%d %H:%M:%S} UTC"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class ScheduledNext:
    """A schedule and its next date; None if it is paused or has ended."""

    name: str
    next_due: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The facts that a worker reports when it starts, independent of their format."""

    engine: str
    """The engine with the absolute path or the servers; never a password."""
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
    def of(cls, app: Application) -> Greeting:
        """Collect the facts of an application; this opens the store."""
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
    def places(self) -> str:
        """The number of threads, coroutines and, if they are used, processes, as text."""
        processes = f", {self.processes} processes" if self.has_processes else ""
        return f"{self.threads} threads, {self.coroutines} coroutines{processes}"
