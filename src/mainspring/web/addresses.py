"""Where the server listens: parses `127.0.0.1:8400`, and opens the sockets.

The sockets are opened before anything else starts. So a port that is in use is an error of the command, and no
worker has started by then.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from mainspring.errors import CannotListen

DEFAULT_PORT = 8400
BACKLOG = 1_024
MAX_PORT = 65_535


class HttpAddress(NamedTuple):
    """The host and the port at which the HTTP server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> HttpAddress:
    """Parse an address of the form `127.0.0.1:8400`, `[::1]:8400`, `localhost`, `:8400` or `8400`.

    The default of the host is 127.0.0.1, that of the port 8400. Port 0 lets the system choose a port. Raises
    `ValueError` for text of another form.
    """
    given = text.strip()
    host, port = "", given
    if given.startswith("["):
        host, bracket, rest = given[1:].partition("]")
        port = rest.removeprefix(":") if bracket else "?"
    elif not given.isdecimal():
        host, _, port = given.partition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= MAX_PORT
    if not given or (port and not is_number) or "/" in host or " " in host:
        raise ValueError(
            f"{text!r} is no address; write a host and a port: 127.0.0.1:{DEFAULT_PORT}, [::1]:{DEFAULT_PORT}, or "
            "0.0.0.0:80 for all addresses of this machine"
        )
    return HttpAddress(host or "127.0.0.1", int(port) if port else DEFAULT_PORT)


class Listener:
    """Open sockets that listen at one address, and the IP addresses that they are bound to."""

    def __init__(self, address: HttpAddress, sockets: Sequence[socket.socket]) -> None:
        self.sockets = list(sockets)
        self.address = HttpAddress(address.host, sockets[0].getsockname()[1])
        """The address, with the real port: for port 0, the one that the system has chosen."""
        self.ips = [str(each.getsockname()[0]) for each in sockets]

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        return all(ip_address(ip.partition("%")[0]).is_loopback for ip in self.ips)

    @property
    def url(self) -> str:
        """The URL of the server for a browser on this machine."""
        first = ip_address(self.ips[0].partition("%")[0])
        host = self.address.host
        if first.is_unspecified:
            host = "127.0.0.1" if first.version == 4 else "::1"
        return f"http://{HttpAddress(host, self.address.port)}/"

    def close(self) -> None:
        """Close all sockets, so that no client can connect any more."""
        for each in self.sockets:
            each.close()


def open_listener(address: HttpAddress) -> Listener:
    """Open sockets that listen at all addresses of a host; with port 0, only at the first one.

    Addresses after the first that this machine does not have are left out. Raises `CannotListen`, with a remedy,
    for any other failure.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(
            address=str(address),
            reason=f"the host {address.host!r} is unknown ({error})",
            remedy=f"use an address of this machine, such as 127.0.0.1:{address.port}",
        ) from error
    targets = list(dict.fromkeys((family, place) for family, _, _, _, place in found))
    if not address.port:
        targets = targets[:1]  # each would get a port of its own
    sockets: list[socket.socket] = []
    try:
        for family, place in targets:
            opened = _listen(family, place, is_optional=bool(sockets))
            if opened is not None:
                sockets.append(opened)
    except OSError as error:
        for each in sockets:
            each.close()
        raise _explain(address, error) from error
    return Listener(address, sockets)


def _listen(family: int, place: object, *, is_optional: bool) -> socket.socket | None:
    """Open a socket that listens at `place`, an address as `getaddrinfo` returns it; raise `OSError` on failure.

    With `is_optional`, return None instead if this machine does not have the address or its family.
    """
    try:
        opened = socket.socket(
            family, socket.SOCK_STREAM, socket.IPPROTO_TCP
        )  # asyncio sets TCP_NODELAY only then
    except OSError:
        if is_optional:
            return None
        raise
    try:
        if os.name == "posix":
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(place)  # type: ignore[arg-type] # as `getaddrinfo` has returned it
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        if is_optional and error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return opened


def _explain(address: HttpAddress, error: OSError) -> CannotListen:
    other = HttpAddress(address.host, address.port + 1 if 0 < address.port < MAX_PORT else DEFAULT_PORT)
    match error.errno:
        case errno.EADDRINUSE:
            reason = f"another program uses port {address.port}"
            remedy = f"stop it, or choose another port: --http {other}; port 0 lets the system choose"
        case errno.EACCES:
            reason = f"this user may not use port {address.port}"
            remedy = f"use a port above 1023: --http {HttpAddress(address.host, DEFAULT_PORT)}"
        case errno.EADDRNOTAVAIL:
            reason = f"{address.host} is no address of this machine"
            remedy = f"use 127.0.0.1:{address.port}, or 0.0.0.0:{address.port} for all addresses of this machine"
        case _:
            reason = error.strerror or str(error)
            remedy = f"try another address: --http 127.0.0.1:{other.port}"
    return CannotListen(address=str(address), reason=reason, remedy=remedy)
