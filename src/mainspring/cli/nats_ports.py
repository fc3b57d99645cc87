"""Ports of this machine: which are free, and where somebody listens.

Free ones lie below those that systems give to outgoing connections: a client that tries again and again to reach a
server that is down could be given just its port, and be connected with itself.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
FREE_PORTS = range(20_000, 32_000)
CONNECT_SECONDS = 1.0


def free_ports() -> Iterator[int]:
    """Yield ports that are free now, each once; another process may still be quicker."""
    # Not the common generator: whoever seeds it, as tests do, would get the same ports again and again.
    return filter(is_free, random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS)))


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
