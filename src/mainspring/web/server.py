"""Runs the HTTP server under uvicorn, on a thread with an event loop of its own.

So a worker in the same process and the server do not wait for each other, and the command handles signals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from socket import socket
from threading import Thread
from types import TracebackType

import uvicorn

from mainspring.security.asgi_types import AsgiApp
from mainspring.security.http_limits import HttpLimits
from mainspring.web.addresses import Listener
from mainspring.web.guard import RequestGuard
from mainspring.web.protocol import LimitedProtocol

JOIN_MARGIN_SECONDS = 5.0
CHECK_SECONDS = 0.1  # how often a server that stops checks whether it must hurry

logger = logging.getLogger("mainspring.http")


class _Server(uvicorn.Server):
    """The server of uvicorn, which drops its connections as soon as it must not wait for requests any more.

    Since Python 3.12, `asyncio` waits for the end of all connections when a server is closed, and uvicorn waits
    for that even if `force_exit` is set.
    """

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._end_streams = end_streams  # ends answers for which a stopping server would wait in vain

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        if self._end_streams is not None:
            self._end_streams()
        stopping = asyncio.get_running_loop().create_task(super().shutdown(sockets))
        while not stopping.done():
            if self.force_exit:
                for connection in list(self.server_state.connections):
                    if connection.transport is not None:
                        connection.transport.abort()
            await asyncio.wait([stopping], timeout=CHECK_SECONDS)
        await stopping


class HttpServer:
    """A server that runs during a `with` block. At the end it answers the requests that it has accepted.

    - `app`: the ASGI application
    - `listener`: the open sockets, which the server closes
    - `limits`: numbers, sizes and times
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
            logger.warning("the HTTP server did not stop within %g s", self._limits.grace_seconds)

    def hurry(self) -> None:
        """Do not wait for requests any more. Any thread may call it."""
        self._server.force_exit = True
        self._server.should_exit = True

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=self._listener.sockets))
        except BaseException:  # a thread has no caller that could handle it
            logger.exception("the HTTP server has failed; the process goes on without it")
        finally:
            self._listener.close()
