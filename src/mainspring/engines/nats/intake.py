"""Receives messages from the server, and keeps them until a worker claims their jobs.

While a worker has room, each lane has an idle pull: the server delivers one message as soon as there is one, which
wakes the worker. The worker then fetches as many as it has room for. A message that finds no room within a moment
goes back to the server, so that it does not wait here while other workers are idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from threading import Lock

from mainspring.engines.nats.link import Link
from mainspring.engines.nats.messages import IN_PROGRESS, Message, Pull, nak
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.stored import StoredJob
from mainspring.jobs.timestamps import MICROSECONDS

PATIENCE_SECONDS = 0.25
PAUSE_SECONDS = 0.25


class MessageIntake:
    """Messages that were delivered to this process and wait for a worker."""

    def __init__(self, link: Link, names: Names, wake: Callable[[], None], on_trouble: Callable[[], None]) -> None:
        self._link = link
        self._names = names
        self._wake = wake
        self._lock = Lock()
        self._jobs: dict[str, Message] = {}  # by subject: a later one replaces an earlier one
        self._dues: dict[str, int] = {}  # due times of jobs that found no room
        self._chores: list[Message] = []
        self._armed: tuple[str, ...] = ()
        self._on_trouble = on_trouble
        link.pulls.on_message = self._receive
        link.pulls.on_end = self._note_end

    # -- on the loop

    def _note_end(self, *, is_expired: bool) -> None:
        """Renew an expired idle pull; if the consumer or its leader is gone, find the consumers again later."""
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
        """Give back messages that found no room in time."""
        limit = asyncio.get_running_loop().time() - PATIENCE_SECONDS
        with self._lock:
            late = [message for message in self._jobs.values() if message.arrived <= limit]
            now = self._link.now()
            answers = []
            for message in late:
                del self._jobs[message.subject]
                early = self._dues.pop(message.subject, now) - now
                answers.append((message.reply, nak(max(0, early) / MICROSECONDS / 2)))  # again before it is due
        self._link.send(answers)

    def _keep(self, message: Message) -> None:
        """Keep the newest message of a job: the server has deleted the older one."""
        other = self._jobs.get(message.subject)
        if other is None or other.revision <= message.revision:
            self._jobs[message.subject] = message

    # -- on any thread

    def arm(self, consumers: Iterable[str]) -> None:
        """Start an idle pull on each of these consumers."""
        armed = tuple(consumers)
        self._armed = armed
        if armed:
            self._link.call_later(lambda: self._link.pulls.arm(armed))

    def rearm(self) -> None:
        """Start the idle pulls again after a reconnection: the server has forgotten them."""
        self.arm(self._armed)

    def take_jobs(self, lanes: Iterable[str], until: int | None) -> list[Message]:
        """Return the messages of these lanes, given as prefixes of their subjects.

        Jobs that are known to be due later than `until` stay: there is no room for them.
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
        """Keep messages for a worker with room; they go back to the server if none takes them in time."""
        with self._lock:
            kept = list(messages)
            for message, job in kept:
                self._keep(message)
                if job is not None:
                    self._dues[message.subject] = job.due
        if kept:
            self._link.call_later(self._begin_patience)

    def take_chores(self) -> list[Message]:
        """Return the chores that were delivered."""
        with self._lock:
            found, self._chores = self._chores, []
            return found

    def fetch(self, pulls: list[Pull]) -> list[Message]:
        """Return the messages that consumers have right now."""
        return self._link.fetch(pulls)

    def keep_alive(self) -> list[tuple[str, bytes]]:
        """Return the answers that tell the server which messages are still in progress."""
        with self._lock:
            return [(message.reply, IN_PROGRESS) for message in (*self._jobs.values(), *self._chores)]

    def give_back(self) -> None:
        """Give back all messages, and renew no idle pull."""
        with self._lock:
            replies = [message.reply for message in (*self._jobs.values(), *self._chores)]
            self._jobs.clear()
            self._dues.clear()
            self._chores.clear()
        self._armed = ()
        self._link.send([(reply, nak(0)) for reply in replies])
