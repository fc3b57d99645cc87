"""Runs a server without a worker in the foreground, until SIGTERM or SIGINT: `mainspring serve`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mainspring.clock import Clock, SystemClock
from mainspring.foreground.health_publisher import SystemdNotifier
from mainspring.stop_signals import StopSignals
from mainspring.worker_health import WorkerHealth, WorkerState


class RunningServer(Protocol):
    """A server that runs on its own threads."""

    def hurry(self) -> None:
        """Stop waiting for requests that are not answered yet. Any thread may call this."""


class ServerOutput(Protocol):
    """Shows the end of a server in the foreground."""

    def show_stopping(self) -> None:
        """Show that the first signal has arrived and the server stops."""

    def show_stopped(self) -> None:
        """Show that the server has stopped."""


def serve_until_signal(
    server: AbstractContextManager[RunningServer],
    *,
    close: Callable[[], None],
    output: ServerOutput,
    environment: Mapping[str, str],
    clock: Clock | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT; then wait until it has answered accepted requests.

    A second signal ends the wait. Raises `RuntimeError` if the caller is not the main thread.

    - `server`: a context manager; the server runs during its `with` block
    - `close`: called at the end, also after an error
    - `output`: shows that the server stops and has stopped
    - `environment`: names the socket of systemd
    - `clock`: the clock of the messages to systemd; None for the system's clock
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "a server in the foreground listens for signals, which only the main thread can; call this there"
        )
    systemd = SystemdNotifier.of(environment)
    now: Callable[[], int] = (clock or SystemClock()).monotonic_ns
    try:
        with StopSignals() as signals:
            with server as running:
                systemd.notify(_health(WorkerState.READY, now()))
                signals.wait()
                systemd.notify(_health(WorkerState.STOPPING, now()))
                output.show_stopping()
                signals.call_on_next(running.hurry)
            output.show_stopped()
    finally:
        close()


def _health(state: WorkerState, now: int) -> WorkerHealth:
    values: dict[str, Any] = {"answered_ns": now, "trouble": None, "stall": None, "jobs": 0}
    return WorkerHealth(state=state, turned_ns=now, **values)
