"""Intake: messages from the server on their way to whoever takes jobs.

While there is room, each lane has an idle pull: one message that comes by itself and wakes the worker, which then
fetches as many as it has room for. What came and found no room within a moment goes back, so that it does not wait
here while others are idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from threading import Lock

from mainspring.engines.nats.link import Link
from mainspring.engines.nats.messages import IN_PROGRESS, Message, Pull, nak
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.stored import StoredJob
from mainspring.jobs.instants import MICROSECONDS

PATIENCE_SECONDS = 0.25
PAUSE_SECONDS = 0.25


class Intake:
    """Messages that nobody has looked at yet."""

    def __init__(self, link: Link, names: Names, wake: Callable[[], None], on_trouble: Callable[[], None]) -> None:
        self._link = link
        self._names = names
        self._wake = wake
        self._lock = Lock()
        self._jobs: dict[str, Message] = {}  # by subject: a later one replaces an earlier one
        self._dues: dict[str, int] = {}  # when jobs for which there was no room are due
        self._chores: list[Message] = []
        self._armed: tuple[str, ...] = ()
        self._on_trouble = on_trouble
        link.pulls.on_message = self._receive
        link.pulls.on_end = self._note_end

    # -- on the loop

    def _note_end(self, *, is_expired: bool) -> None:
        """Go on waiting; after a moment, and from the beginning, if the consumer or its leader is gone."""
        if is_expired:
            self._link.pulls.arm(self._armed)
        else:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._begin_anew)

    def _begin_anew(self) -> None:
        self._on_trouble()
        self._wake()

    def _receive(self, message: Message) -> None:
        with self._lock:
            if message.subject.startswith(self._names.chores):
                self._chores.append(message)
            else:
                self._keep(message)
        self._begin_patience()
        self._wake()

    def _begin_patience(self) -> None:
        asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        """Give back what nobody had room for."""
        limit = asyncio.get_running_loop().time() - PATIENCE_SECONDS
        with self._lock:
            late = [message for message in self._jobs.values() if message.arrived <= limit]
            now = self._link.now()
            answers = []
            for message in late:
                del self._jobs[message.subject]
                early = self._dues.pop(message.subject, now) - now
                answers.append((message.reply, nak(max(0, early) / MICROSECONDS / 2)))  # there is time yet
        self._link.send(answers)

    def _keep(self, message: Message) -> None:
        """Keep the newest message of a job: the older one is gone from the server."""
        other = self._jobs.get(message.subject)
        if other is None or other.revision <= message.revision:
            self._jobs[message.subject] = message

    # -- anywhere

    def arm(self, consumers: Iterable[str]) -> None:
        """Let the next message of each of these consumers come by itself."""
        armed = tuple(consumers)
        self._armed = armed
        if armed:
            self._link.call_later(lambda: self._link.pulls.arm(armed))

    def rearm(self) -> None:
        """After a reconnection: what was asked for is forgotten."""
        self.arm(self._armed)

    def take_jobs(self, lanes: Iterable[str], until: int | None) -> list[Message]:
        """Return what came for these lanes, named by the beginning of their subjects.

        What is known to be due later than `until` stays: there is no room for it.
        """
        prefixes = tuple(lanes)
        with self._lock:
            found = [
                message
                for message in self._jobs.values()
                if message.subject.startswith(prefixes)
                and (until is None or self._dues.get(message.subject, until) <= until)
            ]
            for message in found:
                del self._jobs[message.subject]
                self._dues.pop(message.subject, None)
            return found

    def put_back(self, messages: Iterable[tuple[Message, StoredJob | None]]) -> None:
        """Keep messages for somebody with room; they go back to the server if nobody comes."""
        with self._lock:
            kept = list(messages)
            for message, job in kept:
                self._keep(message)
                if job is not None:
                    self._dues[message.subject] = job.due
        if kept:
            self._link.call_later(self._begin_patience)

    def take_chores(self) -> list[Message]:
        """Return the chores that came."""
        with self._lock:
            found, self._chores = self._chores, []
            return found

    def fetch(self, pulls: list[Pull]) -> list[Message]:
        """Return what is there right now."""
        return self._link.fetch(pulls)

    def keep_alive(self) -> list[tuple[str, bytes]]:
        """Return the messages that say that we still have what we have."""
        with self._lock:
            return [(message.reply, IN_PROGRESS) for message in (*self._jobs.values(), *self._chores)]

    def give_back(self) -> None:
        """Give everything back."""
        with self._lock:
            replies = [message.reply for message in (*self._jobs.values(), *self._chores)]
            self._jobs.clear()
            self._dues.clear()
            self._chores.clear()
        self._armed = ()
        self._link.send([(reply, nak(0)) for reply in replies])
