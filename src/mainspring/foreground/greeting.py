"""What a worker says of itself when it begins: where its jobs are, what it can run, and how much at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.foreground.foreground import Application


@dataclass(frozen=True, slots=True)
class ScheduledNext:
    """A schedule and its next date; None if it is paused or over."""

    name: str
    next_due: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The facts, for whatever form they are told in."""

    engine: str
    """With the absolute path, or the servers; never a password."""
    version: str
    pid: int
    handlers: tuple[tuple[str, str], ...]
    """Names, each with its queue."""
    threads: int
    coroutines: int
    processes: int
    has_processes: bool
    """Whether any handler needs one."""
    queues: tuple[str, ...] | None

    @classmethod
    def of(cls, app: Application) -> Greeting:
        """Gather the facts; it opens the store."""
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
        """How much it runs at once."""
        processes = f", {self.processes} processes" if self.has_processes else ""
        return f"{self.threads} threads, {self.coroutines} coroutines{processes}"
