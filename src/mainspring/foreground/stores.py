"""The name of a store by which workers and those who ask for them mean the same one, without opening it."""

from __future__ import annotations

from pathlib import Path

from mainspring.engines.nats.settings import NatsSettings, parse_url, without_secrets

SQLITE = "sqlite:///"
MEMORY = "memory://"


def store_of(url: str) -> str:
    """Name a store: an absolute path, or servers; nothing secret is in it."""
    if url.startswith(SQLITE):
        return f"{SQLITE}{Path(url.removeprefix(SQLITE)).resolve()}"
    if url == MEMORY:
        return url
    servers, _ = parse_url(url, NatsSettings())
    return f"nats://{','.join(sorted(without_secrets(servers).split(',')))}"
