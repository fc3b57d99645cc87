"""Matches answers of the server to the requests that wait for them (the reply inbox).

No request waits for an answer that cannot come: the wait ends at once when the connection is lost, or when the
server denies permission for the subject.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from mainspring.errors import EngineUnavailable

_FORBIDDEN = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')


class Forbidden(msgspec.Struct, frozen=True):
    """A permission that the server denies. The subject is in lower case, as in all errors that nats-py reports."""

    is_subscription: bool
    subject: str


def read_forbidden(text: str) -> Forbidden | None:
    """Parse an error of the server; None if it is not about permissions."""
    match = _FORBIDDEN.search(text.lower())
    return None if match is None else Forbidden(match[1] == "subscription", match[2])


class _Stored(msgspec.Struct, gc=False):
    """The server's answer to a published message: its revision, or an error."""

    seq: int = 0
    error: dict[str, object] | None = None


_decoder = msgspec.json.Decoder(_Stored)


class Answers:
    """Collects the answers to a number of messages. Used on the event loop only."""

    __slots__ = ("_left", "done", "revisions")

    def __init__(self, number: int) -> None:
        self.revisions: list[int | None] = [None] * number
        """The revision of each message; None: it was refused, or not answered."""
        self._left = number
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, place: int, message: Msg) -> None:
        """Record the answer to one message."""
        if message.data:  # else no stream took the message
            stored = _decoder.decode(message.data)
            self.revisions[place] = stored.seq if stored.error is None else None
        self._left -= 1
        if not self._left:
            self.end()

    def end(self) -> None:
        """End the wait."""
        if not self.done.done():
            self.done.set_result(None)


class _Question(msgspec.Struct, frozen=True, gc=False):
    subjects: tuple[str, ...]
    future: asyncio.Future[Msg]

    def forbid(self, subject: str, make_error: Callable[[str], EngineUnavailable]) -> bool:
        """Fail the request if it was sent to a forbidden subject; return whether it was."""
        asked = [asked for asked in self.subjects if asked.lower() == subject]
        if asked:
            self.fail(make_error(asked[0]))
        return bool(asked)

    def fail(self, error: Exception) -> None:
        """Fail the request: no answer will come."""
        if not self.future.done():
            self.future.set_exception(error)


class Inbox:
    """Receives answers and passes them to the requests. Used on the event loop only."""

    def __init__(self, make_error: Callable[[str], EngineUnavailable]) -> None:
        self._make_error = make_error  # called with the forbidden subject
        self._questions: dict[str, _Question] = {}
        self._many: dict[str, Answers] = {}
        self._count = 0
        self._is_deaf = False
        self.subject = ""

    async def open(self, client: Client) -> None:
        """Subscribe to the subjects that receive answers."""
        self.subject = client.new_inbox()
        self._is_deaf = False
        await client.subscribe(f"{self.subject}.*", cb=self._receive)
        await client.subscribe(f"{self.subject}.*.*", cb=self._receive_one_of_many)

    async def _receive(self, message: Msg) -> None:
        question = self._questions.pop(message.subject, None)
        if question is not None and not question.future.done():
            question.future.set_result(message)

    async def _receive_one_of_many(self, message: Msg) -> None:
        inbox, _, place = message.subject.rpartition(".")
        answers = self._many.get(inbox)
        if answers is not None:
            answers.add(int(place), message)

    def _next(self) -> str:
        if self._is_deaf:
            raise self._make_error(self.subject)
        self._count += 1
        return f"{self.subject}.{self._count}"

    def expect(self, *subjects: str) -> tuple[str, asyncio.Future[Msg]]:
        """Register a request to these subjects; return its reply subject and the future of its answer."""
        inbox = self._next()
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._questions[inbox] = _Question(subjects, future)
        return inbox, future

    async def wait(self, inbox: str, future: asyncio.Future[Msg], seconds: float) -> Msg | None:
        """Return the answer; None if none comes in time, or the connection is lost."""
        try:
            return await asyncio.wait_for(future, max(0.001, seconds))
        except TimeoutError:
            return None
        finally:
            self._questions.pop(inbox, None)

    def expect_many(self, number: int) -> tuple[str, Answers]:
        """Register a number of messages; return their reply subject, to which each appends its index."""
        inbox = self._next()
        answers = self._many[inbox] = Answers(number)
        return inbox, answers

    async def wait_for_many(self, inbox: str, answers: Answers, seconds: float) -> list[int | None]:
        """Return the revision of each message, as far as the answers come in time."""
        await asyncio.wait([answers.done], timeout=max(0.001, seconds))
        del self._many[inbox]
        return answers.revisions

    def lose(self) -> None:
        """End all waits: the connection is lost. The next connection may have other permissions."""
        self._is_deaf = False
        for question in list(self._questions.values()):
            question.fail(TimeoutError())
        self._end_many()

    def note_forbidden(self, forbidden: Forbidden) -> bool:
        """Fail forbidden requests; return whether a caller gets the error, now or with its next request."""
        is_told = bool(self._many)
        self._end_many()  # the callers repeat what was not stored
        if forbidden.is_subscription:
            is_ours = forbidden.subject.startswith(self.subject.lower())
            self._is_deaf = self._is_deaf or is_ours
            if is_ours:
                for question in list(self._questions.values()):
                    question.fail(self._make_error(self.subject))
            return is_ours
        for question in list(self._questions.values()):
            is_told |= question.forbid(forbidden.subject, self._make_error)
        return is_told

    def _end_many(self) -> None:
        for answers in list(self._many.values()):
            answers.end()
