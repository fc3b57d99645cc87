"""Answers of the server: where they come, and who waits for them.

Nobody waits for what cannot come: those who wait are told when the connection is lost, and when the server forbids
what they have asked.
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
    """What the server does not let us do. The client knows no capitals in what the server says."""

    is_subscription: bool
    subject: str


def read_forbidden(text: str) -> Forbidden | None:
    """Read what the server says; None if it is about something else."""
    match = _FORBIDDEN.search(text.lower())
    return None if match is None else Forbidden(match[1] == "subscription", match[2])


class _Stored(msgspec.Struct, gc=False):
    """What the server says of a message: its revision, or why it has none."""

    seq: int = 0
    error: dict[str, object] | None = None


_decoder = msgspec.json.Decoder(_Stored)


class Answers:
    """Collects the answers to so many messages. Belongs to the loop."""

    __slots__ = ("_left", "done", "revisions")

    def __init__(self, number: int) -> None:
        self.revisions: list[int | None] = [None] * number
        """What each was stored as; None: it was refused, or nobody has answered."""
        self._left = number
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, place: int, message: Msg) -> None:
        """One was answered."""
        if message.data:  # else nobody was there to take it
            stored = _decoder.decode(message.data)
            self.revisions[place] = stored.seq if stored.error is None else None
        self._left -= 1
        if not self._left:
            self.end()

    def end(self) -> None:
        """There is nothing more to wait for."""
        if not self.done.done():
            self.done.set_result(None)


class _Question(msgspec.Struct, frozen=True, gc=False):
    subjects: tuple[str, ...]
    future: asyncio.Future[Msg]

    def forbid(self, subject: str, make_error: Callable[[str], EngineUnavailable]) -> bool:
        """Tell who waits, if this was about a forbidden subject; answer whether it was."""
        asked = [asked for asked in self.subjects if asked.lower() == subject]
        if asked:
            self.fail(make_error(asked[0]))
        return bool(asked)

    def fail(self, error: Exception) -> None:
        """Tell who waits that there will be no answer."""
        if not self.future.done():
            self.future.set_exception(error)


class Inbox:
    """Where answers come. Belongs to the loop."""

    def __init__(self, make_error: Callable[[str], EngineUnavailable]) -> None:
        self._make_error = make_error  # of the subject that is forbidden
        self._questions: dict[str, _Question] = {}
        self._many: dict[str, Answers] = {}
        self._count = 0
        self._is_deaf = False
        self.subject = ""

    async def open(self, client: Client) -> None:
        """Begin to receive."""
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
        """Say where the answer to something comes that is sent to these subjects."""
        inbox = self._next()
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._questions[inbox] = _Question(subjects, future)
        return inbox, future

    async def wait(self, inbox: str, future: asyncio.Future[Msg], seconds: float) -> Msg | None:
        """Return the answer; None if there is none for a while, or no connection any more."""
        try:
            return await asyncio.wait_for(future, max(0.001, seconds))
        except TimeoutError:
            return None
        finally:
            self._questions.pop(inbox, None)

    def expect_many(self, number: int) -> tuple[str, Answers]:
        """Say where the answers to so many messages come: below it, each at its place."""
        inbox = self._next()
        answers = self._many[inbox] = Answers(number)
        return inbox, answers

    async def wait_for_many(self, inbox: str, answers: Answers, seconds: float) -> list[int | None]:
        """Return what each was stored as, as far as it is known after a while."""
        await asyncio.wait([answers.done], timeout=max(0.001, seconds))
        del self._many[inbox]
        return answers.revisions

    def lose(self) -> None:
        """The connection is gone: no answer can come any more. The next one may have other rights."""
        self._is_deaf = False
        for question in list(self._questions.values()):
            question.fail(TimeoutError())
        self._end_many()

    def note_forbidden(self, forbidden: Forbidden) -> bool:
        """Tell those who wait for what the server has forbidden; answer whether there is anybody, now or next."""
        is_told = bool(self._many)
        self._end_many()  # whoever finds that something was not stored asks again
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
