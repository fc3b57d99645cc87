"""Publishes the health of a worker, in its health file and to systemd.

The health comes from the control layer, which must not wait for a disk. So a separate thread writes it. This
thread writes only the health that it is given: if the control layer hangs, the published health grows old.

A service of `Type=notify` sends datagrams to the socket that systemd names: `READY=1` when the worker fetches
jobs, `STOPPING=1` when it stops, `STATUS=` for people, and `WATCHDOG=1` as long as the control layer runs, if the
systemd unit has `WatchdogSec=`.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from threading import Condition, Thread
from types import TracebackType

from mainspring.foreground.health_files import FOLDER_VARIABLE, HealthFile, remove_stale_files
from mainspring.worker_health import WorkerHealth, WorkerState

logger = logging.getLogger("mainspring.worker")


class SystemdNotifier:
    """Sends the health of a worker to systemd. Without an address it sends nothing."""

    def __init__(self, address: str | None, *, has_watchdog: bool = False) -> None:
        self._address = address
        self._has_watchdog = has_watchdog
        self._sent: set[str] = set()  # lines that are sent only once
        self._status = ""
        self._has_warned = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SystemdNotifier:
        """Make a notifier with the socket and the watchdog that systemd names in the environment.

        The watchdog is ignored if `WATCHDOG_PID` names another process.
        """
        is_for_this_process = environment.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        has_watchdog = is_for_this_process and environment.get("WATCHDOG_USEC", "").isdigit()
        return cls(environment.get("NOTIFY_SOCKET") or None, has_watchdog=has_watchdog)

    def notify(self, health: WorkerHealth) -> None:
        """Send changes of the worker's state to systemd and, if there is a watchdog, that the worker is alive.

        If systemd cannot be reached, nothing is raised; the first time, a warning is logged.
        """
        lines = []
        if health.state is not WorkerState.STARTING:
            lines += self._once("READY=1")
        if health.state is WorkerState.STOPPING:
            lines += self._once("STOPPING=1")
        if self._has_watchdog:
            lines.append("WATCHDOG=1")
        status = f"STATUS={_status(health)}"
        if status != self._status:
            self._status = status
            lines.append(status)
        if lines:
            self._send("\n".join(lines))

    def _once(self, line: str) -> list[str]:
        if line in self._sent:
            return []
        self._sent.add(line)
        return [line]

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode(), name)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "systemd cannot be notified at NOTIFY_SOCKET %r: %s; it may stop or restart the worker; "
                    "let this process write to the socket",
                    self._address,
                    error,
                )


def _status(health: WorkerHealth) -> str:
    """Return the state of a worker and its problem as one line, without counts, so that it rarely changes."""
    problem = health.trouble or health.stall
    return str(health.state) if problem is None else f"{health.state}, but {problem}".replace("\n", " ")


STOP_TIMEOUT_SECONDS = 2.0  # seconds to wait for the thread, even if the disk hangs


class HealthPublisher:
    """Writes the health that `publish` gets to the health file and to systemd, until the end of the `with` block.

    It removes the file at the end.
    """

    def __init__(self, file: HealthFile, systemd: SystemdNotifier) -> None:
        self._file = file
        self._systemd = systemd
        self._thread = Thread(target=self._publish_all, name="mainspring-health", daemon=True)
        self._changed = Condition()  # guards the following attributes
        self._latest: WorkerHealth | None = None
        self._is_closed = False
        self._has_failed = False

    def __enter__(self) -> HealthPublisher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(STOP_TIMEOUT_SECONDS)

    def publish(self, health: WorkerHealth) -> None:
        """Let the publisher's thread publish this health soon, instead of an earlier one that still waits."""
        with self._changed:
            self._latest = health
            self._changed.notify()

    def _publish_all(self) -> None:
        self._remove_stale_files()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._latest is not None or self._is_closed)
                latest, self._latest = self._latest, None
            if latest is None:
                self._file.remove()
                return
            self._publish_now(latest)

    def _remove_stale_files(self) -> None:
        try:
            remove_stale_files(self._file.folder)
        except OSError as error:
            self._warn(error)

    def _publish_now(self, health: WorkerHealth) -> None:
        try:
            self._file.write(health)
        except OSError as error:
            self._warn(error)
        self._systemd.notify(health)  # last, so that a probe that systemd starts after READY=1 finds the file

    def _warn(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning(
                "`mainspring healthcheck` may not find this worker: %s; name a folder to write to with "
                "--health-dir or %s",
                error,
                FOLDER_VARIABLE,
            )
