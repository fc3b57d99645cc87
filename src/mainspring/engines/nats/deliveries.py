"""Pulls deliveries from consumers, and collects replies of the server that consist of many messages.

A fetch does not wait: the consumer sends the messages that it has right now. An idle pull is a pull request that
waits on the server for one message. So a worker without jobs need not ask again and again: it sends an idle pull,
and gets the next job as soon as the job arrives.
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

from mainspring.engines.nats.write_batch import StoredMessage

IDLE_SECONDS = 30.0
LATE_SECONDS = 5.0  # seconds that a message may take after its request has timed out
ACK = b"+ACK"
IN_PROGRESS = b"+WPI"
LIMITER_HEADER = "Mainspring-Limiter"


class Delivery(Struct, frozen=True, gc=False):
    """A message that a consumer has delivered to this process. This process must acknowledge the message."""

    subject: str
    reply: str
    data: bytes
    revision: int
    """The sequence number of the message in the stream."""
    pending: int
    """How many more messages the consumer had to deliver when it sent this message."""
    is_scheduled: bool
    """Whether the server published the message at a scheduled time."""
    deliveries: int
    received: float
    """The time at which the message was received, by the event loop's clock."""
    limiter: str = ""
    """The subject of the limiter of the message's job, if a hand-over has stored the message; otherwise empty."""


class FetchRequest(Struct, frozen=True, gc=False):
    """A request for at most `most` messages from one consumer."""

    consumer: str
    most: int


def status_of(message: Msg) -> int | None:
    """Return the status code if the server sent a status instead of a message; otherwise None."""
    headers = message.headers
    status = headers.get("Status") if headers else None
    return None if status is None else int(status)


def parse_delivery(message: Msg) -> Delivery:
    """Decode a message that a consumer has delivered. The reply subject contains the metadata of the delivery."""
    tokens = message.reply.split(".")
    skip = 2 if len(tokens) > 9 else 0  # newer servers add domain and account
    return Delivery(
        message.subject,
        message.reply,
        message.data,
        int(tokens[5 + skip]),
        int(tokens[8 + skip]),
        bool(message.headers and "Nats-Scheduler" in message.headers),
        int(tokens[4 + skip]),
        asyncio.get_running_loop().time(),
        (message.headers or {}).get(LIMITER_HEADER, ""),
    )


def nak(delay: float) -> bytes:
    """Return the negative acknowledgement after which the server delivers the message again in `delay` seconds."""
    return b"-NAK" if delay <= 0 else b'-NAK {"delay": %d}' % round(delay * 1e9)


