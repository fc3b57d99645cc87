"""What systemd wants to hear from a service of `Type=notify`: datagrams with a few lines, to the socket it names.

`READY=1` when jobs are being taken, `STOPPING=1` at the first signal, `STATUS=` for people, and `WATCHDOG=1` as
long as the control sequence turns, if the unit has `WatchdogSec=`. Where nobody listens, nobody is told.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from mainspring.vital_signs import Health, WorkerState

logger = logging.getLogger("mainspring.worker")


class Systemd:
    """Tells systemd how a worker is; nothing at all without an address."""

    def __init__(self, address: str | None, *, has_watchdog: bool = False) -> None:
        self._address = address
        self._has_watchdog = has_watchdog
        self._said: set[str] = set()  # what is said once
        self._status = ""
        self._is_quiet = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Systemd:
        """Find out what systemd wants: with `WATCHDOG_PID` it may mean another process."""
        meant = environment.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        has_watchdog = meant and environment.get("WATCHDOG_USEC", "").isdigit()
        return cls(environment.get("NOTIFY_SOCKET") or None, has_watchdog=has_watchdog)

    def tell(self, health: Health) -> None:
        """Say what has changed, and that the worker lives."""
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
        if line in self._said:
            return []
        self._said.add(line)
        return [line]

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode(), name)
        except OSError as error:
            if not self._is_quiet:
                self._is_quiet = True
                logger.warning("systemd does not listen at NOTIFY_SOCKET %r: %s", self._address, error)


def _status(health: Health) -> str:
    """Say in one line how a worker is; counts are left out, so that it is news when it changes."""
    problem = health.trouble or health.stall
    return str(health.state) if problem is None else f"{health.state}, but {problem}".replace("\n", " ")
