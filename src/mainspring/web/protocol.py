"""The HTTP protocol of the server: uvicorn's, on the parser h11, with limits that uvicorn has no options for.

- A request whose header does not arrive in time is answered with 408, one that is too large with 431.
- A client that reads nothing of its answer, or never ends a request that was answered, is disconnected.
- Beyond the number of connections, requests are answered with 503, except probes; twice beyond, connections are
  closed.
- An answer of a server that stops says that the connection ends.
- A connection is read in small pieces, and other connections have their turn after each. Otherwise the parser
  would need 0.2 s for one piece, if a client sends its body byte by byte as chunks.

Errors of the protocol are problems, as everywhere. h11 bounds the header, which the parser httptools does not.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mainspring.security.asgi_types import AsgiApp, AsgiScope, Receive, Send
from mainspring.security.http_limits import HttpLimits
from mainspring.web.guard import PROBES, route_path
from mainspring.web.problems import MEDIA_TYPE, Problem

HEADER_TOO_LARGE = 431
READ_SIZE = 16_384
"""How many bytes of a connection are read and parsed in one turn of the event loop; by default asyncio reads
256 KiB."""
BODY_READ_SIZE = 4 * READ_SIZE
"""The same for the body of a request whose length is known: the parser needs no more time for a larger piece."""
WRITABLE = (h11.IDLE, h11.SEND_RESPONSE)


class LimitedProtocol(H11Protocol, asyncio.BufferedProtocol):
    """One connection of a client, with the limits of the server. `with_limits` makes the class for a server."""

    limits = HttpLimits()
    read_buffer = memoryview(bytearray(BODY_READ_SIZE))
    """What was read last. All connections of a server share it, because each piece is parsed at once."""

    @classmethod
    def with_limits(cls, limits: HttpLimits) -> type[LimitedProtocol]:
        """Return a subclass whose connections have these limits."""
        return type(cls.__name__, (cls,), {"limits": limits, "read_buffer": memoryview(bytearray(BODY_READ_SIZE))})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.access_log = False  # the log of uvicorn has the query, and with it the token of the printed link
        self._header_timer: asyncio.TimerHandle | None = None  # runs while the header of a request arrives
        self._write_timer: asyncio.TimerHandle | None = None  # runs while the client reads nothing
        self._linger_timer: asyncio.TimerHandle | None = None  # runs while an answered request goes on

    # -- the number of connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        number = len(self.connections)
        if number > 2 * self.limits.connections:
            transport.abort()
            return
        if number > self.limits.connections:
            self.app = _busy_app(self.app, self.limits.connections)
        self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header_timer, self._write_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection after the answer to its current request. A server that stops calls this."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, unlike its type says
        if cycle is not None and not cycle.response_started:
            # The client shall send its next request over another connection, and not into a closed one. A request
            # that arrives later has the header already.
            cycle.default_headers = self.server_state.default_headers
        super().shutdown()

    # -- slow and endless requests

    def get_buffer(self, sizehint: int) -> memoryview:
        is_body = self.conn.their_state is h11.SEND_BODY
        has_length = is_body and all(name != b"transfer-encoding" for name, _ in self.headers)
        return self.read_buffer if has_length else self.read_buffer[:READ_SIZE]

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.read_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._header_timer = _stopped(self._header_timer)
        elif self.conn.trailing_data[0]:
            self._expect_header()
        if self.conn.their_state is not h11.SEND_BODY:
            self._linger_timer = _stopped(self._linger_timer)

    def _expect_header(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.header_seconds, self._refuse_slow_header)

    def _refuse_slow_header(self) -> None:
        seconds = f"{self.limits.header_seconds:g} s"
        detail = f"the header of the request did not arrive within {seconds}; send it faster"
        self._send_problem(408, "header-too-slow", detail)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            # refused before its end, because it is too large, for example
            self._linger_timer = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    # -- slow readers

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_timer = _stopped(self._write_timer)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # closing waits until the client has read everything
        self._write_timer = self._write_timer or self.loop.call_later(
            self.limits.write_seconds, self.transport.abort
        )

    # -- errors

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no valid HTTP with 400, or one whose header is too large with 431.

        uvicorn calls this while it handles the error of the parser.
        """
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        if status == HEADER_TOO_LARGE:
            limit = self.limits.max_header
            detail = f"the header of the request has more than {limit:,} bytes, which is the limit; send less"
            self._send_problem(status, "header-too-large", detail)
        else:
            self._send_problem(400, "not-http", "the request is not valid HTTP/1.1; check the client")

    def _send_problem(self, status: int, name: str, detail: str) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state not in WRITABLE:  # an answer has begun
            self.transport.abort()
            return
        body = Problem(status=status, type=name, detail=detail).body()
        headers = [
            ("content-type", MEDIA_TYPE),
            ("content-length", str(len(body))),
            ("cache-control", "no-store"),
            ("connection", "close"),
        ]
        events = (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


def _stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Stop a timer, if there is one, and return None."""
    if timer is not None:
        timer.cancel()
    return None


def _busy_app(app: AsgiApp, limit: int) -> AsgiApp:
    """Return an application that answers 503 instead of `app`, except to probes."""
    problem = Problem(
        status=503,
        type="too-many-connections",
        detail=f"the server has {limit:,} connections, which is its limit; try again, and keep fewer connections",
    )

    async def serve(scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and route_path(scope) in PROBES:
            await app(scope, receive, send)
            return
        body = problem.body()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"retry-after", b"1"),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return serve