class PullRequests:
    """The pull requests of a connection. Methods must be called on the event loop.

    Other threads may set the public attributes.
    """

    def __init__(self, publish: Callable[[Sequence[tuple[str, bytes, str]]], None]) -> None:
        self._publish = publish
        self._client: Client | None = None
        self._inbox = ""
        self._count = 0
        self._idle: dict[str, float] = {}  # consumers with an idle pull, and the time at which the pull ends
        self._unfinished: dict[asyncio.Future[bool], str] = {}  # replies, with the subjects of their requests
        self.stream = ""
        self.idle_seconds = IDLE_SECONDS
        """How long an idle pull waits for a message.

        This time is shorter in a cluster, because an idle pull is silently lost if the leader dies.
        """
        self.on_delivery: Callable[[Delivery], None] = lambda _delivery: None
        self.on_end: Callable[..., None] = lambda **_why: None
        """Called with `is_expired` when an idle pull has ended without a message.

        `is_expired` is True if its time is over, and False if it failed, for example because its consumer is gone.
        """

    async def subscribe(self, client: Client) -> None:
        """Subscribe to the deliveries of idle pulls."""
        self._client = client
        self._inbox = client.new_inbox()
        self._idle.clear()
        await client.subscribe(f"{self._inbox}.idle.*", cb=self._receive_idle)

    def drop_all(self) -> None:
        """End all pull requests of this process, because they were lost with the connection."""
        self.drop_idle()
        for done in self._unfinished:
            if not done.done():
                done.set_result(False)

    def fail_denied(self, subject: str, make_error: Callable[[str], Exception]) -> bool:
        """Fail the requests to `subject`, which the server denies; it is in lower case, as in errors of nats-py.

        Return True if there were such requests, or if the subject belongs to the inbox of the pull requests.
        """
        denied = [(done, own) for done, own in self._unfinished.items() if own.lower() == subject]
        for done, own in denied:
            if not done.done():
                done.set_exception(make_error(own))
        return bool(denied) or subject.startswith(f"{self._inbox.lower()}.")

    def drop_idle(self) -> None:
        """Forget the idle pulls of this process, because the server does not have them any more."""
        self._idle.clear()

    # -- idle pulls

    def start_idle(self, consumers: Sequence[str]) -> None:
        """Start an idle pull on each of these consumers that has no idle pull of this process yet."""
        now = asyncio.get_running_loop().time()
        requests: list[tuple[str, bytes, str]] = []
        for consumer in consumers:
            if self._idle.get(consumer, 0.0) < now:
                self._idle[consumer] = now + self.idle_seconds
                body = b'{"batch":1,"expires":%d}' % round(self.idle_seconds * 1e9)
                requests.append((self._request_subject(consumer), body, f"{self._inbox}.idle.{consumer}"))
        if requests:
            self._publish(requests)

    def _request_subject(self, consumer: str) -> str:
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{consumer}"

    async def _receive_idle(self, message: Msg) -> None:
        status = status_of(message)
        if status is not None:
            self._idle.pop(message.subject.rpartition(".")[2], None)
            self.on_end(is_expired=status in (404, 408))
            return
        tokens = message.reply.split(".")
        self._idle.pop(tokens[3 + (2 if len(tokens) > 9 else 0)], None)
        self.on_delivery(parse_delivery(message))

    # -- fetching

    async def fetch(self, requests: Sequence[FetchRequest], seconds: float) -> list[Delivery]:
        """Return messages that these consumers have right now, at most `FetchRequest.most` of each.

        Wait at most `seconds` for them. Messages that come later are passed to `on_delivery`.
        """
        replies = await asyncio.gather(*(self._fetch(request, seconds) for request in requests))
        return [delivery for reply in replies for delivery in reply]

    async def _fetch(self, request: FetchRequest, seconds: float) -> list[Delivery]:
        body = b'{"batch":%d,"no_wait":true}' % request.most
        found = await self._request_many(self._request_subject(request.consumer), body, seconds, request.most)
        return [parse_delivery(message) for message in found or ()]

    # -- replies of many messages

    async def collect(
        self, subject: str, body: dict[str, Any], seconds: float
    ) -> list[tuple[str, StoredMessage]] | None:
        """Send a request, and return all messages of the reply, which ends with a status.

        Return None if the status does not come in time, or says that the service is not available.
        """
        found = await self._request_many(subject, json.dumps(body).encode(), seconds, None)
        if found is None:
            return None
        return [(message.headers["Nats-Subject"], _stored(message)) for message in found if message.headers]

    async def _request_many(self, subject: str, body: bytes, seconds: float, most: int | None) -> list[Msg] | None:
        """Send a request; return the messages of the reply until a status comes, or `most` messages have come.

        If the reply is incomplete, return its messages with `most`, and None without `most`.
        """
        client = self._client
        if client is None:
            return None
        found: list[Msg] = []
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def receive(message: Msg) -> None:
            status = status_of(message)
            if status is None and done.done() and most is not None:
                # the message is late, but the consumer has delivered it to this process
                self.on_delivery(parse_delivery(message))
                return
            if status is None:
                found.append(message)
            if (status is not None or len(found) == most) and not done.done():
                done.set_result(status != 503)

        self._count += 1
        inbox = f"{self._inbox}.many.{self._count}"
        subscription = await client.subscribe(inbox, cb=receive)
        self._unfinished[done] = subject
        try:
            await client.publish(subject, body, reply=inbox)
            await asyncio.wait([done], timeout=seconds)
            is_late = not done.done()
            is_complete = not is_late and done.result()
            if is_late:
                done.set_result(False)
        finally:
            del self._unfinished[done]
            if done.done() and not done.exception() and not done.result() and most is not None:
                loop = asyncio.get_running_loop()
                loop.call_later(LATE_SECONDS, lambda: asyncio.ensure_future(unsubscribe(subscription)))
            else:
                await unsubscribe(subscription)
        # Fetched messages are delivered to this process, even if the reply is incomplete.
        return found if is_complete or most is not None else None


def _stored(message: Msg) -> StoredMessage:
    headers = message.headers or {}
    return StoredMessage(int(headers["Nats-Sequence"]), message.data, headers.get(LIMITER_HEADER, ""))


async def unsubscribe(subscription: Subscription) -> None:
    """End a subscription. If the connection is lost, the subscription has ended with it."""
    try:
        await subscription.unsubscribe()
    except nats.errors.Error:  # the connection is lost, and the subscription with it
        return
