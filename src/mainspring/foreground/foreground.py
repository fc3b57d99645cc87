"""Runs a worker in the foreground until SIGTERM or SIGINT, prints its messages and publishes its health."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from mainspring.clock import Clock, SystemClock
from mainspring.engines.registry import provider_for
from mainspring.errors import EngineUnavailable, StoreReplaced
from mainspring.foreground.health_files import HealthFile, WorkerIdentity, choose_folder
from mainspring.foreground.health_publisher import HealthPublisher, SystemdNotifier
from mainspring.foreground.health_rules import OwnHealth
from mainspring.foreground.run_output import Banner, NextFiring, PlainRunOutput, RunOutput
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.manager import JobManager
from mainspring.jobs.policies import ProcessSettings
from mainspring.jobs.recurrence.schedules import Schedules
from mainspring.similar_names import did_you_mean
from mainspring.stop_signals import StopSignals
from mainspring.store_url import StoreChoice, UrlSource
from mainspring.worker_health import WorkerHealth

NO_HANDLERS = "import the modules with handlers in the module of the application, or use Mainspring(include=[...])"
SWITCH_SECONDS = 0.0005  # a handler that computes gives way to other threads ten times as often as by default

logger = logging.getLogger("mainspring.worker")


Watch: TypeAlias = Callable[[Callable[[], None]], AbstractContextManager[Any]]
"""A function that returns a context manager, which watches something, such as files, during its `with` block, and
calls the function's argument when the worker must stop."""


Beside: TypeAlias = Callable[[OwnHealth], AbstractContextManager[Any]]
"""A function that makes a server, such as the HTTP server. It runs during its `with` block, beside the worker: it
starts before the worker and stops after it. Its argument tells the health of the worker."""


class Application(Protocol):
    """The interface of the application whose jobs are run. `Mainspring` implements it."""

    url: str
    threads: int
    coroutines: int
    processes: ProcessSettings
    queues: tuple[str, ...] | None
    registry: HandlerRegistry
    limits: LimitRegistry

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store."""

    def load_handlers(self) -> None:
        """Import the modules that have handlers."""

    @property
    def store_choice(self) -> StoreChoice:
        """The URL of the store and the place that names it, such as the code or the option `--url`."""

    def find_missing_file(self) -> Path | None:
        """Return the path of the store's file if it is relative and the first use would create it; else None."""

    def running(self) -> AbstractContextManager[Any]:
        """Run a worker for the duration of the `with` block."""

    def manager(self) -> JobManager:
        """Return the job manager of this process; the first call opens the store."""

    def close(self) -> None:
        """Stop the worker, if it runs, and close the store."""


class Foreground:
    """Runs a worker of an application until a signal stops it.

    The health file is below `health_dir`, else below the folder that the environment names in
    `MAINSPRING_HEALTH_DIR` or `XDG_RUNTIME_DIR`, else below the folder for temporary files. The environment also
    names the socket of systemd. `watch` can stop the worker; `beside` makes a server that runs with it.
    """

    def __init__(
        self,
        app: Application,
        *,
        environment: Mapping[str, str],
        health_dir: str | None = None,
        output: RunOutput | None = None,
        clock: Clock | None = None,
        watch: Watch | None = None,
        beside: Beside | None = None,
    ) -> None:
        self._app = app
        self._watch = watch or _watch_nothing
        self._beside = beside or _nothing_beside
        self._environment = environment
        self._folder = choose_folder(health_dir, environment)
        self._output = output or PlainRunOutput()
        self._clock = clock or SystemClock()
        self._health = OwnHealth(self._clock)
        self._replaced: StoreReplaced | None = None

    def run(self) -> bool:
        """Run a worker until SIGTERM or SIGINT, or until `watch` stops it, and wait for running jobs.

        A further signal ends the wait and hands running jobs back. At the end, the application is closed. Return
        True if `watch` has stopped the worker and no signal has come. Raises `RuntimeError` if the caller is not
        the main thread, and `StoreReplaced` if the file of the store was removed or replaced, after the running
        handlers have ended.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "app.run() listens for signals, which only the main thread can; "
                "use `with app.running():` elsewhere"
            )
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with StopSignals() as signals:
                self._app.load_handlers()
                missing = self._app.find_missing_file()
                self._output.show_banner(Banner.of(self._app))  # before the worker starts: handlers may print, too
                if missing is not None:
                    _warn_of_new_file(missing, self._app.store_choice.source)
                if not self._app.registry.all():
                    logger.warning("the application has no handlers, so no jobs will run: %s", NO_HANDLERS)
                self._warn_of_unused_queues()
                with (
                    self._watch(signals.interrupt),
                    self._published(signals.interrupt),
                    self._beside(self._health),
                    self._app.running(),
                ):
                    self._output.show_ready(self._app.threads, self._schedules())
                    signals.wait()
                    self._app.manager().stop_taking()  # before the message that the worker stops
                    self._output.show_stopping()
                    signals.call_on_next(self._app.manager().hurry)
                self._output.show_stopped()
                if self._replaced is not None:
                    raise self._replaced
                return not signals.is_received
        finally:
            sys.setswitchinterval(interval)
            self._app.close()

    def _published(self, stop: Callable[[], None]) -> HealthPublisher:
        """Return a publisher of the worker's health. It calls `stop` if the file of the store was replaced."""
        manager = self._app.manager()
        store = provider_for(self._app.url).store_name(self._app.url)
        identity = WorkerIdentity.of_this_process(manager.engine.description, store, self._clock.now())
        publisher = HealthPublisher(HealthFile(self._folder, identity), SystemdNotifier.of(self._environment))

        def publish(health: WorkerHealth) -> None:
            self._health.update(health)
            publisher.publish(health)
            if self._replaced is None and manager.store_replaced is not None:
                self._replaced = manager.store_replaced
                stop()

        manager.on_turn = publish
        return publisher

    def _warn_of_unused_queues(self) -> None:
        """Log a warning for each queue that this worker serves by name and no handler uses: it may be mistyped."""
        used = {handler.options.queue for handler in self._app.registry.all()} | {*self._app.limits.queues()}
        for name in self._app.queues or ():
            if used and name not in used:
                logger.warning(
                    "this worker serves queue %r, but no handler uses that queue; %s",
                    name,
                    did_you_mean(name, used)
                    or f"handlers use {', '.join(map(repr, sorted(used)))}; a submit can name others: "
                    f"options(queue={name!r})",
                )

    def _schedules(self) -> list[NextFiring]:
        """Return the stored schedules of this application's handlers.

        If the store fails, log a warning and return none.
        """
        try:
            found = [schedule for schedule in self._app.schedules.list() if schedule.type in self._app.registry]
        except EngineUnavailable as error:  # the worker continues, as it would if the store failed later
            logger.warning("schedules cannot be listed: %s; the worker continues without showing them", error)
            return []
        return [NextFiring(each.name, None if each.is_paused else each.next_due) for each in found]


def _watch_nothing(_stop: Callable[[], None]) -> AbstractContextManager[None]:
    return nullcontext()


def _nothing_beside(_health: OwnHealth) -> AbstractContextManager[None]:
    return nullcontext()


def _warn_of_new_file(path: Path, source: UrlSource) -> None:
    """Log a warning that the worker has created its store at a relative path, perhaps in the wrong folder."""
    logger.warning(
        "this worker has created the store %s: %s names the relative path %s, and there was no such file; "
        "if jobs are submitted in another folder, start the worker there, or use an absolute path",
        path.resolve(),
        source,
        path,
    )
