"""A NATS server that answers only some requests, in virtual time, for tests of timeouts.

Nothing is sent over a network. Time is that of a clock which moves only when a thread or the event loop would
wait. So a call that waits for ten seconds takes no time, and the clock tells exactly how long it would have
waited.
"""

from __future__ import annotations

import asyncio
import json
import re
import selectors
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring import NatsSettings
from mainspring.clock import NANOSECONDS, SystemClock
from mainspring.engines.nats import connection, deliveries, replies
from mainspring.engines.nats.client import ReceivedMessage
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.streams import Streams
from mainspring.engines.sqlite import SqliteProjection
from tests.support import PATIENCE

START = datetime(2026, 11, 1, tzinfo=UTC)
_COMMAND = re.compile(rb"H?PUB (\S+) (\S*) ?(?:\d+ )?(\d+)\r\n")
ANSWER_SECONDS = 0.001
NOT_FOUND = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


class Answers(Enum):
    """What a server answers."""

    EVERYTHING = "requests that read, and that every message is stored"
    NOTHING = "nothing"
    READS = "requests that read, and no writes, as after an error of its disk"
    REFUSALS = "requests that read, and that its storage is full"
    CONFLICTS = "requests that read, and that another process has changed every record"
    NO_LEADER = "that there is no leader"


class VirtualClock(SystemClock):
    """A clock that `skip` moves."""

    def __init__(self) -> None:
        self._skipping = Lock()
        self._skipped = 0

    def monotonic_ns(self) -> int:
        return self._skipped

    def now(self) -> datetime:
        return START + timedelta(microseconds=self._skipped / 1_000)

    def skip(self, seconds: float) -> None:
        """Let the time pass that a thread would wait."""
        with self._skipping:
            self._skipped += max(1_000, round(seconds * NANOSECONDS))

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return self._skipped / NANOSECONDS


