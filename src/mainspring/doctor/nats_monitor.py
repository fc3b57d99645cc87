"""The monitoring port of a NATS server, which tells what clients are not told."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from mainspring.doctor.findings import Finding, warning

PORT = 8222
PATIENCE = 2.0


def ask_monitor(url: str) -> dict[str, Any]:
    """Return what a server tells of itself; raises `ConnectionError` if there is none."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise ConnectionError("it is no address")
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    with closing(make(parts.hostname, parts.port or PORT, timeout=PATIENCE)) as connection:
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/varz")
            response = connection.getresponse()
            answer = json.loads(response.read()) if response.status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
    if not isinstance(answer, dict):
        raise ConnectionError(f"it answered with status {response.status}")
    return answer


def no_monitor(url: str, problem: ConnectionError) -> Finding:
    """Say that nobody answers there."""
    return warning(
        f"there is no monitor of a NATS server at {url!r}: {problem}",
        "What only the server itself tells stays unknown: how often it syncs, how much room it has.",
        "Give the address that http: or -m of nats-server names, as in --monitor http://127.0.0.1:8222",
    )
