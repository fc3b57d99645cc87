"""Settings of the NATS engine, and the URLs that name servers, credentials and settings.

nats://host:4222                     several servers with commas: nats://a:4222,b:4222
nats://user:password@host, nats://token@host, tls://host
?prefix=shop&replicas=3&lease=20&timeout=10&role=worker   settings, below
"""

from __future__ import annotations

import re
import ssl
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.subject_names import DEFAULT_PREFIX
from mainspring.errors import EngineUnavailable

SCHEMES = ("nats://", "tls://")
SECRETS = ("password", "token", "nkeys_seed")
DEFAULT_LEASE = 20.0
DEFAULT_TIMEOUT = 10.0
DEFAULT_INBOX = "_INBOX"
Role: TypeAlias = Literal["submitter", "worker", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)


def inbox_of(prefix: str, role: Role) -> str:
    """Return the prefix of the subjects for replies to a role; no other role may subscribe to them."""
    return f"{DEFAULT_INBOX}_{prefix}_{role}"


class NatsSettings(Struct, frozen=True, kw_only=True):
    """Settings of the NATS engine."""

    prefix: str = DEFAULT_PREFIX
    """Begins all names on the server: applications with different prefixes are separate."""
    replicas: int | None = None
    """On how many servers of a cluster each message is stored: 1, 3 or 5; None: unchanged, 1 for a new stream."""
    lease: float = DEFAULT_LEASE
    """Seconds without a heartbeat after which other workers may claim the jobs of a worker."""
    timeout: float | None = DEFAULT_TIMEOUT
    """Seconds that a call waits for the server before it raises `EngineUnavailable`; None: without limit."""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: str | None = None
    """A file with a JWT and its key (`.creds`)."""
    nkeys_seed: str | None = None
    """The seed of an nkey: the text itself, `SU...`."""
    tls: ssl.SSLContext | None = None
    """For servers whose certificate is signed by a private authority, or that require a client certificate."""
    role: Role | None = None
    """The permissions of this process, see `permissions.py`; it sends no other requests. None: all permissions."""
    inbox_prefix: str | None = None
    """Prefix of the subjects for replies; None: that of the role, or `_INBOX`."""
    projection: str | None = None
    """The file of the projection, from which lists are read. A process with this setting also prunes jobs, and
    queues jobs again that have lost their message. None: a file in the user's cache directory, created for the
    first list."""
    prepared: bool = False
    """Whether an operator has created the streams and consumers, so that this process only uses them."""

    def __post_init__(self) -> None:
        """Refuse an unknown role."""
        if self.role is not None and self.role not in ROLES:
            raise EngineUnavailable(
                engine=f"role {self.role!r}",
                reason="there is no such role",
                remedy=f"use {', '.join(ROLES)}, or none",
            )

    @property
    def inbox(self) -> str:
        """Prefix of the subjects for replies."""
        return self.inbox_prefix or (DEFAULT_INBOX if self.role is None else inbox_of(self.prefix, self.role))

    @property
    def creates_streams(self) -> bool:
        """Whether this process creates missing streams and updates outdated ones."""
        return not self.prepared and self.role in (None, "operator")

    @property
    def creates_consumers(self) -> bool:
        """Whether this process creates missing consumers."""
        return not self.prepared and self.may_claim

    @property
    def may_claim(self) -> bool:
        """Whether this process may run a worker."""
        return self.role in (None, "worker")

    @property
    def may_purge(self) -> bool:
        """Whether this process may empty subjects."""
        return self.role != "submitter"

    def __repr__(self) -> str:
        """Return the settings without secrets, which must not appear in a log."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        hidden = {name: "..." for name in SECRETS if shown[name] is not None}
        fields = ", ".join(f"{name}={value!r}" for name, value in (shown | hidden).items())
        return f"NatsSettings({fields})"


def parse_url(url: str, settings: NatsSettings) -> tuple[list[str], NatsSettings]:
    """Return the servers that a URL names, and the settings, updated with those of its query."""
    address, _, query = url.partition("?")
    servers = [_with_scheme(part.strip(), url) for part in address.split(",") if part.strip()]
    if not servers or not all(map(_is_address, servers)):
        raise EngineUnavailable(
            engine=f"url {without_password(url)!r}",
            reason="it names no server",
            remedy="write nats://host:4222, several servers with commas: nats://a:4222,b:4222",
        )
    return servers, replace(settings, **_read_query(query, url))


def _is_address(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False


def _with_scheme(server: str, url: str) -> str:
    if "://" in server:
        return server
    return f"{urlsplit(url).scheme}://{server}"


def _read_query(query: str, url: str) -> dict[str, Any]:
    readers: dict[str, Any] = {
        "prefix": str,
        "replicas": int,
        "lease": float,
        "timeout": float,
        "projection": str,
        "role": str,
    }
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        try:
            found[name] = readers[name](value)
        except (KeyError, ValueError):
            raise EngineUnavailable(
                engine=f"url {without_password(url.partition('?')[0])!r}",
                reason=f"the setting {name}={value!r} is unknown or invalid",
                remedy=f"settings in a URL are {', '.join(readers)}; the rest goes into nats=NatsSettings(...)",
            ) from None
    return found


def without_password(url: str) -> str:
    """Return a URL without user, password and token, for display."""
    return re.sub(r"//[^/@?]*@", "//...@", re.sub(r",[^/@?,]*@", ",...@", url))


def without_secrets(servers: list[str]) -> str:
    """Return the addresses of servers without credentials, for display."""
    return ",".join(f"{parts.hostname}:{parts.port or 4222}" for parts in map(urlsplit, servers))
