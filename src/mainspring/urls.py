"""How a URL says where jobs are kept."""

from __future__ import annotations

from pathlib import Path

from mainspring.errors import EngineUnavailable

MEMORY = "memory://"
SQLITE = "sqlite:///"
NATS_SCHEMES = ("nats://", "tls://")


def require_url(url: str) -> str:
    """Return a URL that has an engine; `EngineUnavailable` if there is none for it."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a string such as 'sqlite:///orders.db', got {url!r}")
    if url == MEMORY or ((is_sqlite(url) or is_nats(url)) and url not in (SQLITE, *NATS_SCHEMES)):
        return url
    raise EngineUnavailable(
        engine=f"url {url!r}",
        reason="no engine is known for it",
        remedy="use 'sqlite:///orders.db' (relative), 'sqlite:////srv/orders.db' (absolute), 'nats://host:4222' "
        "or 'memory://'",
    )


def is_sqlite(url: str) -> bool:
    """Answer whether jobs are kept in a file."""
    return url.startswith(SQLITE)


def is_nats(url: str) -> bool:
    """Answer whether jobs are kept on NATS."""
    return url.startswith(NATS_SCHEMES)


def to_path(url: str) -> Path:
    """Return the file of a `sqlite:///` URL, as it stands there: relative or absolute."""
    return Path(url.removeprefix(SQLITE))
