"""Streams of pages: sends the live blocks of a page that have changed, at most once a second.

All open pages of a server are updated in rounds. A round renders each distinct page once: browsers that show the
same page with the same parameters and the same rights share its blocks and its encoded message. While the process
is busy, a round waits until the process has worked long enough on other things (`jobs.pace`), so that open pages
take a small share of its processor time, whatever a round costs. Without open pages there are no rounds.

A stream ends if the client is gone, its session has ended, or the server stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec
from starlette.responses import Response

from mainspring.clock import NANOSECONDS, thread_ns
from mainspring.errors import MainspringError
from mainspring.jobs.pace import Pace
from mainspring.jobs.periodic_reads import PeriodicReads
from mainspring.security.asgi_types import AsgiScope, Receive, Send
from mainspring.security.http_limits import HttpLimits
from mainspring.web.api.endpoint import EVENT_STREAM
from mainspring.web.api.events import CHECK_SECONDS
from mainspring.web.caller_shares import CallerShares
from mainspring.web.dashboard.callers import Visitor
from mainspring.web.dashboard.rendering import fill_csrf
from mainspring.web.problems import Refused, refuse

INTERVAL_SECONDS = 1.0
SHARE = 0.015
"""The largest share of the processor time of a busy process that rounds of updates take."""
POLLS = 4
"""How often in an interval a round that is not due yet looks whether it is."""
STALE_SECONDS = 2
"""A page whose numbers are older says how old they are."""
KEEP_ALIVE_SECONDS = 15.0
RETRY_MILLISECONDS = 2_000
HEADERS = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

Blocks = Mapping[str, str]
Render = Callable[[], Awaitable[Blocks]]
logger = logging.getLogger("mainspring.http")

EXPECTED_ERRORS = (Refused, MainspringError)
"""Errors after which the next round tries again: the store may answer then."""


class LivePage:
    """One page, with the parameters and the rights that its browsers share, and its last blocks.

    - `render`: returns the blocks
    """

    def __init__(self, render: Render) -> None:
        self.render = render
        self.readers = 0
        self.round = 0
        """How many rounds have rendered this page."""
        self.error: Exception | None = None
        """An error of the page itself, which ends its streams."""
        self.renewed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Is done when a round has rendered the page again, or the page has failed; then a new one replaces it."""
        self._blocks: Blocks = {}
        self._changed: Collection[str] = ()
        self._age = 0
        self._had_age = False
        self._messages: dict[bool, str] = {}  # encoded messages, by whether they have all blocks

    async def renew(self, reads: PeriodicReads) -> None:
        """Render the blocks, and wake the streams of the page.

        If the store fails or the page is refused, keep the last blocks and wake no stream: the next round tries
        again. Any other error is kept in `error`, and the streams are woken.
        """
        try:
            blocks = await self.render()
        except EXPECTED_ERRORS:
            return
        except Exception as error:  # each stream raises it
            self.error = error
        else:
            self._had_age, self._age = self._age > 0, _shown_age(reads.age_ns)
            self._changed = [name for name, text in blocks.items() if self._blocks.get(name) != text]
            self._blocks, self._messages = blocks, {}
            self.round += 1
        renewed, self.renewed = self.renewed, asyncio.get_running_loop().create_future()
        renewed.set_result(None)

    def message(self, *, has_last: bool) -> str:
        """Return the message for browsers, with a placeholder for the CSRF token; empty if there is none to send.

        The message has the changed blocks, or all of them, and the age of the numbers if they are or were old.

        - `has_last`: whether the browser has the blocks of the round before the last one
        """
        if has_last not in self._messages:
            names = self._changed if has_last else self._blocks
            text = ""
            if names:
                data = msgspec.json.encode({name: self._blocks[name] for name in names}).decode()
                text = f"event: blocks\ndata: {data}\n\n"
            if self._age or self._had_age:
                text += f"event: age\ndata: {self._age}\n\n"
            self._messages[has_last] = text
        return self._messages[has_last]


def _shown_age(age_ns: int) -> int:
    """Return the age of the numbers in seconds; 0 if they are recent."""
    seconds = age_ns // NANOSECONDS
    return 0 if seconds < STALE_SECONDS else seconds


