"""Answers to messages that are stored each for itself: many of them, awaited as one."""

from __future__ import annotations

import asyncio

import msgspec
from nats.aio.msg import Msg


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
