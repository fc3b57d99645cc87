"""Streams of pages: sends the live blocks of a page that have changed, at most once a second.

Browsers that show the same page with the same parameters and the same rights share one rendering. A stream ends if
the client is gone, its session has ended, or the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress

import msgspec
from starlette.responses import Response

from mainspring.errors import MainspringError
from mainspring.security.asgi_types import AsgiScope, Receive, Send
from mainspring.web.api.endpoint import EVENT_STREAM
from mainspring.web.dashboard.callers import Visitor
from mainspring.web.dashboard.rendering import fill_csrf
from mainspring.web.dashboard.snapshots import retrieve_error
from mainspring.web.problems import Refused, refuse

INTERVAL_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
CHECK_SECONDS = 5.0
RETRY_MILLISECONDS = 2_000
HEADERS = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

Blocks = Mapping[str, str]


class LiveStreams:
    """The live streams of all open pages of one server. Only its event loop may use this, except for `close`.

    - `max_streams`: the largest number of streams at once
    - `interval`: the seconds between two updates of a page
    """

    def __init__(self, *, max_streams: int, interval: float = INTERVAL_SECONDS) -> None:
        self._max_streams = max_streams
        self.interval = interval
        self._ends: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._shared: dict[Hashable, tuple[float, asyncio.Task[Blocks]]] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._ends)

    def enter(self) -> asyncio.Event:
        """Count a new stream, and return the event that ends it.

        Raises `Refused` if there are too many streams, or if the server stops.
        """
        if self._is_closed:
            raise refuse(503, "stopping", "the server stops; connect again in a moment", retry_after="1")
        if len(self._ends) >= self._max_streams:
            raise refuse(
                503,
                "too-many-event-readers",
                f"{self._max_streams:,} pages are open, which is the limit of this server; close some, or raise "
                "event_readers of HttpLimits",
                retry_after="10",
            )
        end = asyncio.Event()
        self._ends[end] = asyncio.get_running_loop()
        return end

    def leave(self, end: asyncio.Event) -> None:
        """Stop counting a stream, which `enter` has returned the event of."""
        self._ends.pop(end, None)
        if not self._ends:
            self._shared.clear()

    async def blocks(self, key: Hashable, render: Callable[[], Awaitable[Blocks]]) -> Blocks:
        """Return the blocks that `render` makes, or those that another stream with the same key made just now."""
        loop = asyncio.get_running_loop()
        found = self._shared.get(key)
        if found is not None and found[1].get_loop() is loop:
            is_recent = loop.time() - found[0] < self.interval / 2
            if not found[1].done() or (is_recent and found[1].exception() is None):
                return await asyncio.shield(found[1])
        for old in [key for key, (began, _) in self._shared.items() if loop.time() - began > 10 * self.interval]:
            del self._shared[old]
        task = asyncio.ensure_future(render())
        task.add_done_callback(retrieve_error)
        self._shared[key] = (loop.time(), task)
        return await asyncio.shield(task)

    def open(self) -> None:
        """Accept streams again, after `close`."""
        self._is_closed = False

    def close(self) -> None:
        """End all streams, and refuse new ones until `open`. Any thread may call this."""
        self._is_closed = True
        for end, loop in list(self._ends.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(end.set)


class LiveResponse(Response):
    """The live stream of one open page in one browser, as server-sent events.

    - `streams`: counts the stream, and shares rendered blocks with other streams
    - `visitor`: the browser
    - `check`: returns the browser again, with its present rights; raises `Refused` if it is not logged in
    - `render`: returns the live blocks as this visitor may see them
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        streams: LiveStreams,
        visitor: Visitor,
        check: Callable[[], Awaitable[Visitor]],
        render: Callable[[Visitor], Awaitable[Blocks]],
    ) -> None:
        super().__init__()
        self._streams = streams
        self._visitor = visitor
        self._check = check
        self._render = render

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Send changed blocks until the browser is gone, its session has ended, or the server stops."""
        end = self._streams.enter()
        loop = asyncio.get_running_loop()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            tasks: list[asyncio.Task[object]] = [
                loop.create_task(self._send_updates(send)),
                loop.create_task(_gone(receive)),
                loop.create_task(end.wait()),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        finally:
            self._streams.leave(end)
        with suppress(OSError):  # the client is gone
            for task in tasks:
                if not task.cancelled():
                    task.result()
            await send({"type": "http.response.body", "body": b""})

    async def _send_updates(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        body = b"retry: %d\n\n" % RETRY_MILLISECONDS
        checked = sent = now()
        last: dict[str, str] = {}
        visitor = self._visitor
        while True:
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                sent, body = now(), b""
            await asyncio.sleep(self._streams.interval)
            if now() - checked > CHECK_SECONDS:
                try:
                    visitor, checked = await self._check(), now()
                except (Refused, MainspringError):
                    await send(
                        {"type": "http.response.body", "body": b"event: end\ndata: {}\n\n", "more_body": True}
                    )
                    return
            try:
                blocks = await self._render(visitor)
            except (Refused, MainspringError):  # the store may answer again; the page says how old it is
                continue
            changed = {name: text for name, text in blocks.items() if last.get(name) != text}
            last |= changed
            if changed:
                data = msgspec.json.encode(
                    {name: fill_csrf(text, visitor.csrf_token) for name, text in changed.items()}
                )
                body = b"event: blocks\ndata: %b\n\n" % data
            elif now() - sent >= KEEP_ALIVE_SECONDS:
                body = b": keep-alive\n\n"


async def _gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
