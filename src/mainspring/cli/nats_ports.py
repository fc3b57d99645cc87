"""Ports of this machine: which are free, which this process holds, and where a server listens.

Free ports lie below those that systems give to outgoing connections: a client that tries again and again to reach
a server that is down could be given the port of that server, and be connected with itself.

A process that has chosen ports holds them until it is done with them, also while its server is down: it binds the
UDP port of the same number, which no server here uses. Every other process that chooses ports passes over those.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from contextlib import suppress

HOST = "127.0.0.1"
FREE_PORTS = range(20_000, 32_000)
CONNECT_SECONDS = 1.0


class HeldPorts:
    """Ports that this process has chosen and keeps, each for one server, until `release()`."""

    def __init__(self) -> None:
        self._holds: list[socket.socket] = []

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def choose(self, *, in_a_row: int = 1, besides: Collection[int] = ()) -> int:
        """Hold ports that are free, that no process holds and that are not `besides`; return the first of them."""
        # Not the common generator: a test that seeds it would get the same ports again and again.
        for port in random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS)):
            row = range(port, port + in_a_row)
            if not set(row).intersection(besides) and self._hold(row):
                return port
        raise OSError(f"no {in_a_row} ports in a row are free from {FREE_PORTS[0]} to {FREE_PORTS[-1]} of {HOST}")

    def release(self) -> None:
        """Let other processes choose these ports."""
        while self._holds:
            self._holds.pop().close()

    def _hold(self, ports: range) -> bool:
        holds: list[socket.socket] = []
        with suppress(OSError):
            for port in ports:
                holds.append(_hold(port))  # noqa: PERF401 - those before one that is taken are kept, to be closed
        if len(holds) == len(ports) and all(map(is_free, ports)):  # by those who do not hold what they use
            self._holds += holds
            return True
        for hold in holds:
            hold.close()
        return False


def _hold(port: int) -> socket.socket:
    hold = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        hold.bind((HOST, port))
    except OSError:
        hold.close()
        raise
    return hold


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port may be reused at once
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_listening(port: int) -> bool:
    """Whether a server takes connections there."""
    try:
        socket.create_connection((HOST, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