class _SkippingSelector(selectors.DefaultSelector):
    """Waits for no timer: it moves the clock instead."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout is not None else None)
        if not found and timeout:
            self._clock.skip(timeout)
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self._virtual_clock = clock
        super().__init__(_SkippingSelector(clock))

    def time(self) -> float:
        return self._virtual_clock.seconds


class SilentServer:
    """Stands for the client of a connection and the server behind it."""

    is_connected = True
    max_payload = 1_048_576
    connected_server_version = SimpleNamespace(major=2, minor=15, patch=1)

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.until = float("inf")
        """The time after which a request is an error, because a call goes on without an end."""
        self.answers = Answers.EVERYTHING
        self._stored = 0
        self.server: dict[str, Any] = {"server_id": "S", "client_id": 7}
        self.options: dict[str, Any] = {}
        self._receivers: list[tuple[str, Callable[[ReceivedMessage], None]]] = []

    async def connect(self, **_options: Any) -> None:
        """Connect at once."""

    async def flush(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    @property
    def is_mute(self) -> bool:
        """Whether the server does not answer some messages."""
        return self.answers in (Answers.NOTHING, Answers.READS, Answers.NO_LEADER)

    def new_inbox(self) -> str:
        return f"_INBOX.{len(self._receivers):022}"

    async def subscribe(self, _subject: str, cb: object) -> None:
        """Never deliver a message."""

    async def subscribe_directly(self, subject: str, receive: Callable[[ReceivedMessage], None]) -> None:
        self._receivers.append((subject, receive))

    async def write(self, messages: Iterable[bytes]) -> None:
        self.write_now(b"".join(messages))

    def write_now(self, data: bytes) -> None:
        assert self._clock.seconds < self.until, "the call does not end"
        start = 0
        while start < len(data):
            command = _COMMAND.match(data, start)
            assert command is not None, data[start : start + 80]
            subject, reply, size = command[1].decode(), command[2].decode(), int(command[3])
            body = data[command.end() : command.end() + size]
            start = command.end() + size + 2
            answer = self._answer(subject, body) if reply else None
            if answer is not None:
                self._send(reply, answer)

    def _send(self, reply: str, answer: bytes | dict[str, Any]) -> None:
        if isinstance(answer, bytes):  # a status
            message = ReceivedMessage(reply, "", b"", answer)
        else:
            message = ReceivedMessage(reply, "", json.dumps(answer).encode())
        for pattern, receive in self._receivers:
            if _matches(reply.split("."), pattern.split(".")):
                asyncio.get_running_loop().call_later(ANSWER_SECONDS, receive, message)

    def _answer(self, subject: str, body: bytes) -> bytes | dict[str, Any] | None:
        if self.answers is Answers.NOTHING:
            return None
        if self.answers is Answers.NO_LEADER:
            return b"NATS/1.0 503\r\n\r\n"
        if subject.startswith("$JS.API."):
            return self._answer_api(subject.removeprefix("$JS.API."), body)
        if self.answers is Answers.REFUSALS:
            return {"error": {"code": 503, "err_code": 10023, "description": "insufficient resources"}}
        if self.answers is Answers.CONFLICTS:
            return {"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 1"}}
        if self.answers is Answers.EVERYTHING:
            self._stored += 1
            return {"stream": "shop", "seq": self._stored}
        return None

    def _answer_api(self, verb: str, body: bytes) -> bytes | dict[str, Any] | None:
        if verb.startswith("CONSUMER.MSG.NEXT"):
            return b"NATS/1.0 404 No Messages\r\n\r\n" if b"no_wait" in body else None
        if verb.startswith("DIRECT.GET"):
            is_batch = b"multi_last" in body or b"batch" in body
            return b"NATS/1.0 204 EOB\r\n\r\n" if is_batch else b"NATS/1.0 404 Message Not Found\r\n\r\n"
        if verb.startswith("STREAM.MSG.GET"):
            return NOT_FOUND
        if verb.startswith("CONSUMER"):
            state = {"stream_seq": 0, "consumer_seq": 0}
            return {
                "config": {"ack_wait": 20 * NANOSECONDS},
                "num_pending": 0,
                "num_ack_pending": 0,
                "delivered": state,
                "ack_floor": state,
            }
        if verb.startswith("STREAM"):
            config = json.loads(body) if body.startswith(b'{"name"') else {}
            return {
                "created": "2026-11-01T00:00:00Z",
                "config": config,
                "state": {"first_seq": 1, "last_seq": 1, "messages": 0},
                "ts": "2026-11-01T00:00:00Z",
            }
        return {}


def _matches(subject: list[str], pattern: list[str]) -> bool:
    return len(subject) == len(pattern) and all(
        theirs in (own, "*") for own, theirs in zip(subject, pattern, strict=True)
    )


class SilentStore:
    """An engine whose server is a `SilentServer`, in virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, timeout: float) -> None:
        self.clock = clock = VirtualClock()
        self.server = SilentServer(clock)
        monkeypatch.setattr(connection, "BatchingClient", lambda: self.server)
        monkeypatch.setattr(asyncio, "new_event_loop", lambda: _VirtualLoop(clock))
        monkeypatch.setattr(deliveries, "FRESH_SECONDS", -1.0)
        monkeypatch.setattr(time, "sleep", clock.skip)
        monkeypatch.setattr(Streams, "sample_time", lambda _streams: None)  # its timer would skip time by itself

        def wait(collected: replies.CollectedReplies, seconds: float) -> None:
            # the answers that the server gives come in the same turn of the loop
            if not collected._done.acquire(timeout=0.05 if self.server.is_mute else PATIENCE):
                clock.skip(seconds)

        monkeypatch.setattr(replies.CollectedReplies, "wait", wait)
        self.engine = NatsEngine(
            "nats://silent:4222",
            make_projection=lambda name: SqliteProjection(folder / name),
            settings=NatsSettings(prefix="shop", timeout=timeout),
            clock=clock,
        )

    def measure(self, call: Callable[[NatsEngine], object]) -> tuple[float, object]:
        """Make a call; return how many seconds it waited, and its error or None."""
        before = self.clock.seconds
        self.server.until = before + 10_000
        error: object = None
        try:
            call(self.engine)
        except Exception as raised:  # the caller judges it
            error = raised
        self.server.until = float("inf")
        return self.clock.seconds - before, error
