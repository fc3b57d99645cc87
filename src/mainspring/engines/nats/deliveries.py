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

from msgspec import Struct

from mainspring.engines.nats.client import BatchingClient, ReceivedMessage, encode_message
from mainspring.engines.nats.subject_names import API
from mainspring.engines.nats.write_batch import StoredMessage

IDLE_SECONDS = 30.0
FRESH_SECONDS = 0.05
"""For so long, a consumer is not asked again: after it had no more messages, and after the start of an idle pull.

An older idle pull may have been lost on the way, or with the leader of its consumer.
"""
CUT_SECONDS = 10.0
"""For so long, messages of a consumer are fetched one by one, after the server has delivered fewer than it had."""
ACK = b"+ACK"
IN_PROGRESS = b"+WPI"
LIMITER_HEADER = "Mainspring-Limiter"
_LIMITER_HEADER = LIMITER_HEADER.encode()


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


def parse_delivery(message: ReceivedMessage) -> Delivery:
    """Decode a message that a consumer has delivered. The reply subject contains the metadata of the delivery."""
    tokens = message.reply.split(".")
    skip = _extra_tokens(tokens)
    return Delivery(
        message.subject,
        message.reply,
        message.data,
        int(tokens[5 + skip]),
        int(tokens[8 + skip]),
        message.header(b"Nats-Scheduler") is not None,
        int(tokens[4 + skip]),
        asyncio.get_running_loop().time(),
        message.header(_LIMITER_HEADER) or "",
    )


def consumer_of(message: ReceivedMessage) -> str:
    """Return the name of the consumer that has delivered a message."""
    tokens = message.reply.split(".")
    return tokens[3 + _extra_tokens(tokens)]


def _extra_tokens(tokens: Sequence[str]) -> int:
    return 2 if len(tokens) > 9 else 0  # newer servers add domain and account


def nak(delay: float) -> bytes:
    """Return the negative acknowledgement after which the server delivers the message again in `delay` seconds."""
    return b"-NAK" if delay <= 0 else b'-NAK {"delay": %d}' % round(delay * 1e9)


