"""Sends requests to an ASGI application without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from mainspring.security.asgi_types import AsgiApp, AsgiMessage
from tests.support import PATIENCE

PROBLEM = "urn:mainspring:problem:"


@dataclass(frozen=True)
class Answer:
    """The answer of an application."""

    status: int
    headers: dict[str, str]
    body: bytes
    cookies: tuple[str, ...] = ()
    """All `Set-Cookie` headers."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The last part of the type of a problem; the body has all that a problem needs."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == self.status
        assert self.json["title"]
        assert self.json["detail"]
        assert self.json["request_id"] == self.headers["x-request-id"]
        return str(self.json["type"]).removeprefix(PROBLEM)


async def request_async(
    app: AsgiApp,
    path: str,
    *,
    method: str = "GET",
    token: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    chunks: Iterable[bytes] | None = None,
    host: str | None = "testserver",
    root_path: str = "",
) -> Answer:
    sent = [*headers]
    if host is not None:
        sent.append(("host", host))
    if token is not None:
        sent.append(("authorization", f"Bearer {token}"))
    place, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(root_path + place),
        "raw_path": (root_path + place).encode(),
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in sent],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
    }
    parts = [body] if chunks is None else list(chunks)
    incoming = [
        {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
        for number, part in enumerate(parts)
    ]
    answer: list[AsgiMessage] = []

    async def receive() -> AsgiMessage:
        if not incoming and method != "GET":
            await asyncio.Event().wait()  # the client stays connected until it has the answer
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}  # ends a stream

    async def send(message: AsgiMessage) -> None:
        answer.append(message)

    async with asyncio.timeout(PATIENCE):
        await app(scope, receive, send)
    start = answer[0]
    received = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    cookies = tuple(value.decode("latin-1") for name, value in start["headers"] if name.lower() == b"set-cookie")
    return Answer(start["status"], received, b"".join(message.get("body", b"") for message in answer[1:]), cookies)


def request(app: AsgiApp, path: str, **options: Any) -> Answer:
    """Send a request, and return the answer."""
    return asyncio.run(request_async(app, path, **options))
