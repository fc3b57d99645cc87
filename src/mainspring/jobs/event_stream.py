"""Event streams: iterators over the events of jobs from now on, from all processes that share the store.

Engines write events only while a client asks for them. So a follower renews its request as long as it is read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from threading import Condition

from msgspec.structs import replace

from mainspring.clock import NANOSECONDS, Clock, Duration, deadline_after
from mainspring.jobs.engine import Engine
from mainspring.jobs.events import Event, EventKind, EventPage
from mainspring.jobs.off_loop import OffLoop
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime
from mainspring.runners.runner import TaskRunner
from mainspring.runners.worker import blocking_for

LISTEN_FOR = 60 * MICROSECONDS
LISTEN_AGAIN_NS = 15 * NANOSECONDS
LOOK_NS = NANOSECONDS // 10
PAGE = 1_000

logger = logging.getLogger("mainspring.events")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """An event of a job, or of a schedule that skipped an occurrence."""

    kind: EventKind
    at: datetime
    job_id: str
    """The id of the job; for a `skipped` event, the name of the schedule."""
    type: str
    queue: str
    note: str | None


class EventFollower:
    """Reads the events of a store from now on, page by page. One thread at a time may use it.

    - `engine`: the engine of the store
    - `clock`: the clock by which it asks the engine again to write events
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._written_until = engine.now() + LISTEN_FOR  # engines write events until then
        self.position = engine.listen(self._written_until)
        """The position after the last event that was read."""
        self._listen_at = clock.monotonic_ns() + LISTEN_AGAIN_NS
        self.missed_seconds = 0.0
        """How many seconds before the last page no events were written, because `read` was not called in time."""

    def read(self, limit: int) -> EventPage:
        """Return the next events, at most `limit`, without waiting; the page is empty if there are none yet.

        If events before them are missing, the page has `is_complete` False.
        """
        is_late = self._clock.monotonic_ns() >= self._listen_at and self._listen_again()
        page = self._engine.events(self.position, limit)
        self.position = page.end
        return replace(page, is_complete=False) if is_late else page

    def _listen_again(self) -> bool:
        """Ask the engine to go on writing events; return True if it had stopped, so that events may be missing."""
        now = self._engine.now()
        self.missed_seconds = max(0.0, (now - self._written_until) / MICROSECONDS)
        until = now + LISTEN_FOR
        self._engine.listen(until)
        self._written_until = until
        self._listen_at = self._clock.monotonic_ns() + LISTEN_AGAIN_NS
        return self.missed_seconds > 0


class EventStream:
    """An iterator over future events, for `for` and `async for`. It ends at its timeout, or after `stop`.

    It returns all events since it was made, also those before the first iteration. But it must be read at least
    once a minute: otherwise engines stop writing events, and the stream misses those until its next read. It logs
    a warning then.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        *,
        timeout: Duration | None = None,
        layers: tuple[TaskRunner, ...] = (),
        off_loop: OffLoop | None = None,
    ) -> None:
        self._layers = layers  # runners that must keep working while a thread waits for events
        self._off_loop = off_loop or OffLoop()  # reads the store for `async for`
        self._clock = clock
        self._deadline = deadline_after(clock, timeout)
        self._condition = Condition()
        self._waiting: deque[JobEvent] = deque()
        self._follower = EventFollower(engine, clock)

    def __iter__(self) -> Iterator[JobEvent]:
        return self

    def __next__(self) -> JobEvent:
        while (event := self._next_known()) is None:
            until = self._until()
            if until is None:
                raise StopIteration
            with blocking_for(*self._layers), self._condition:
                self._clock.wait(self._condition, until)
        return event

    def __aiter__(self) -> AsyncIterator[JobEvent]:
        return self

    async def __anext__(self) -> JobEvent:
        import asyncio  # noqa: PLC0415 - slow to import; the caller's event loop has imported it

        # Only the read happens in a thread: a canceled iteration must not leave a waiting thread behind.
        while (event := await self._off_loop.read(self._next_known)) is None:
            until = self._until()
            if until is None:
                raise StopAsyncIteration
            await asyncio.sleep((until - self._clock.monotonic_ns()) / NANOSECONDS)
        return event

    def _next_known(self) -> JobEvent | None:
        if not self._waiting:
            self._read()
        return self._waiting.popleft() if self._waiting else None

    def _until(self) -> int | None:
        """Return until when to wait before the store is read again, in monotonic nanoseconds; None after the
        timeout.
        """
        now = self._clock.monotonic_ns()
        if self._deadline is None:
            return now + LOOK_NS
        return None if now >= self._deadline else min(now + LOOK_NS, self._deadline)

    def stop(self) -> None:
        """End the iteration after the events that are available.

        This method takes no lock, so signal handlers may call it.
        """
        self._deadline = self._clock.monotonic_ns()

    def pending(self) -> list[JobEvent]:
        """Return the events that are available now and were not returned yet, without waiting.

        One call reads at most 1,000 events from the store.
        """
        self._read()
        found = list(self._waiting)
        self._waiting.clear()
        return found

    def _read(self) -> None:
        page = self._follower.read(PAGE)
        if not page.is_complete:
            self._warn()
        self._waiting.extend(map(_to_public, page.events))

    def _warn(self) -> None:
        if self._follower.missed_seconds:
            logger.warning(
                "this event stream was not read for more than %d s; events of the last %.1f s may be missing",
                LISTEN_FOR // MICROSECONDS,
                self._follower.missed_seconds,
            )
            self._follower.missed_seconds = 0.0
        else:
            logger.warning(
                "this event stream is read too slowly; it lacks events that the store deleted before it read them"
            )


def _to_public(event: Event) -> JobEvent:
    return JobEvent(
        kind=event.kind,
        at=to_datetime(event.at),
        job_id=event.id,
        type=event.type,
        queue=event.queue,
        note=event.note,
    )
