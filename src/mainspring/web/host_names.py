"""Decides which `Host` headers a server accepts, and whether an `Origin` is that of the same server.

The owner of a foreign web page can let its name point to 127.0.0.1 (DNS rebinding). The browser then sends
requests of this page to a server on the user's machine, with the foreign name as `Host`. So a server accepts only
its own names and addresses.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(\d{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def split_host(value: str) -> tuple[str, str | None] | None:
    """Return the name or address and the port of a `Host` header; None if it is malformed."""
    found = _HOST.fullmatch(value.strip().lower())
    if found is None:
        return None
    return found[1].strip("[]").removesuffix("."), found[2]


class HostRule:
    """The names and addresses of a server, which it accepts in the header `Host`.

    - `names`: host names and addresses, without a port
    - `any_address`: accept every IP address as well; a rebinding page cannot use one, because it needs a name
    """

    def __init__(self, names: Iterable[str], *, any_address: bool = False) -> None:
        self._names = frozenset(map(normal_name, names))
        self._any_address = any_address

    def accepts(self, host: str) -> bool:
        """Return whether a `Host` header names this server. The port does not matter: it may be forwarded."""
        parts = split_host(host)
        if parts is None:
            return False
        return parts[0] in self._names or (self._any_address and _is_address(parts[0]))


def normal_name(name: str) -> str:
    """Return a host name or an IP address in lower case, without brackets; raise `ValueError` for other text."""
    if _is_address(name.strip()):
        return str(ip_address(name.strip()))
    parts = split_host(name)
    if parts is None or parts[1] is not None or (":" in parts[0] and not _is_address(parts[0])):
        raise ValueError(f"{name!r} is no host name; write jobs.example.com, without a scheme, a port and a path")
    return parts[0]


def rule_for(addresses: Iterable[str], names: Iterable[str]) -> HostRule:
    """Return the rule for a server that listens at these IP addresses, and also has these names.

    The names of loopback and of this machine are added where the addresses need them. Text that is no host name is
    left out.
    """
    known = set(names)
    any_address = False
    for address in addresses:
        parsed = ip_address(address.partition("%")[0])
        known.add(str(parsed))
        if parsed.is_loopback or parsed.is_unspecified:
            known |= LOOPBACK_NAMES
        if not parsed.is_loopback:
            known.add(socket.gethostname())
        any_address |= parsed.is_unspecified
    return HostRule((name for name in known if _is_name(name)), any_address=any_address)


def _is_name(name: str) -> bool:
    try:
        normal_name(name)
    except ValueError:  # the name of this machine may have any form
        return False
    return True


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str, host: str) -> bool:
    """Return whether an `Origin` header belongs to a page of the server that the `Host` header names.

    The scheme is not compared: a proxy may add TLS.
    """
    try:
        parts = urlsplit(origin.strip().lower())
        port = None if parts.port is None else str(parts.port)
    except ValueError:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme)
    ours = split_host(host)
    if default is None or ours is None or parts.hostname is None or parts.path or parts.query or parts.username:
        return False
    return (parts.hostname.removesuffix("."), port or default) == (ours[0], ours[1] or default)
