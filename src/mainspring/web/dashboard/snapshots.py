"""Reads the store for pages, at most once a second for each source, whatever the number of browsers.

A page asks for a `Source`, such as the statistics of the store. The first request reads it on a thread; all others
within the time of the source, usually a second, share the answer, also while it is being read. Without requests
nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.clock import NANOSECONDS, Clock, SystemClock

if TYPE_CHECKING:
    from mainspring.app import Mainspring

T = TypeVar("T")

MAX_KEPT = 200

logger = logging.getLogger("mainspring.http")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Generic[T]):
    """Data of the store that several pages read, and for how long they share one read."""

    name: str
    """The name of the source, with its parameters, which identifies the answer: `activity 6h`."""
    read: Callable[[Mainspring], Awaitable[T]]
    """A coroutine function that reads the data. It awaits a thread and does not block the event loop."""
    seconds: float = 1.0
    """For how many seconds an answer is shared."""


class Snapshots:
    """The latest answers of all sources. Only the server's event loop may use this.

    - `app`: the application whose store is read
    - `clock`: measures the age of answers
    """

    def __init__(self, app: Mainspring, clock: Clock | None = None) -> None:
        self._app = app
        self._clock = clock or SystemClock()
        self._answers: dict[str, tuple[int, asyncio.Future[Any]]] = {}  # when it was asked, and the answer
        self._last: dict[str, Any] = {}  # the last answers of sources that pages do not wait for

    async def get(self, source: Source[T]) -> T:
        """Return an answer of a source that is not older than the source allows.

        If there is none, read the source, or wait for a read that is in progress. Raises the error of that read.
        """
        now, loop = self._clock.monotonic_ns(), asyncio.get_running_loop()
        found = self._answers.get(source.name)
        if found is not None and found[1].get_loop() is loop and _is_good(found[1]):
            is_recent = now - found[0] < source.seconds * NANOSECONDS
            if is_recent or not found[1].done():
                answer: T = await asyncio.shield(found[1])
                return answer
        if len(self._answers) >= MAX_KEPT:
            self._drop_oldest()
        task = asyncio.ensure_future(source.read(self._app))
        task.add_done_callback(retrieve_error)
        self._answers[source.name] = (now, task)
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Drop all answers, so that the next page reads the store again: an action has changed something.

        `peek` still returns the last answers that it has returned.
        """
        self._answers.clear()

    def peek(self, source: Source[T]) -> T | None:
        """Return the last answer of a source, however old, without waiting; None if there is none yet.

        If the answer is missing or older than the source allows, begin to read it. This is for slow sources.
        """
        found, now = self._answers.get(source.name), self._clock.monotonic_ns()
        before = self._last.get(source.name)
        if found is not None and found[1].get_loop() is asyncio.get_running_loop():
            if found[1].done() and _is_good(found[1]):
                before = self._last[source.name] = found[1].result()
            is_recent = now - found[0] < source.seconds * NANOSECONDS
            if is_recent or not found[1].done():
                return before
        task = asyncio.ensure_future(source.read(self._app))
        task.add_done_callback(_note_error)
        self._answers[source.name] = (now, task)
        return before

    def _drop_oldest(self) -> None:
        for name in sorted(self._answers, key=lambda name: self._answers[name][0])[: MAX_KEPT // 2]:
            del self._answers[name]


def _note_error(answer: asyncio.Future[Any]) -> None:
    """Log a warning about the error of a read that no page waits for; do nothing if the read succeeded."""
    if not answer.cancelled() and answer.exception() is not None:
        logger.warning("the dashboard could not read the store: %s", answer.exception())


def retrieve_error(answer: asyncio.Future[Any]) -> None:
    """Mark the error of a future as retrieved, so that asyncio does not log it if no request waits any more."""
    if not answer.cancelled():
        answer.exception()


def _is_good(answer: asyncio.Future[Any]) -> bool:
    """Return whether an answer is still being read or has arrived; False if the read failed or was canceled."""
    return not answer.done() or not (answer.cancelled() or answer.exception() is not None)
