"""Reads the store for pages, at most once a second for each question, whatever the number of browsers.

A page asks for a `Source`, such as the statistics of the store. The first request reads it on a thread; all others
within a second share the answer, also while it is being read. Without requests nothing is read.
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
    """A question to the store that several pages ask."""

    name: str
    """The name; with its parameters, if there are any: `activity 6h`."""
    read: Callable[[Mainspring], Awaitable[T]]
    """Reads the answer. It awaits a thread and does not block the event loop."""
    seconds: float = 1.0
    """How long an answer is used."""


class Snapshots:
    """The latest answers for all sources. It is used on the server's event loop only.

    - `app`: the application whose store is read
    - `clock`: measures the age of answers
    """

    def __init__(self, app: Mainspring, clock: Clock | None = None) -> None:
        self._app = app
        self._clock = clock or SystemClock()
        self._answers: dict[str, tuple[int, asyncio.Future[Any]]] = {}  # when it was asked, and the answer
        self._last: dict[str, Any] = {}  # the last answers of sources that pages do not wait for

    async def get(self, source: Source[T]) -> T:
        """Return an answer that is not older than the source allows."""
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
        """Read everything again, because an action has changed something that the next page should show."""
        self._answers.clear()

    def peek(self, source: Source[T]) -> T | None:
        """Return the last answer, however old; None if there is none yet. An old one is read again meanwhile.

        This is for answers that take seconds.
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
    """Log an error of a source that no page waits for."""
    if not answer.cancelled() and answer.exception() is not None:
        logger.warning("the dashboard could not read the store: %s", answer.exception())


def retrieve_error(answer: asyncio.Future[Any]) -> None:
    """Tell asyncio that an error is known, also if the request that waited for it was canceled."""
    if not answer.cancelled():
        answer.exception()


def _is_good(answer: asyncio.Future[Any]) -> bool:
    """Return whether an answer is awaited, or has come; an error is not kept."""
    return not answer.done() or not (answer.cancelled() or answer.exception() is not None)
