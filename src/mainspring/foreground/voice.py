"""How a worker in the foreground talks to people: plain lines, unless somebody gives it another voice."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from mainspring.foreground.greeting import Greeting, ScheduledNext

MOST_SCHEDULES = 20  # that are listed
STOPPING = "stopping: no new jobs; those that run may finish (once more to hand them back at once)"


class Voice(Protocol):
    """What is said, and when."""

    def greet(self, greeting: Greeting) -> None:
        """The store is open; nothing has been taken yet."""

    def tell_ready(self, threads: int, schedules: Sequence[ScheduledNext]) -> None:
        """Jobs are being taken."""

    def tell_stopping(self) -> None:
        """The first signal has come."""

    def tell_stopped(self) -> None:
        """Everything was settled or handed back."""


class PlainVoice:
    """Lines on stdout."""

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
    """Write the next date of a schedule."""
    return "never (paused or over)" if schedule.next_due is None else f"{schedule.next_due:%Y-%m-%d %H:%M:%S} UTC"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
