"""A client of `GET /api/v1/events` on a real socket, and servers for it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from mainspring import Mainspring
from mainspring.security.http_limits import HttpLimits
from mainspring.web.addresses import HttpAddress, open_listener
from mainspring.web.asgi import build
from mainspring.web.credentials import OpenAuthenticator, TokenAuthenticator
from mainspring.web.event_hub import EventHub
from mainspring.web.server import HttpServer
from tests.support import PATIENCE

PATH = "/api/v1/events"


class EventServer:
    """A running server with the events of an application."""

    def __init__(self, server: HttpServer, port: int, hub: EventHub) -> None:
        self.server = server
        self.port = port
        self.hub = hub

    def stop(self) -> None:
        """Stop the server, and wait for its end."""
        self.server.__exit__(None, None, None)

    def follow(
        self, query: str = "", *, token: str | None = None, last_id: str | None = None, method: str = "GET"
    ) -> EventClient:
        """Connect a client."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, PATH + query, headers=headers)
        return EventClient(connection, connection.getresponse())


@contextmanager
def event_server(
    app: Mainspring, *, tokens: bool = False, send_buffer: int | None = None, **limits: Any
) -> Iterator[EventServer]:
    """Serve the events of an application, to every caller or to those with a token.

    `send_buffer` is the number of bytes that the kernel keeps for a client which does not read.
    """
    listener = open_listener(HttpAddress("127.0.0.1", 0))
    if send_buffer is not None:
        for each in listener.sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    authenticator = TokenAuthenticator(app) if tokens else OpenAuthenticator()
    asgi = build(app, authenticator, limits=HttpLimits(**limits))
    hub = asgi._app.state.event_hub  # type: ignore[attr-defined] # of the application inside of the guard
    with HttpServer(asgi, listener, limits=HttpLimits(**limits)) as server:
        yield EventServer(server, listener.address.port, hub)


@dataclass(frozen=True)
class Received:
    """A server-sent event."""

    id: str
    name: str
    data: Any

    @property
    def story(self) -> tuple[str, str]:
        """The kind of the event and the id of its job."""
        assert self.name == "message"
        return self.data["kind"], self.data["job_id"]


class EventClient:
    """A client that reads server-sent events, as the standard asks for."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._connection = connection
        self.answer = answer
        self.status = answer.status
        self.last_id = ""
        self.comments: list[str] = []
        self.retry: int | None = None

    def __enter__(self) -> EventClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        self.answer.close()
        self._connection.close()

    @property
    def problem(self) -> dict[str, Any]:
        """The problem that the server has answered instead of a stream."""
        assert self.answer.headers["content-type"] == "application/problem+json"
        return dict(json.loads(self.answer.read()))

    def read_block(self) -> Received | None:
        """Read up to the next empty line; return the event, or None if the lines had none."""
        data: list[str] = []
        name = "message"
        while True:
            line = self.answer.readline()
            if not line:
                raise EOFError("the server has ended the stream")
            text = line.decode().rstrip("\n")
            if not text:
                break
            field, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if not field:
                self.comments.append(value)
            elif field == "id":
                self.last_id = value
            elif field == "event":
                name = value
            elif field == "retry":
                self.retry = int(value)
            else:
                assert field == "data", text
                data.append(value)
        return Received(self.last_id, name, json.loads("\n".join(data))) if data else None

    def begin(self) -> EventClient:
        """Read the first lines, which have no event."""
        assert self.status == 200, self.problem
        assert self.read_block() is None
        return self

    def next(self) -> Received:
        """Wait for the next event."""
        while True:
            found = self.read_block()
            if found is not None:
                return found

    def stories(self, count: int) -> list[tuple[str, str]]:
        """Wait for some events; return the kinds and the ids of their jobs."""
        return [self.next().story for _ in range(count)]

    def wait_for_end(self) -> None:
        """Wait until the server has ended the stream."""
        try:
            while True:
                self.next()
        except EOFError:
            pass
