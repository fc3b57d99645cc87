"""How a URL says where jobs are kept."""

from __future__ import annotations

import os
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


def look_at(path: Path) -> os.stat_result | None:
    """Return the status of a file, None if there is none; `PermissionError` if this user may not look.

    `Path.exists` answers False for a file in a closed folder, as of Python 3.14. That is another fault than a
    missing file, and has another remedy.
    """
    try:
        return path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None


def require_sight(path: Path) -> os.stat_result | None:
    """Do as `look_at`, but raise `EngineUnavailable` if this user may not look."""
    try:
        return look_at(path)
    except PermissionError as error:
        raise EngineUnavailable(
            engine=f"SQLite file {path}",
            reason=f"user {os.geteuid()} may not look at it ({error})",
            remedy="give this user the right to enter the directory, or run as the user who owns the file",
        ) from error
