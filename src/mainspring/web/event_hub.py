"""The event hub: one follower of the store's events for all readers in this process.

A reader is a stream of server-sent events or a page that updates itself. The hub knows nothing of HTTP.

Invariants
- One task reads the store, from the first reader until the last one has left, whatever the number of readers. (If
  readers run on several event loops, each loop has one.)
- The hub keeps the latest events in one list, and a reader is only a place in it. So the memory does not grow with
  the number of readers, and a slow reader delays no other.
- A reader that is behind the list, because it is slow or continues after a restart, reads the store itself, one
  page at a time, until it reaches the list. If the store does not hold these events any more, it gets a reset.
- A reader that misses an event gets a reset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from mainspring.clock import SystemClock
from mainspring.errors import MainspringError
from mainspring.jobs.engine import Engine
from mainspring.jobs.event_stream import EventFollower
from mainspring.jobs.events import Event, EventPage
from mainspring.jobs.handle import ManagerProvider, open_manager
from mainspring.jobs.worker.failure_log import FailureLog
from mainspring.security.http_limits import HttpLimits
from mainspring.web.caller_shares import CallerShares
from mainspring.web.problems import refuse

PAGE = 1_000
BATCH = 500
"""The largest number of events that a reader gets at once, so that other tasks of the event loop can run."""
KEPT = 10_000
"""The list is cut to this number of latest events when it has twice as many."""
POLL_SECONDS = 0.1
RETRY_SECONDS = 1.0
STORE_READS = 2
"""How many readers that are behind the list may read the store at the same time."""

logger = logging.getLogger("mainspring.events")


class HubEvent(Struct):
    """An event, or a reset, and its position."""

    position: str
    """The position after this event, at which a reader can continue."""
    event: Event | None
    """The event; None for a reset, which means that events before this position are missing."""
    frame: bytes | None = None
    """The encoded event that readers send. The first reader encodes it for all; None before that."""


class EventHub:
    """Lets many readers follow the events of one store, which one task reads for all of them.

    - `source`: the application, whose store has the events
    - `limits`: how many readers there may be at once, and of each caller
    """

    def __init__(self, source: ManagerProvider, *, limits: HttpLimits) -> None:
        self._source = source
        self._max_readers = limits.event_readers
        self._shares = CallerShares(
            limits, limit="event_readers", problem="too-many-own-readers", what="streams of events"
        )
        self._feeds: dict[asyncio.AbstractEventLoop, _Feed] = {}  # of the loops with readers
        self._is_closed = False

    @property
    def readers(self) -> int:
        """How many readers follow the events now."""
        return sum(feed.readers for feed in list(self._feeds.values()))

    @property
    def followers(self) -> int:
        """How many tasks read the store's events: one for each event loop with readers, else none."""
        return sum(feed.is_following for feed in list(self._feeds.values()))

    @asynccontextmanager
    async def reader(self, caller: str, after: str | None = None) -> AsyncIterator[EventReader]:
        """Return a context manager whose reader follows the events during the `with` block.

        If events after the position `after` are missing, the reader begins now, with a reset. Raises `Refused` if
        there are too many readers, of all callers or of this one, or if the server stops.

        - `caller`: the caller: see `Identity.caller`
        - `after`: the position after which to continue; None to begin now
        """
        if self._is_closed:
            raise refuse(503, "stopping", "the server stops; connect again in a moment", retry_after="1")
        if self.readers >= self._max_readers:
            raise refuse(
                503,
                "too-many-event-readers",
                f"{self._max_readers:,} clients read events, which is the limit of this server; close streams "
                "that are not needed, or raise event_readers of HttpLimits",
                retry_after="10",
            )
        with self._shares.use(caller):
            loop = asyncio.get_running_loop()
            feed = self._feeds.get(loop)
            if feed is None:
                feed = self._feeds[loop] = _Feed(self._source)
            feed.readers += 1
            try:
                await feed.start()
                reader = EventReader(feed)
                if after is not None:
                    await reader.continue_after(after)
                yield reader
            finally:
                feed.readers -= 1
                if not feed.readers:
                    feed.stop()
                    del self._feeds[loop]

    @property
    def is_closed(self) -> bool:
        """Whether the server stops, so that answers that wait or stream must end."""
        return self._is_closed

    def open(self) -> None:
        """Accept readers again, after `close`."""
        self._is_closed = False

    def close(self) -> None:
        """End the streams of all readers, and refuse new readers until `open`. Any thread may call this."""
        self._is_closed = True
        for loop, feed in list(self._feeds.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(feed.end)


class _Feed:
    """The list of the latest events and the task that follows the store, for the readers of one event loop."""

    def __init__(self, source: ManagerProvider) -> None:
        self._source = source
        self._starting: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        self._before = ""  # the position before the first event of the list
        self._events: list[HubEvent] = []
        self.first = 0
        """The number of the first event of the list; events are numbered from 0."""
        self.readers = 0
        self.has_ended = False
        """Whether the readers must end, because the server stops or the task that reads the store has failed."""
        self.news = asyncio.Event()
        """Is set when events arrive or readers must end, and then replaced by a new one. So a reader must get it
        before it looks at the list."""
        self.store_reads = asyncio.Semaphore(STORE_READS)

    # -- the life of the follower

    @property
    def is_following(self) -> bool:
        return self._following is not None

    async def start(self) -> None:
        """Start to follow the store, if this was not done.

        When this returns, engines write events for the readers. If the store fails, raise its error; the next call
        tries again.
        """
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        task = self._starting
        try:
            await asyncio.shield(task)
        except BaseException:
            if task.done() and self._starting is task:
                self._starting = None  # failed: the next reader tries again
            raise

    async def _start(self) -> None:
        manager = await open_manager(self._source)
        follower = await self._source.off_loop.write(manager.follow_events)
        self._engine = manager.engine
        self._before = follower.position
        self._following = asyncio.get_running_loop().create_task(self._follow(follower))

    def stop(self) -> None:
        """Stop following the store, because the last reader has left. The feed is not used any more."""
        for task in (self._starting, self._following):
            if task is not None:
                task.cancel()

    def end(self) -> None:
        """Make `next` of all readers return None, so that they end."""
        self.has_ended = True
        self._announce()

    async def _follow(self, follower: EventFollower) -> None:
        failures, clock = FailureLog(), SystemClock()
        try:
            while True:
                try:
                    page = await self._source.off_loop.read(follower.read, PAGE)
                except MainspringError as error:
                    seconds = failures.failed(clock.monotonic_ns())
                    if seconds is not None:
                        logger.warning("events cannot be read from the store, for %.0f s now: %s", seconds, error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                failures.succeeded()
                self._add(page)
                if len(page.events) < PAGE:
                    await asyncio.sleep(POLL_SECONDS)
        except Exception:  # a task has no caller that could handle it
            logger.exception(
                "the task that reads events from the store has failed; all event streams end, and clients can "
                "connect again; please report this as a bug"
            )
            self.end()

    # -- the list

    def _add(self, page: EventPage) -> None:
        if not page.is_complete:
            self._events.append(HubEvent(self.position, None))
        self._events += map(HubEvent, page.positions, page.events)
        surplus = len(self._events) - KEPT
        if surplus > KEPT:
            self._before = self._events[surplus - 1].position
            del self._events[:surplus]
            self.first += surplus
        if page.events or not page.is_complete:
            self._announce()

    def _announce(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    @property
    def position(self) -> str:
        """The position after the last event of the list."""
        return self._events[-1].position if self._events else self._before

    @property
    def end_number(self) -> int:
        """The number that the next event of the list will have."""
        return self.first + len(self._events)

    def number_after(self, position: str) -> int | None:
        """Return the number of the event after a position; None if the position is not within the list.

        A reset has the same position as the event before it; the number is then that of the reset.
        """
        for number in range(len(self._events) - 1, -1, -1):
            found = self._events[number]
            if found.position == position:
                return self.first + number + (0 if found.event is None else 1)
        return self.first if position == self._before else None

    def events_from(self, number: int, limit: int) -> list[HubEvent]:
        """Return at most `limit` events of the list, from this number on."""
        return self._events[number - self.first : number - self.first + limit]

    # -- the store

    async def holds(self, position: str) -> bool:
        """Return whether the store still has all events after a position."""
        assert self._engine is not None
        return await self._source.off_loop.read(self._engine.holds, position)

    async def read_store(self, position: str) -> EventPage:
        """Return at most 500 events after a position from the store itself, for a reader that is behind."""
        assert self._engine is not None
        async with self.store_reads:
            return await self._source.off_loop.read(self._engine.events, position, BATCH)


class EventReader:
    """A reader of the events of a hub. One task at a time may use it."""

    def __init__(self, feed: _Feed) -> None:
        self._feed = feed
        self._number: int | None = feed.end_number  # of the next event; None if it is not within the list
        self._resets: list[HubEvent] = []
        self.position = feed.position
        """The position after the last event that the reader got."""

    async def continue_after(self, position: str) -> None:
        """Continue after a position that a reader of any process had.

        If the store does not have all events after it any more, begin now, with a reset.
        """
        number = self._feed.number_after(position)
        if number is not None or await self._feed.holds(position):
            self._number, self.position = number, position
        else:
            self._reset()

    def _reset(self) -> None:
        self._number, self.position = self._feed.end_number, self._feed.position
        self._resets = [HubEvent(self.position, None)]

    async def next(self, timeout: float) -> Sequence[HubEvent] | None:
        """Wait for the next events and return at most 500; return `()` if none come within `timeout` seconds.

        Return None if the reader must end, because the server stops or events cannot be read.
        """
        feed = self._feed
        deadline = asyncio.get_running_loop().time() + timeout
        while not feed.has_ended:
            news = feed.news
            found = await self._take()
            if found:
                self.position = found[-1].position
                return found
            try:
                async with asyncio.timeout_at(deadline):
                    await news.wait()
            except TimeoutError:
                return ()
        return None

    async def _take(self) -> list[HubEvent]:
        """Take the next events that are there already, from the list or the store; empty if there are none.

        If the store does not have them any more, take a reset, and continue after the last event of the list.
        """
        feed = self._feed
        if self._resets:
            found, self._resets = self._resets, []
            return found
        if self._number is not None and self._number < feed.first:
            self._number = None  # too slow: the events were dropped from the list
        if self._number is None:
            self._number = feed.number_after(self.position)
        if self._number is not None:
            found = feed.events_from(self._number, BATCH)
            self._number += len(found)
            return found
        page = await feed.read_store(self.position)
        if not page.is_complete:
            self._reset()
            return await self._take()
        return list(map(HubEvent, page.positions, page.events))