class PullRequests:
    """The pull requests of a connection. Methods must be called on the event loop.

    Other threads may set the public attributes.
    """

    def __init__(self, publish: Callable[[Sequence[tuple[str, bytes, str]]], None]) -> None:
        self._publish = publish
        self._client: BatchingClient | None = None
        self._loop_time: Callable[[], float] = lambda: 0.0  # the event loop's clock, once there is a connection
        self._inbox = ""
        self._fetches: dict[str, _PendingFetch] = {}  # the last fetch that waits for messages of each consumer
        self._replies: dict[str, _PendingFetch | _LongReply] = {}  # by reply subject
        self._count = 0
        self._idle: dict[str, float] = {}  # consumers with an idle pull, and the time at which the pull ends
        self._cut: dict[str, float] = {}  # consumers whose messages are fetched one by one, and until when
        self._drained: dict[str, float] = {}  # consumers that had no more messages, and when that was
        self._unfinished: dict[asyncio.Future[bool], str] = {}  # replies, with the subjects of their requests
        self.stream = self.api_subject = ""
        self.idle_seconds = IDLE_SECONDS
        """How long an idle pull waits for a message.

        This time is shorter in a cluster, because an idle pull is silently lost if the leader dies.
        """
        self.on_delivery: Callable[[Delivery], None] = lambda _delivery: None
        self.on_end: Callable[..., None] = lambda **_why: None
        """Called with `is_expired` when an idle pull has ended without a message.

        `is_expired` is True if its time is over, and False if it failed, for example because its consumer is gone.
        """

    async def subscribe(self, client: BatchingClient) -> None:
        """Subscribe to the deliveries of idle pulls, and to the replies to all other requests."""
        self._client = client
        self._loop_time = asyncio.get_running_loop().time
        self._inbox = client.new_inbox()
        self._idle.clear()
        await client.subscribe_directly(f"{self._inbox}.idle.*", self._receive_idle)
        await client.subscribe_directly(f"{self._inbox}.fetch.*", self._receive_fetched)
        await client.subscribe_directly(f"{self._inbox}.many.*", self._receive_one_of_many)

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
        self._drained.clear()
        self._cut.clear()

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

    def is_drained(self, consumer: str) -> bool:
        """Return whether a fetch would find nothing: its consumer has just sent all messages that it had, or an
        idle pull that was just started waits for the next one.

        The caller then starts an idle pull, so that no message is missed. Any thread may call this.
        """
        since = self._loop_time() - FRESH_SECONDS
        end = self._idle.get(consumer)
        return (end is not None and end - self.idle_seconds > since) or self._drained.get(consumer, since) > since

    def expect_messages(self) -> None:
        """Let the next fetches ask all consumers that have no idle pull, because this process has stored messages.

        Any thread may call this.
        """
        self._drained.clear()

    def _request_subject(self, consumer: str) -> str:
        return f"{self.api_subject}.CONSUMER.MSG.NEXT.{self.stream}.{consumer}"

    def _receive_idle(self, message: ReceivedMessage) -> None:
        status = message.status
        if status is not None:
            self._idle.pop(message.subject.rpartition(".")[2], None)
            self.on_end(is_expired=status in (404, 408))
            return
        consumer = consumer_of(message)
        self._idle.pop(consumer, None)
        self._drained.pop(consumer, None)
        self.on_delivery(parse_delivery(message))

    # -- fetching

    async def fetch(self, requests: Sequence[FetchRequest], seconds: float) -> list[Delivery]:
        """Return messages that these consumers have right now, at most `FetchRequest.most` of each.

        Wait at most `seconds` for them. Messages that come later are passed to `on_delivery`.
        """
        replies = await asyncio.gather(*(self._fetch(request, seconds) for request in requests))
        return [delivery for reply in replies for delivery in reply]

    async def _fetch(self, request: FetchRequest, seconds: float) -> list[Delivery]:
        most = 1 if self._loop_time() < self._cut.get(request.consumer, 0.0) else request.most
        body = b'{"batch":%d,"no_wait":true}' % most
        fetch = _PendingFetch(most)
        self._fetches[request.consumer] = fetch
        try:
            is_complete = await self._request(
                self._request_subject(request.consumer), body, "fetch", fetch, seconds
            )
        finally:
            if self._fetches.get(request.consumer) is fetch:
                del self._fetches[request.consumer]
        if not is_complete and fetch.found and self.api_subject != API:
            # An earlier version stores messages without data and headers. In the account of a role, the server
            # ends its deliveries with such a message. The messages behind it come again after the lease.
            self._cut[request.consumer] = self._loop_time() + CUT_SECONDS
        if is_complete and not (fetch.found and fetch.found[-1].pending):
            self._drained[request.consumer] = self._loop_time()
        return fetch.found

    def _receive_fetched(self, message: ReceivedMessage) -> None:
        """Receive a status, which has the reply subject of its fetch, or a message, which has its own subject."""
        if message.status is not None:
            self._receive_one_of_many(message)
            return
        fetch = self._fetches.get(consumer_of(message))
        if fetch is None or fetch.done.done():  # it comes late, but the consumer has delivered it to this process
            self.on_delivery(parse_delivery(message))
        else:
            fetch.add(parse_delivery(message))

    # -- replies of many messages

    async def collect(self, subject: str, body: dict[str, Any], seconds: float) -> list[ReceivedMessage] | None:
        """Send a request, and return all messages of the reply, which ends with a status.

        Return None if the status does not come in time, or says that the service is not available.
        """
        reply = _LongReply()
        is_complete = await self._request(subject, json.dumps(body).encode(), "many", reply, seconds)
        return reply.found if is_complete else None

    def _receive_one_of_many(self, message: ReceivedMessage) -> None:
        reply = self._replies.get(message.subject)
        if reply is None or reply.done.done():
            return
        status = message.status
        if status is not None:
            reply.done.set_result(status != 503)
        elif isinstance(reply, _LongReply):
            reply.found.append(message)

    async def _request(
        self, subject: str, body: bytes, kind: str, reply: _PendingFetch | _LongReply, seconds: float
    ) -> bool:
        """Send a request, and wait until its reply is complete; return False if that takes longer.

        Return False, too, if the server's status says that the service is not available, or without a connection.
        """
        client = self._client
        if client is None:
            return False
        self._count += 1
        inbox = f"{self._inbox}.{kind}.{self._count}"
        self._replies[inbox] = reply
        self._unfinished[reply.done] = subject
        try:
            await client.write([encode_message(subject, body, inbox)])
            await asyncio.wait([reply.done], timeout=seconds)
            return reply.done.done() and reply.done.result()
        finally:
            del self._unfinished[reply.done]
            del self._replies[inbox]


class _PendingFetch:
    """The messages that a consumer delivers for one fetch.

    `done` gets a result when as many have come as the fetch asks for, or when the status comes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.found: list[Delivery] = []
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def add(self, delivery: Delivery) -> None:
        """Add a message that has come."""
        self.found.append(delivery)
        if len(self.found) == self._most:
            self.done.set_result(True)


class _LongReply:
    """The messages of a reply to one request. `done` gets a result when the status comes."""

    def __init__(self) -> None:
        self.found: list[ReceivedMessage] = []
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


def stored_message(message: ReceivedMessage) -> StoredMessage:
    """Return the revision and the data of a message that a direct read has returned."""
    revision = int(message.header(b"Nats-Sequence") or 0)
    limiter, ttl = message.header(_LIMITER_HEADER), message.header(b"Nats-TTL")
    return StoredMessage(revision, message.data, limiter or "", ttl or "")
