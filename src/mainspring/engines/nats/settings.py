"""Settings of the NATS engine, and the URLs that name servers, credentials and settings.

nats://host:4222                     several servers with commas: nats://a:4222,b:4222
nats://user:password@host, nats://token@host, tls://host
?prefix=shop&replicas=3&lease=20&timeout=10&role=worker&certificates=FOLDER   settings, below
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
from mainspring.security.certificates import client_context

SCHEMES = ("nats://", "tls://")
SECRETS = ("password", "token", "nkeys_seed")
DEFAULT_LEASE = 20.0
DEFAULT_TIMEOUT = 10.0
DEFAULT_INBOX = "_INBOX"
Role: TypeAlias = Literal["submitter", "worker", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)


def inbox_of(prefix: str, role: Role) -> str:
    """Return the prefix of the subjects on which processes of a role get replies.

    Processes of other roles may not subscribe to these subjects.
    """
    return f"{DEFAULT_INBOX}_{prefix}_{role}"


class NatsSettings(Struct, frozen=True, kw_only=True):
    """Settings of the NATS engine, for `Mainspring(url, nats=NatsSettings(...))`."""

    prefix: str = DEFAULT_PREFIX
    """The first part of all names on the server. Applications with different prefixes do not see each other."""
    replicas: int | None = None
    """On how many servers of a cluster each message is stored: 1, 3 or 5.

    None keeps the number of an existing stream; a new stream gets 1.
    """
    lease: float = DEFAULT_LEASE
    """After this many seconds without a heartbeat of a worker, other workers may claim its jobs."""
    timeout: float | None = DEFAULT_TIMEOUT
    """Seconds that a call waits for the server before it raises `EngineUnavailable`; None for no limit."""
    user: str | None = None
    """The name of the user, for servers with passwords."""
    password: str | None = None
    """The password of the user."""
    token: str | None = None
    """The token, for servers with one token for all clients."""
    credentials: str | None = None
    """The path of a file with a JWT and its key (`.creds`)."""
    nkeys_seed: str | None = None
    """The seed of an nkey, as text: `SU...`."""
    tls: ssl.SSLContext | None = None
    """A TLS context, for servers with a private certificate authority or that require a client certificate."""
    certificates: str | None = None
    """A client's folder of `mainspring nats certificates`: the connection uses TLS with these files.

    The process reads the files when it connects first. Use it instead of `tls`.
    """
    role: Role | None = None
    """The role whose permissions this process has, see `permissions.py`; None for all permissions.

    The process sends only requests that the role allows.
    """
    inbox_prefix: str | None = None
    """The prefix of the subjects that receive replies; None for that of the role, or `_INBOX`."""
    projection: str | None = None
    """The file of the projection, a local copy of the jobs, from which lists are read.

    A process with this setting also prunes jobs, and queues jobs again that have lost their message. None means a
    file in the user's cache directory, created for the first list.
    """
    prepared: bool = False
    """Whether the streams and consumers exist already, so that this process creates none."""

    def __post_init__(self) -> None:
        """Raise `EngineUnavailable` for an unknown role, or if two settings say which certificates to use."""
        if self.role is not None and self.role not in ROLES:
            raise EngineUnavailable(
                engine=f"role {self.role!r}",
                reason="there is no such role",
                remedy=f"use {', '.join(ROLES)}, or none",
            )
        if self.tls is not None and self.certificates is not None:
            raise EngineUnavailable(
                engine=f"certificates {self.certificates!r}",
                reason="tls= was given, too, and each says which certificates to use",
                remedy="give one of them",
            )

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of this process; None without TLS settings.

        Raise `EngineUnavailable` if the files of `certificates` cannot be used.
        """
        if self.certificates is None:
            return self.tls
        try:
            return client_context(self.certificates)
        except OSError as error:
            raise EngineUnavailable(
                engine=f"certificates {self.certificates!r}",
                reason=f"the files cannot be used: {error}",
                remedy="give a client's folder of `mainspring nats certificates`, which this user can read",
            ) from error

    @property
    def inbox(self) -> str:
        """The prefix of the subjects that receive replies."""
        return self.inbox_prefix or (DEFAULT_INBOX if self.role is None else inbox_of(self.prefix, self.role))

    @property
    def creates_streams(self) -> bool:
        """Whether this process creates streams that are missing on the server, and updates outdated ones."""
        return not self.prepared and self.role in (None, "operator")

    @property
    def creates_consumers(self) -> bool:
        """Whether this process creates consumers that are missing on the server."""
        return not self.prepared and self.may_claim

    @property
    def may_claim(self) -> bool:
        """Whether the role of this process may claim jobs, and so run a worker."""
        return self.role in (None, "worker")

    @property
    def may_purge(self) -> bool:
        """Whether the role of this process may purge subjects on the server."""
        return self.role != "submitter"

    def __repr__(self) -> str:
        """Return the settings as text, without secrets, because logs may contain it."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        hidden = {name: "..." for name in SECRETS if shown[name] is not None}
        fields = ", ".join(f"{name}={value!r}" for name, value in (shown | hidden).items())
        return f"NatsSettings({fields})"


def parse_url(url: str, settings: NatsSettings) -> tuple[list[str], NatsSettings]:
    """Return the servers that a URL names, and the settings with the values of the URL's query.

    Raise `EngineUnavailable` if the URL names no valid server, or an unknown or invalid setting.
    """
    address, _, query = url.partition("?")
    servers = [_with_scheme(part.strip(), url) for part in address.split(",") if part.strip()]
    if not servers or not all(map(_is_address, servers)):
        raise EngineUnavailable(
            engine=f"url {without_password(url)!r}",
            reason="it names no server, or an invalid one",
            remedy="write nats://host:4222; separate several servers by commas: nats://a:4222,b:4222",
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
        "certificates": str,
    }
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        # The value of an unknown setting is not shown: it may be a password.
        is_known = name in readers
        problem = f"the setting {name}={value!r} is invalid" if is_known else f"there is no setting {name!r}"
        try:
            found[name] = readers[name](value)
        except (KeyError, ValueError):
            raise EngineUnavailable(
                engine=f"url {without_password(url.partition('?')[0])!r}",
                reason=problem,
                remedy=f"settings in a URL are {', '.join(readers)}; the rest goes into nats=NatsSettings(...)",
            ) from None
    return found


def without_password(url: str) -> str:
    """Return a URL without user, password and token, for display."""
    return re.sub(r"//[^/@?]*@", "//...@", re.sub(r",[^/@?,]*@", ",...@", url))


def without_secrets(servers: list[str]) -> str:
    """Return the addresses of servers without credentials, for display."""
    return ",".join(f"{parts.hostname}:{parts.port or 4222}" for parts in map(urlsplit, servers))
