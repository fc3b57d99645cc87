"""A worker as the whole purpose of a process: signals, what it says at start and at the end."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mainspring.jobs.handlers import Registry
from mainspring.jobs.manager import JobManager
from mainspring.stop_signals import Signals

SWITCH_SECONDS = 0.0005  # a CPU-bound handler hands the interpreter over ten times as often as by default

logger = logging.getLogger("mainspring.worker")


class Application(Protocol):
    """What is run: a `Mainspring`."""

    threads: int
    queues: tuple[str, ...] | None
    registry: Registry

    def load_handlers(self) -> None:
        """Import the modules that have handlers."""

    def running(self) -> AbstractContextManager[Any]:
        """Run jobs while the block lasts."""

    def manager(self) -> JobManager:
        """Return the job manager."""

    def close(self) -> None:
        """Give everything back."""


class Foreground:
    """Runs an application until it is told to stop."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. The second signal stops at once, still without loss."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "app.run() listens for signals, which only the main thread can; "
                "use `with app.running():` elsewhere"
            )
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with Signals() as signals:
                self._greet()  # before the worker: what follows may be said by handlers
                with self._app.running():
                    _say(f"  {self._app.threads} threads at work; stop with Ctrl+C or SIGTERM")
                    signals.wait()
                    _say("stopping: no new jobs; those that run may finish (once more to hand them back at once)")
                    signals.then(self._app.manager().hurry)
                _say("stopped")
        finally:
            sys.setswitchinterval(interval)
            self._app.close()

    def _greet(self) -> None:
        app = self._app
        app.load_handlers()
        handlers = ", ".join(handler.name for handler in app.registry.all()) or "none"
        _say(f"Mainspring runs jobs from {app.manager().engine.description}")
        _say(f"  handlers: {handlers}")
        if app.queues is not None:
            _say(f"  queues: {', '.join(app.queues)}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
