"""A receiver of callbacks: an HTTP server on a free port, which records requests and answers as a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from typing import Any

from aiohttp import web

from tests.support import PATIENCE


@dataclass(frozen=True)
class Received:
    """A request that the receiver got."""

    method: str
    path: str
    headers: Mapping[str, str]
    """The headers, with names in lower case."""
    body: bytes
    sni: str | None
    """The name for which TLS was set up; None without TLS."""


class Hold:
    """Holds answers back until a test releases them. Any thread may call `set`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_set = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def set(self) -> None:
        """Release the answers, those to come included."""
        with self._lock:
            self._is_set = True
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        """Wait until the answers are released."""
        event = asyncio.Event()
        with self._lock:
            if self._is_set:
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        await event.wait()


@dataclass
class Reply:
    """An answer. With `hold`, it is sent when that is released."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hold: Hold | None = None


class Receiver:
    """An HTTP server. `answer` gets each request and returns the reply; it runs on the loop of the server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[Received] = []
        self.answer: Callable[[Received], Reply] = lambda _: Reply()
        self.in_flight = 0
        self.most_in_flight = 0
        self.sni: str | None = None
        self._changed = Condition()

    def url(self, path: str = "/hooks/orders", *, host: str = "localhost", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def wait_for(self, is_true: Callable[[], bool], why: str) -> None:
        """Wait until something is true after a request."""
        with self._changed:
            assert self._changed.wait_for(is_true, PATIENCE), why

    def wait_for_requests(self, count: int) -> list[Received]:
        """Wait until this many requests have arrived, and return all."""
        self.wait_for(lambda: len(self.requests) >= count, f"fewer than {count} requests arrived")
        return list(self.requests)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        got = Received(
            request.method,
            request.path_qs,
            {name.lower(): value for name, value in request.headers.items()},
            await request.read(),
            self.sni,
        )
        reply = self.answer(got)
        with self._changed:
            self.requests.append(got)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self._changed.notify_all()
        try:
            if reply.hold is not None:
                await reply.hold.wait()
        finally:
            with self._changed:
                self.in_flight -= 1
                self._changed.notify_all()
        return web.Response(status=reply.status, headers=reply.headers, body=reply.body)


@contextmanager
def receiver(*, context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver on 127.0.0.1 until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="receiver", daemon=True)
    thread.start()

    async def start() -> tuple[Receiver, web.ServerRunner]:
        made = Receiver(0)
        runner = web.ServerRunner(
            web.Server(made.serve, access_log=None, handler_cancellation=True), shutdown_timeout=0
        )
        await runner.setup()
        if context is not None:

            def note_name(_socket: Any, name: str, _context: Any) -> None:
                made.sni = name

            context.sni_callback = note_name
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=2_048)
        await site.start()
        made.port = runner.addresses[0][1]
        return made, runner

    made, runner = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE)
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()
