"""The reply inbox: receives the replies of the server, and passes each one to the request that waits for it.

Most requests are coroutines on the event loop. A submit waits without a coroutine, for the acknowledgements of its
messages and for the replies to its requests: the inbox wakes the waiting thread directly.

The wait for a reply ends at once when the connection is lost, or when the server denies permission for the
subject, because then no reply can come.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from itertools import count
from threading import Lock

import msgspec

from mainspring.engines.nats.client import BatchingClient, ReceivedMessage
from mainspring.errors import EngineUnavailable

_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')


class DeniedSubject(msgspec.Struct, frozen=True):
    """A subject that the server denies to this user.

    The subject is in lower case, because it comes from an error of nats-py.
    """

    is_subscription: bool
    subject: str


def parse_denied_subject(text: str) -> DeniedSubject | None:
    """Return the subject that the server denies in an error text; None if the text is no permission error."""
    match = _DENIED.search(text.lower())
    return None if match is None else DeniedSubject(match[1] == "subscription", match[2])


class _PubAck(msgspec.Struct, gc=False):
    """The server's reply to a published message: its revision in the stream, or an error."""

    seq: int = 0
    error: dict[str, object] | None = None


_decoder = msgspec.json.Decoder(_PubAck)


def parse_revision(reply: bytes) -> int | None:
    """Return the revision of a published message, given the server's reply.

    Return None if the server refused the message, or if the reply is empty, because there was none.
    """
    ack = _decoder.decode(reply) if reply else None
    return None if ack is None or ack.error is not None else ack.seq


class CollectedReplies:
    """Collects the replies to several messages, for a thread that waits for them."""

    __slots__ = ("_done", "_left", "data", "sent")

    def __init__(self, number: int, sent: float) -> None:
        self.sent = sent
        self.data = [b""] * number
        """The data of each reply; empty if there is no reply, or if no stream has the subject of the message."""
        self._left = number
        self._done = Lock()  # released at the end of the wait
        self._done.acquire()

    def add(self, index: int, message: ReceivedMessage) -> None:
        """Record the server's reply to the message with this index; the last one ends the wait."""
        self.data[index] = message.data
        self._left -= 1
        if not self._left:
            self.end()

    def end(self) -> None:
        """End the wait. Only the event loop calls this method."""
        if self._done.locked():
            self._done.release()

    def wait(self, seconds: float) -> None:
        """Block the calling thread until `end` is called, or the seconds have passed."""
        self._done.acquire(timeout=max(0.001, seconds))


class _PendingRequest(msgspec.Struct, frozen=True, gc=False):
    subjects: tuple[str, ...]
    future: asyncio.Future[ReceivedMessage]
    sent: float

    def fail_if_sent_to(self, subject: str, make_error: Callable[[str], EngineUnavailable]) -> bool:
        """Fail the request if it was sent to this subject, given in lower case; return whether it failed."""
        denied = [own for own in self.subjects if own.lower() == subject]
        if denied:
            self.fail(make_error(denied[0]))
        return bool(denied)

    def fail(self, error: Exception) -> None:
        """Fail the request, because no reply will come."""
        if not self.future.done():
            self.future.set_exception(error)


class ReplyInbox:
    """Receives replies and passes them to the requests.

    Methods must be called on the event loop, unless their docstring says otherwise.
    """

    def __init__(self, make_error: Callable[[str], EngineUnavailable]) -> None:
        self._make_error = make_error  # called with the denied subject
        self._requests: dict[str, _PendingRequest] = {}
        self._collected: dict[str, CollectedReplies] = {}
        self._numbers = count(1)
        self._is_denied = False
        self.subject = ""
        self.confirmed = 0.0
        """The time at which the last request with a reply was sent, by the event loop's clock; 0 if there is none.

        The connection was open at that time.
        """

    async def open(self, client: BatchingClient) -> None:
        """Subscribe to the subjects that receive replies."""
        self.subject = client.new_inbox()
        self._is_denied = False
        await client.subscribe_directly(f"{self.subject}.*", self._receive)
        await client.subscribe_directly(f"{self.subject}.*.*", self._receive_one_of_many)

    def _receive(self, message: ReceivedMessage) -> None:
        request = self._requests.pop(message.subject, None)
        if request is not None and not request.future.done():
            self.confirmed = max(self.confirmed, request.sent)
            request.future.set_result(message)

    def _receive_one_of_many(self, message: ReceivedMessage) -> None:
        inbox, _, index = message.subject.rpartition(".")
        replies = self._collected.get(inbox)
        if replies is not None:
            self.confirmed = max(self.confirmed, replies.sent)
            replies.add(int(index), message)

    def _next_subject(self) -> str:
        if self._is_denied:
            raise self._make_error(self.subject)
        return f"{self.subject}.{next(self._numbers)}"

    def register(self, *subjects: str) -> tuple[str, asyncio.Future[ReceivedMessage]]:
        """Register a request to these subjects; return its reply subject and a future for the reply.

        Raise `EngineUnavailable` if the server has denied the subscription to the inbox.
        """
        inbox = self._next_subject()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ReceivedMessage] = loop.create_future()
        self._requests[inbox] = _PendingRequest(subjects, future, loop.time())
        return inbox, future

    async def wait(
        self, inbox: str, future: asyncio.Future[ReceivedMessage], seconds: float
    ) -> ReceivedMessage | None:
        """Wait for a reply and return it; return None if no reply comes in time, or the connection is lost.

        Raise `EngineUnavailable` if the server denies a subject of the request, or that of the inbox.
        """
        try:
            return await asyncio.wait_for(future, max(0.001, seconds))
        except TimeoutError:
            return None
        finally:
            self._requests.pop(inbox, None)

    def subject_for_many(self) -> str:
        """Return a reply subject for several messages. Any thread may call this.

        The reply subject of each message is this subject, a dot and the index of the message. Raise
        `EngineUnavailable` if the server has denied the subscription to the inbox.
        """
        return self._next_subject()

    def collect(self, inbox: str, replies: CollectedReplies) -> None:
        """Collect the replies to a subject of `subject_for_many`, until `stop_collecting` is called for it."""
        self._collected[inbox] = replies

    def stop_collecting(self, inbox: str) -> None:
        """Stop collecting the replies to a subject of `subject_for_many`: those that still come are dropped."""
        self._collected.pop(inbox, None)

    def fail_all(self) -> None:
        """End all waits, because the connection is lost.

        Also reset `confirmed`, and forget a denied permission: the next connection may have other permissions.
        """
        self._is_denied = False
        self.confirmed = 0.0
        for request in list(self._requests.values()):
            request.fail(TimeoutError())
        self._end_waits_of_threads()

    def fail_denied(self, denied: DeniedSubject) -> bool:
        """Fail the requests to a denied subject; return whether a caller gets the error, at once or later.

        If the subscription to the inbox is denied, fail all requests, also later ones until `open` or `fail_all`.
        In each case, end the waits of threads: their callers repeat what got no reply.
        """
        is_reported = bool(self._collected)
        self._end_waits_of_threads()  # the callers repeat what got no reply
        if denied.is_subscription:
            is_ours = denied.subject.startswith(self.subject.lower())
            self._is_denied = self._is_denied or is_ours
            if is_ours:
                for request in list(self._requests.values()):
                    request.fail(self._make_error(self.subject))
            return is_ours
        for request in list(self._requests.values()):
            is_reported |= request.fail_if_sent_to(denied.subject, self._make_error)
        return is_reported

    def _end_waits_of_threads(self) -> None:
        for replies in list(self._collected.values()):
            replies.end()
