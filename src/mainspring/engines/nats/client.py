"""The NATS client: `nats-py`, changed so that it sends many messages in one write, and receives them faster.

`nats-py` publishes one message at a time, at 8 microseconds each. This module encodes a thousand messages and
sends them in one write, at one microsecond for each message. `nats-py` passes a message through a stream reader,
the task that parses, a queue and the task of its subscription, and a write through the task of the flusher;
`subscribe_directly` and `write_now` do without them.

This module uses parts of the client that are not public: `_send_command`, the flusher and the transport, as
`publish` does, `_process_msg`, which the parser calls, the state of the parser, the end of a handshake, and the
server's INFO, which also decides about TLS. The tests of this module and `tests/nats` fail at once if they change.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.protocol.parser import AWAITING_CONTROL_LINE

HEADER_VERSION = b"NATS/1.0\r\n"
_MESSAGE = re.compile(rb"MSG (\S+) (\d+) (?:(\S+) )?()(\d+)\r\n")
"""The line before the data of a message without headers: subject, subscription, perhaps reply subject, size.

The empty group has the place of the size of the headers in `_MESSAGE_WITH_HEADERS`.
"""
_MESSAGE_WITH_HEADERS = re.compile(rb"HMSG (\S+) (\d+) (?:(\S+) )?(\d+) (\d+)\r\n")
_H = ord("H")
_RECEIVER_FAILED = "a reply of the server could not be handled; its request counts as unanswered"
NO_TLS = "the settings ask for TLS, but the server offers no TLS; no credentials were sent"


logger = logging.getLogger("mainspring.nats")


class ReceivedMessage(Struct, frozen=True, gc=False):
    """A message of a direct subscription (`BatchingClient.subscribe_directly`).

    A receiver needs few of the headers. So `headers` has the lines of all headers as the server sent them, and
    `header` looks for one of them.
    """

    subject: str
    reply: str
    data: bytes
    headers: bytes = b""

    @property
    def status(self) -> int | None:
        """The status code if the server sent a status instead of a message; otherwise None."""
        if self.headers.startswith(HEADER_VERSION) or not self.headers:
            return None
        return int(self.headers.split(maxsplit=2)[1])

    def header(self, name: bytes) -> str | None:
        """Return the value of a header, the last one of this name; None if the message does not have it."""
        start = self.headers.rfind(b"\r\n%b:" % name)
        if start < 0:
            return None
        start += len(name) + 3
        return self.headers[start : self.headers.index(b"\r\n", start)].decode("utf-8", "replace").strip()


class BatchingClient(Client):
    """A NATS client that sends many messages in one write."""

    def __init__(self) -> None:
        super().__init__()
        self._receivers: dict[int, Callable[[ReceivedMessage], None]] = {}  # by the number of their subscription

    async def subscribe_directly(self, subject: str, receive: Callable[[ReceivedMessage], None]) -> None:
        """Subscribe to a subject, and call `receive` for each message, on the event loop.

        `receive` must not block.
        Usually the callback of the socket calls `receive` as soon as the data has come; otherwise the parser does.
        Exceptions of `receive` are logged.
        """
        subscription = await self.subscribe(subject, cb=_never_called)
        self._receivers[subscription._id] = receive

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        receive = self._receivers.get(sid)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            receive(ReceivedMessage(subject.decode(), reply.decode(), data, headers or b""))
        except Exception:  # the parser must go on
            logger.exception(_RECEIVER_FAILED)

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        if writer is not None:  # a web socket has none
            writer.transport.set_protocol(_DirectProtocol(writer.transport.get_protocol(), self._take_messages))

    def _take_messages(self, data: bytes) -> bytes:
        """Pass messages at the start of received data to their receivers, and return the rest for the parser.

        The rest begins with the first message that is incomplete or has no receiver, or with another command of
        the server. If the parser has not finished with earlier data, the rest is all of the data.
        """
        parser = self._ps
        is_parser_idle = parser.state == AWAITING_CONTROL_LINE and not parser.buf and self._is_reader_waiting()
        start = 0
        while is_parser_idle and start < len(data):
            kind = _MESSAGE_WITH_HEADERS if data[start] == _H else _MESSAGE
            line = kind.match(data, start)
            if line is None:
                break
            subject, number, reply, header_size, size = line.groups()
            sid, first = int(number), line.end()
            end = first + int(size)
            receive = self._receivers.get(sid)
            if receive is None or len(data) < end + 2:
                break
            start = end + 2
            body = first + int(header_size or 0)
            message = ReceivedMessage(
                subject.decode(), reply.decode() if reply else "", data[body:end], data[first:body]
            )
            try:
                receive(message)
            except Exception:  # an exception here would close the connection
                logger.exception(_RECEIVER_FAILED)
        return data[start:]

    def _is_reader_waiting(self) -> bool:
        """Return whether the task that parses has taken all earlier data from the stream reader, and waits."""
        reader = getattr(self._transport, "_io_reader", None)
        return getattr(reader, "_waiter", None) is not None

    @property
    def server(self) -> dict[str, Any]:
        """The INFO message that the server sends to a new connection."""
        return dict(self._server_info)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - its name
        """Refuse a server without the requested encryption. The client sends the password after this check."""
        await super()._process_info(info, initial_connection)
        is_wanted = "tls" in self.options or (self._current_server and self._current_server.uri.scheme == "tls")
        if is_wanted and initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise Error(NO_TLS)
            self._server_info["tls_required"] = True  # the client encrypts only if the server requires it

    def write_now(self, data: bytes) -> None:
        """Send encoded messages, behind those that wait for the flusher.

        Must be called on the event loop, while the client is connected.
        """
        if self._pending:
            data = b"".join((*self._pending, data))
            self._pending = []
            self._pending_data_size = 0
        if self._transport is not None:
            self._transport.write(data)

    async def write(self, messages: Iterable[bytes]) -> None:
        """Send encoded messages to the server in one write."""
        await self._send_command(b"".join(messages))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()


class _DirectProtocol(asyncio.Protocol):
    """Passes received data to a function first, and to the stream reader what the function returns of it."""

    def __init__(self, stream: asyncio.BaseProtocol, take: Callable[[bytes], bytes]) -> None:
        assert isinstance(stream, asyncio.StreamReaderProtocol)
        self._stream = stream
        self._take = take

    def data_received(self, data: bytes) -> None:
        rest = self._take(data)
        if rest:
            self._stream.data_received(rest)

    def eof_received(self) -> bool | None:
        return self._stream.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream.connection_lost(exc)

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()


async def _never_called(_message: Msg) -> None:
    raise AssertionError("the messages of this subscription go directly to their receiver")


def encode_message(subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> bytes:
    """Encode a message as a PUB or HPUB command of the NATS protocol.

    Subjects and headers are not escaped: the caller must pass valid ones.
    """
    if not headers:
        return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(data), data)
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
    size = len(HEADER_VERSION) + len(lines) + 2
    head = f"HPUB {subject} {reply} {size} {size + len(data)}\r\n".encode()
    return b"".join((head, HEADER_VERSION, lines, b"\r\n", data, b"\r\n"))
