"""The name of a store by which workers and those who ask for them mean the same one, without opening it."""

from __future__ import annotations

from mainspring.engines.nats.settings import NatsSettings, parse_url, without_secrets
from mainspring.urls import MEMORY, SQLITE, is_sqlite, to_path


def store_of(url: str) -> str:
    """Name a store: an absolute path, or servers; nothing secret is in it."""
    if is_sqlite(url):
        return f"{SQLITE}{to_path(url).resolve()}"
    if url == MEMORY:
        return url
    servers, _ = parse_url(url, NatsSettings())
    return f"nats://{','.join(sorted(without_secrets(servers).split(',')))}"