class UpdateRounds:
    """Updates all open pages of one event loop, one after the other, in rounds.

    Only that event loop uses this object.

    - `pace`: decides when the next round may begin
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._pages: dict[Hashable, LivePage] = {}
        self._task: asyncio.Task[None] | None = None
        self._reads = PeriodicReads()

    @contextmanager
    def reading(self, key: Hashable, render: Render) -> Iterator[LivePage]:
        """Let a stream read a page within the block; rounds render a page as long as it has a stream.

        - `key`: identifies the page, with its parameters and rights; streams with equal keys share it
        - `render`: returns its blocks; only that of the first stream is used
        """
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = LivePage(render)
        page.readers += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield page
        finally:
            page.readers -= 1
            if not page.readers and self._pages.get(key) is page:
                del self._pages[key]
            if not self._pages and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        seconds = self.pace.interval
        while True:
            await asyncio.sleep(seconds)
            seconds = self.pace.interval / POLLS
            if self.pace.is_due():
                try:
                    await self.update()
                except Exception:  # the next round may succeed
                    logger.exception("a round of updates for open pages failed")
                seconds = self.pace.interval

    async def update(self) -> None:
        """Render all open pages once."""
        began = thread_ns()  # includes other requests that the event loop serves meanwhile
        with self._reads.round():
            for page in list(self._pages.values()):
                await page.renew(self._reads)
        self.pace.end(thread_ns() - began + self._reads.take_spent(), self._reads.availability)


class LiveStreams:
    """The live streams of all open pages of one server. Only its event loop may use this, except for `close`.

    - `limits`: how many streams there may be at once, and of each caller, as `event_readers` says
    - `interval`: the least number of seconds between two updates of a page
    """

    def __init__(self, limits: HttpLimits, *, interval: float = INTERVAL_SECONDS) -> None:
        self._max_streams = limits.event_readers
        self.shares = CallerShares(
            limits, limit="event_readers", problem="too-many-own-readers", what="open pages"
        )
        """Counts the streams of each caller."""
        self.interval = interval
        self._ends: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._rounds: dict[asyncio.AbstractEventLoop, UpdateRounds] = {}
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
        """Stop counting the stream whose event `enter` has returned; do nothing if it is not counted."""
        loop = self._ends.pop(end, None)
        if loop is not None and loop not in self._ends.values():
            self._rounds.pop(loop, None)

    def rounds(self) -> UpdateRounds:
        """Return the rounds of the running event loop; make them at the first call."""
        loop = asyncio.get_running_loop()
        if loop not in self._rounds:
            self._rounds[loop] = UpdateRounds(Pace(share=SHARE, interval=self.interval))
        return self._rounds[loop]

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
    - `share`: returns the key of the page as this visitor may see it, and a function that renders its live blocks
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        streams: LiveStreams,
        visitor: Visitor,
        check: Callable[[], Awaitable[Visitor]],
        share: Callable[[Visitor], tuple[Hashable, Render]],
    ) -> None:
        super().__init__()
        self._streams = streams
        self._visitor = visitor
        self._check = check
        self._share = share

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Send changed blocks until the browser is gone, its session has ended, or the server stops.

        Raises `Refused` if there are too many streams or the server stops already, and the error of a page that
        cannot be rendered.
        """
        with self._streams.shares.use(self._visitor.identity.caller):
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
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
        async def write(text: str) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        await write(f"retry: {RETRY_MILLISECONDS}\n\n")
        visitor: Visitor | None = self._visitor
        while visitor is not None:
            key, render = self._share(visitor)
            with self._streams.rounds().reading(key, render) as page:
                visitor = await self._send_page(page, visitor, key, write)
        await write("event: end\ndata: {}\n\n")

    async def _send_page(
        self, page: LivePage, visitor: Visitor, key: Hashable, write: Callable[[str], Awaitable[None]]
    ) -> Visitor | None:
        """Send updates of a page; return the visitor (the browser) with its new rights when these have changed.

        Return None when its session has ended. Raises the error of a page that cannot be rendered.
        """
        now = asyncio.get_running_loop().time
        checked = sent = now()
        seen = 0
        while True:
            renewed = page.renewed
            if page.round == seen:
                await asyncio.wait([renewed], timeout=max(self._streams.interval, CHECK_SECONDS))
            if now() - checked >= CHECK_SECONDS:
                try:
                    visitor, checked = await self._check(), now()
                except EXPECTED_ERRORS:
                    return None
                if self._share(visitor)[0] != key:
                    return visitor
            if page.error is not None:
                raise page.error
            text = page.message(has_last=seen == page.round - 1) if page.round > seen else ""
            seen = page.round
            if text:
                await write(fill_csrf(text, visitor.csrf_token))
                sent = now()
            elif now() - sent >= KEEP_ALIVE_SECONDS:
                await write(": keep-alive\n\n")
                sent = now()


async def _gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
