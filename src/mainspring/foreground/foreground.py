"""Running until told to stop: signals, what is said on the way, and the signs of life for those outside."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mainspring.clock import Clock, SystemClock
from mainspring.engines.registry import provider_for
from mainspring.errors import EngineUnavailable
from mainspring.foreground.greeting import Greeting, ScheduledNext
from mainspring.foreground.health_files import HealthFile, Identity
from mainspring.foreground.health_folder import choose_folder
from mainspring.foreground.publishing import Publisher
from mainspring.foreground.systemd import Systemd
from mainspring.foreground.voice import PlainVoice, Voice
from mainspring.jobs.handlers import Registry
from mainspring.jobs.manager import JobManager
from mainspring.jobs.policies import ProcessSettings
from mainspring.jobs.recurrence.schedules import Schedules
from mainspring.stop_signals import Signals

NO_HANDLERS = "import the modules that have some where the application is, or with Mainspring(include=[...])"
SWITCH_SECONDS = 0.0005  # a CPU-bound handler hands the interpreter over ten times as often as by default

logger = logging.getLogger("mainspring.worker")


class Application(Protocol):
    """What is run: a `Mainspring`."""

    url: str
    threads: int
    coroutines: int
    processes: ProcessSettings
    queues: tuple[str, ...] | None
    registry: Registry
    schedules: Schedules

    def load_handlers(self) -> None:
        """Import the modules that have handlers."""

    def running(self) -> AbstractContextManager[Any]:
        """Run jobs while the block lasts."""

    def manager(self) -> JobManager:
        """Return the job manager."""

    def close(self) -> None:
        """Give everything back."""


class Foreground:
    """Runs an application until it is told to stop.

    The environment says where signs of life go: `MAINSPRING_HEALTH_DIR` or `XDG_RUNTIME_DIR`, and what systemd
    wants to hear; `health_dir` comes first.
    """

    def __init__(
        self,
        app: Application,
        *,
        environment: Mapping[str, str],
        health_dir: str | None = None,
        voice: Voice | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._app = app
        self._environment = environment
        self._folder = choose_folder(health_dir, environment)
        self._voice = voice or PlainVoice()
        self._clock = clock or SystemClock()

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
                self._app.load_handlers()
                self._voice.greet(Greeting.of(self._app))  # before the worker: handlers may talk, too
                if not self._app.registry.all():
                    logger.warning("there are no handlers, so no jobs will run: %s", NO_HANDLERS)
                with self._published(), self._app.running():
                    self._voice.tell_ready(self._app.threads, self._schedules())
                    signals.wait()
                    self._app.manager().stop_taking()  # before it is said
                    self._voice.tell_stopping()
                    signals.then(self._app.manager().hurry)
                self._voice.tell_stopped()
        finally:
            sys.setswitchinterval(interval)
            self._app.close()

    def _published(self) -> Publisher:
        manager = self._app.manager()
        store = provider_for(self._app.url).store_name(self._app.url)
        identity = Identity.of_this_process(manager.engine.description, store, self._clock.now())
        publisher = Publisher(HealthFile(self._folder, identity), Systemd.of(self._environment))
        manager.on_turn = publisher.tell
        return publisher

    def _schedules(self) -> list[ScheduledNext]:
        """Return the schedules of handlers that are known here: they are stored by now."""
        try:
            found = [schedule for schedule in self._app.schedules.list() if schedule.type in self._app.registry]
        except EngineUnavailable as error:  # the worker goes on, as it would a moment later
            logger.warning("schedules cannot be listed: %s", error)
            return []
        return [ScheduledNext(each.name, None if each.is_paused else each.next_due) for each in found]
