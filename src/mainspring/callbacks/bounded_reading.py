"""Bounds how much one attempt of a callback reads from its connection, whatever the receiver sends.

Invariants
- Each attempt has a budget of bytes as they arrive on the connection: one for informational answers (1xx) and the
  header, another one for the body with its framing. Many small reads use it up sooner than few large ones, because
  each read costs time on the event loop that all callbacks share.
- At most `MOST_INFORMATIONAL` informational answers are accepted, and one answer.
- At a violation the connection is closed at once. Before the header is complete, the attempt has no answer;
  afterwards the body ends there, and is marked as cut.
- A connection that waits for its next request has what is left of the last budget. So a receiver cannot fill the
  memory with answers to no request.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

MOST_INFORMATIONAL = 20
HEADER_BYTES = 32_768
"""The budget for informational answers and the header of the answer."""
FRAMING_BYTES = 16_384
"""The least budget for the framing of a body: sizes of chunks, their extensions, and trailers."""
LEAST_COST = 64
"""How many bytes of the budget one read costs at least."""
SLICE = 1_024
"""How many bytes of a header are parsed before the answers in them are counted."""


class AnswerTooLong(aiohttp.ClientError):
    """The receiver has sent more than an attempt reads before the header of its answer was complete."""


class BoundedConnection(ResponseHandler):
    """A connection to a receiver, which counts what each attempt reads: see the module.

    - `loop`: the event loop of the client
    - `most_body`: how many bytes of a body the attempt uses
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most_body: int) -> None:
        super().__init__(loop)
        self._body_budget = most_body + max(most_body, FRAMING_BYTES)
        self._left = 0
        self._informational = 0
        self._body: aiohttp.StreamReader | None = None
        self._is_refused = False
        self.is_cut = False
        """Whether the connection was closed in the middle of a body, because it was too long."""

    def set_response_params(self, **params: Any) -> None:
        """Begin an attempt with a budget of its own. aiohttp calls this before it sends a request."""
        self._left = HEADER_BYTES
        self._informational = 0
        self._body = None
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Count an answer whose header is complete. aiohttp calls this for each one."""
        status = data[0].code
        if 100 <= status <= 199 and status != 101:
            self._informational += 1
        elif self._body is None:
            self._body = data[1]
            self._left += self._body_budget
        else:
            self._left = 0  # a second answer to one request
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the receiver as far as the budget allows; close the connection if they exceed it."""
        if self._is_refused:  # the parser may have been paused, and must not resume
            return
        if not data:  # aiohttp resumes its parser
            super().data_received(data)
            return
        self._left -= max(0, LEAST_COST - len(data))
        while data and self.is_connected():
            count = min(self._left, len(data) if self._body is not None else SLICE)
            if count <= 0 or self._informational > MOST_INFORMATIONAL:
                self._refuse()
                return
            part, data = data[:count], data[count:]
            self._left -= len(part)
            super().data_received(part)

    def _refuse(self) -> None:
        body = self._body
        self._is_refused = True
        self.force_close()
        self.abort()
        if body is None:
            self.set_exception(AnswerTooLong(self._describe_header()))
        elif not body.is_eof():
            self.is_cut = True
            body.feed_eof()

    def _describe_header(self) -> str:
        if self._informational > MOST_INFORMATIONAL:
            return f"it has sent more than {MOST_INFORMATIONAL} informational answers (1xx)"
        return f"the header of its answer has not ended after {HEADER_BYTES:,} bytes"


class BoundedAnswer(aiohttp.ClientResponse):
    """An answer on a `BoundedConnection`."""

    bounded: BoundedConnection

    async def start(self, connection: Connection) -> BoundedAnswer:
        """Read the header of the answer. aiohttp calls this once for each request."""
        assert isinstance(connection.protocol, BoundedConnection)
        self.bounded = connection.protocol
        await super().start(connection)
        return self


def make_bounded_session(connector: aiohttp.TCPConnector, most_body: int, **options: Any) -> aiohttp.ClientSession:
    """Make a session of aiohttp whose connections are bounded; `options` are those of `aiohttp.ClientSession`."""
    make = partial(BoundedConnection, asyncio.get_running_loop(), most_body)
    connector._factory = make  # type: ignore[assignment]  # aiohttp has no public name for it
    return aiohttp.ClientSession(connector=connector, response_class=BoundedAnswer, **options)
