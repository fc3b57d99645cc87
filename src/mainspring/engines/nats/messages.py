"""Pulls messages from consumers, and collects answers of the server that consist of many messages.

A fetch does not wait: the consumer answers at once with the messages that it has. An idle pull waits on the server
for one message, so that only the next job wakes a worker without work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import nats.errors
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from mainspring.engines.nats.drafts import StreamEntry

IDLE_SECONDS = 30.0
STRAGGLER_SECONDS = 5.0  # no message of an old request is expected after this time
ACK = b"+ACK"
IN_PROGRESS = b"+WPI"


class Message(Struct, frozen=True, gc=False):
    """A delivered message, to be acknowledged."""

    subject: str
    reply: str
    data: bytes
    revision: int
    """Its sequence number in the stream."""
    pending: int
    """How many more messages its consumer had to deliver."""
    is_fired: bool
    """Whether a schedule of the server has published it."""
    deliveries: int
    arrived: float
    """When it arrived, by the clock of the loop."""


class Pull(Struct, frozen=True, gc=False):
    """A request for messages of one consumer."""

    consumer: str
    most: int


def status_of(message: Msg) -> int | None:
    """Return the status that the server sends in place of a message; None for a message."""
    headers = message.headers
    status = headers.get("Status") if headers else None
    return None if status is None else int(status)


def read_message(message: Msg) -> Message:
    """Decode a message that a consumer delivered; its metadata is in the reply subject."""
    tokens = message.reply.split(".")
    skip = 2 if len(tokens) > 9 else 0  # newer servers add domain and account
    return Message(
        message.subject,
        message.reply,
        message.data,
        int(tokens[5 + skip]),
        int(tokens[8 + skip]),
        bool(message.headers and "Nats-Scheduler" in message.headers),
        int(tokens[4 + skip]),
        asyncio.get_running_loop().time(),
    )


def nak(delay: float) -> bytes:
    """Return the answer that gives a message back, to be delivered again after some seconds."""
    return b"-NAK" if delay <= 0 else b'-NAK {"delay": %d}' % round(delay * 1e9)


class Pulls:
    """The open pulls of a connection. Used on the event loop only, apart from the public attributes."""

    def __init__(self, publish: Callable[[Sequence[tuple[str, bytes, str]]], None]) -> None:
        self._publish = publish
        self._client: Client | None = None
        self._inbox = ""
        self._count = 0
        self._idle: dict[str, float] = {}  # consumers with an idle pull, and when it ends
        self._open: dict[asyncio.Future[bool], str] = {}  # unfinished answers, and the subjects of their requests
        self.stream = ""
        self.idle_seconds = IDLE_SECONDS
        """How long an idle pull waits: short in a cluster, where it is lost silently if the leader dies."""
        self.on_message: Callable[[Message], None] = lambda _message: None
        self.on_end: Callable[..., None] = lambda **_why: None
        """Called when an idle pull has ended without a message."""

    async def subscribe(self, client: Client) -> None:
        """Subscribe to the messages of idle pulls."""
        self._client = client
        self._inbox = client.new_inbox()
        self._idle.clear()
        await client.subscribe(f"{self._inbox}.idle.*", cb=self._receive_idle)

    def forget(self) -> None:
        """End all pulls: they are lost with the connection."""
        self.forget_idle()
        for done in self._open:
            if not done.done():
                done.set_result(False)

    def note_forbidden(self, subject: str, make_error: Callable[[str], Exception]) -> bool:
        """Fail the pulls on a forbidden subject, given in lower case; return whether it is one of ours."""
        waiting = [(done, asked) for done, asked in self._open.items() if asked.lower() == subject]
        for done, asked in waiting:
            if not done.done():
                done.set_exception(make_error(asked))
        return bool(waiting) or subject.startswith(f"{self._inbox.lower()}.")

    def forget_idle(self) -> None:
        """Forget all idle pulls."""
        self._idle.clear()

    # -- idle pulls

    def arm(self, consumers: Sequence[str]) -> None:
        """Start an idle pull on each of these consumers, unless it has one. On the loop."""
        now = asyncio.get_running_loop().time()
        asked: list[tuple[str, bytes, str]] = []
        for consumer in consumers:
            if self._idle.get(consumer, 0.0) < now:
                self._idle[consumer] = now + self.idle_seconds
                body = b'{"batch":1,"expires":%d}' % round(self.idle_seconds * 1e9)
                asked.append((self._next(consumer), body, f"{self._inbox}.idle.{consumer}"))
        if asked:
            self._publish(asked)

    def _next(self, consumer: str) -> str:
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{consumer}"

    async def _receive_idle(self, message: Msg) -> None:
        status = status_of(message)
        if status is not None:
            self._idle.pop(message.subject.rpartition(".")[2], None)
            self.on_end(is_expired=status in (404, 408))
            return
        tokens = message.reply.split(".")
        self._idle.pop(tokens[3 + (2 if len(tokens) > 9 else 0)], None)
        self.on_message(read_message(message))

    # -- fetching

    async def fetch(self, pulls: Sequence[Pull], patience: float) -> list[Message]:
        """Return the messages that several consumers have right now."""
        answers = await asyncio.gather(*(self._fetch(pull, patience) for pull in pulls))
        return [message for answer in answers for message in answer]

    async def _fetch(self, pull: Pull, patience: float) -> list[Message]:
        body = b'{"batch":%d,"no_wait":true}' % pull.most
        found = await self._gather(self._next(pull.consumer), body, patience, pull.most)
        return [read_message(message) for message in found or ()]

    # -- answers of many messages

    async def collect(
        self, subject: str, body: dict[str, Any], patience: float
    ) -> list[tuple[str, StreamEntry]] | None:
        """Return all messages of an answer, which ends with a status; None if that does not come in time."""
        found = await self._gather(subject, json.dumps(body).encode(), patience, None)
        if found is None:
            return None
        return [
            (message.headers["Nats-Subject"], StreamEntry(int(message.headers["Nats-Sequence"]), message.data))
            for message in found
            if message.headers
        ]

    async def _gather(self, subject: str, body: bytes, patience: float, most: int | None) -> list[Msg] | None:
        """Return the messages up to a status or up to `most`; without `most`, None if the answer is incomplete."""
        client = self._client
        if client is None:
            return None
        found: list[Msg] = []
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def receive(message: Msg) -> None:
            status = status_of(message)
            if status is None and done.done() and most is not None:
                self.on_message(read_message(message))  # late, but delivered to us
                return
            if status is None:
                found.append(message)
            if (status is not None or len(found) == most) and not done.done():
                done.set_result(status != 503)

        self._count += 1
        inbox = f"{self._inbox}.many.{self._count}"
        subscription = await client.subscribe(inbox, cb=receive)
        self._open[done] = subject
        try:
            await client.publish(subject, body, reply=inbox)
            await asyncio.wait([done], timeout=patience)
            is_late = not done.done()
            is_complete = not is_late and done.result()
            if is_late:
                done.set_result(False)
        finally:
            del self._open[done]
            if done.done() and not done.exception() and not done.result() and most is not None:
                loop = asyncio.get_running_loop()
                loop.call_later(STRAGGLER_SECONDS, lambda: asyncio.ensure_future(_unsubscribe(subscription)))
            else:
                await _unsubscribe(subscription)
        # Fetched messages are delivered to us, even if the answer is incomplete.
        return found if is_complete or most is not None else None


async def _unsubscribe(subscription: Subscription) -> None:
    try:
        await subscription.unsubscribe()
    except nats.errors.Error:  # the connection is gone, and the subscription with it
        return
