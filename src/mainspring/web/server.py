"""Runs the HTTP server under uvicorn, on a thread with an event loop of its own.

So a worker in the same process and the server do not wait for each other, and the main thread handles signals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from socket import socket
from threading import Thread
from types import TracebackType

import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER

from mainspring.security.asgi_types import AsgiApp
from mainspring.security.http_limits import HttpLimits
from mainspring.web.addresses import Listener
from mainspring.web.guard import RequestGuard
from mainspring.web.protocol import LimitedProtocol

JOIN_MARGIN_SECONDS = 5.0
CHECK_SECONDS = 0.1  # how often a server that stops checks whether it must hurry
READ_TURNS = 8  # turns of the event loop within which it reads a request of a connection that waits for `accept`

logger = logging.getLogger("mainspring.http")


class _Server(uvicorn.Server):
    """The server of uvicorn, with a stop that answers each request whose header had arrived before.

    uvicorn closes its sockets and the idle connections at once. A client that has sent a request already, which
    the event loop has not read, would see its connection reset. So the loop first accepts the connections that
    wait, and reads what has arrived.

    It drops its connections as soon as it must not wait for requests any more. Since Python 3.12, `asyncio` waits
    for the end of all connections when a server is closed, and uvicorn waits for that even if `force_exit` is set.
    """

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._end_streams = end_streams  # ends answers for which a stopping server would wait in vain

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        if self._end_streams is not None:
            self._end_streams()
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]
        await _take_turns()  # accepts connections that wait
        for server in self.servers:
            server.close()
        await _take_turns()  # reads the requests of these, and of all others
        stopping = asyncio.get_running_loop().create_task(super().shutdown(sockets))
        while not stopping.done():
            if self.force_exit:
                for connection in list(self.server_state.connections):
                    if connection.transport is not None:
                        connection.transport.abort()
            await asyncio.wait([stopping], timeout=CHECK_SECONDS)
        await stopping


async def _take_turns() -> None:
    """Let the event loop run a few times, in which it accepts new connections and reads data that have arrived."""
    for _ in range(READ_TURNS):
        await asyncio.sleep(0)


class HttpServer:
    """An HTTP server that runs on its own thread during a `with` block.

    At the end of the block it answers the requests whose header has arrived, for at most `grace_seconds`.

    - `app`: the ASGI application
    - `listener`: the open sockets, which the server closes
    - `limits`: the largest numbers and sizes and the longest times; None for the defaults
    """

    def __init__(self, app: AsgiApp, listener: Listener, *, limits: HttpLimits | None = None) -> None:
        limits = limits or HttpLimits()
        self._limits = limits
        self._listener = listener
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # it tells its start and end with INFO
        config = uvicorn.Config(
            app,
            http=LimitedProtocol.with_limits(limits),
            ws="none",
            loop="asyncio",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=limits.max_header,
            timeout_keep_alive=round(limits.idle_seconds) or 1,
            timeout_graceful_shutdown=round(limits.grace_seconds) or 1,
        )
        self._server = _Server(config, app.end_streams if isinstance(app, RequestGuard) else None)
        self._thread = Thread(target=self._run, name="mainspring-http", daemon=True)

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(self._limits.grace_seconds + JOIN_MARGIN_SECONDS)
        if self._thread.is_alive():
            logger.warning(
                "the HTTP server did not stop within %g s; requests in progress are dropped when the process ends",
                self._limits.grace_seconds,
            )

    def hurry(self) -> None:
        """Stop now, and drop requests that are not answered yet. Any thread may call this."""
        self._server.force_exit = True
        self._server.should_exit = True

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=self._listener.sockets))
        except BaseException:  # a thread has no caller that could handle it
            logger.exception("the HTTP server has failed; the process goes on without it")
        finally:
            self._listener.close()
