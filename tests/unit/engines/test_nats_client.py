"""The NATS client: messages that skip the parser and the queue of their subscription, and writes that skip the
flusher.
"""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.transport import TcpTransport

from mainspring.engines.nats import connection
from mainspring.engines.nats.client import BatchingClient, ReceivedMessage, _DirectProtocol
from tests.support import PATIENCE


class RecordingTransport:
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def make_client() -> tuple[Any, RecordingTransport]:
    client: Any = BatchingClient()
    client._transport = transport = RecordingTransport()
    return client, transport


def test_a_write_comes_behind_the_commands_that_wait_for_the_flusher() -> None:
    client, transport = make_client()

    async def write() -> None:
        await client._send_command(b"SUB a 1\r\n")
        client.write_now(b"PUB a 0\r\n\r\n")
        client.write_now(b"PUB b 0\r\n\r\n")

    asyncio.run(write())
    assert transport.written == [b"SUB a 1\r\nPUB a 0\r\n\r\n", b"PUB b 0\r\n\r\n"]
    assert (client._pending, client._pending_data_size) == ([], 0)


def test_a_receiver_that_fails_does_not_stop_the_parser(caplog: pytest.LogCaptureFixture) -> None:
    client, _ = make_client()
    received: list[ReceivedMessage] = []

    def receive(message: ReceivedMessage) -> None:
        received.append(message)
        raise RuntimeError("on purpose")

    client._receivers[7] = receive

    async def parse() -> None:
        await client._ps.parse(b"MSG a 7 2\r\nhi\r\nHMSG b 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")

    asyncio.run(parse())
    assert [(message.subject, message.data) for message in received] == [("a", b"hi"), ("b", b"")]
    assert [message.status for message in received] == [None, 503]
    assert [record.message for record in caplog.records] == [
        "a reply of the server could not be handled; its request counts as unanswered"
    ] * 2


def test_a_client_that_does_not_close_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    client, _ = make_client()

    async def hang() -> None:
        raise TimeoutError

    client.close = hang
    caplog.set_level("DEBUG", "mainspring.nats")
    asyncio.run(connection._close(client))
    assert [record.message for record in caplog.records] == [
        "a connection to NATS could not be closed properly: TimeoutError()"
    ]


STREAM = (
    b"MSG a 7 2\r\nhi\r\n"
    b"MSG b 8 answer.here 0\r\n\r\n"
    b"MSG blank 7 4\r\nhi 3\r\n"
    b"+OK\r\n"
    b"MSG c 7 20\r\nMSG fake 7 2\r\nhi\r\n..\r\n"
    b"HMSG d 7 16 18\r\nNATS/1.0 503\r\n\r\nhi\r\n"
    b"MSG unknown 9 2\r\nhi\r\n"
    b"MSG e 7 4\r\n\r\n\r\n\r\n"
    b"MSG last 7 0\r\n\r\n"
)
MESSAGES = [
    ("a", "", b"hi"),
    ("b", "answer.here", b""),
    ("blank", "", b"hi 3"),
    ("c", "", b"MSG fake 7 2\r\nhi\r\n.."),
    ("d", "", b"hi"),
    ("e", "", b"\r\n\r\n"),
    ("last", "", b""),
]


class ReadingClient:
    """A client whose task reads and parses the data that a test passes to its protocol."""

    def __init__(self) -> None:
        self.client: Any = BatchingClient()
        self.received: list[tuple[str, str, bytes]] = []
        self.messages: list[ReceivedMessage] = []
        self.parsed = b""
        self._is_last = asyncio.Event()
        reader = asyncio.StreamReader()
        self.client._transport = transport = TcpTransport()  # type: ignore[no-untyped-call]
        transport._io_reader = reader
        transport._io_writer = ANY
        self.client._status = BatchingClient.CONNECTED
        self.client._receivers = {7: self._receive, 8: self._receive}
        parse = self.client._ps.parse

        async def parse_and_note(data: bytes) -> None:
            self.parsed += data
            await parse(data)

        vars(self.client._ps)["parse"] = parse_and_note
        self.protocol = _DirectProtocol(asyncio.StreamReaderProtocol(reader), self.client._take_messages)

    def _receive(self, message: ReceivedMessage) -> None:
        self.received.append((message.subject, message.reply, message.data))
        self.messages.append(message)
        if message.subject == "last":
            self._is_last.set()

    async def receive(self, parts: Sequence[bytes], *, turns: int) -> None:
        """Receive data in parts, with this number of turns of the event loop after each part."""
        task = asyncio.create_task(self.client._read_loop())
        await asyncio.sleep(0)  # from now on, the task waits for data
        for part in parts:
            self.protocol.data_received(part)
            for _ in range(turns):
                await asyncio.sleep(0)
        await asyncio.wait_for(self._is_last.wait(), PATIENCE)
        task.cancel()


def receive(parts: Sequence[bytes], turns: int = 3) -> ReadingClient:
    async def run() -> ReadingClient:
        reading = ReadingClient()
        await reading.receive(parts, turns=turns)
        return reading

    return asyncio.run(run())


def test_headers_do_not_pass_the_parser() -> None:
    lines = b"NATS/1.0\r\nNats-Sequence: 12\r\nNats-Subject:a.b\r\nNats-Sequence: 13\r\n\r\n"
    status = b"NATS/1.0 404 No Messages\r\n\r\n"
    first = b"HMSG a 7 x.y %d %d\r\n%bhi\r\n" % (len(lines), len(lines) + 2, lines)
    reading = receive([first, b"HMSG last 7 %d %d\r\n%b\r\n" % (len(status), len(status), status)])
    assert reading.received == [("a", "x.y", b"hi"), ("last", "", b"")]
    message, failure = reading.messages
    assert (message.status, failure.status) == (None, 404)
    assert (
        message.header(b"Nats-Sequence") == "13"
    )  # the server adds its headers behind those of the stored message
    assert message.header(b"Nats-Subject") == "a.b"
    assert message.header(b"Sequence") is None
    assert failure.header(b"Nats-Subject") is None
    assert reading.parsed == b""


def test_messages_with_a_receiver_do_not_pass_the_parser() -> None:
    reading = receive([b"MSG a 7 2\r\nhi\r\nMSG b 8 2\r\nho\r\n", b"MSG last 7 x.y 1\r\n!\r\n"])
    assert reading.received == [("a", "", b"hi"), ("b", "", b"ho"), ("last", "x.y", b"!")]
    assert reading.parsed == b""


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_messages_keep_their_order_wherever_the_network_cuts_them(turns: int) -> None:
    for cut in range(len(STREAM) + 1):
        assert receive([STREAM[:cut], STREAM[cut:]], turns).received == MESSAGES, cut
    for size in range(1, 60):
        parts = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
        assert receive(parts, turns).received == MESSAGES, size


PAYLOADS = st.lists(st.sampled_from([b" ", b"\r\n", b"MSG a 7 ", b"0", b"2", b"PING"])).map(b"".join)


@given(
    payloads=st.lists(st.tuples(st.sampled_from([7, 8, 9]), st.sampled_from(["", "x.y"]), PAYLOADS), max_size=6),
    cuts=st.lists(st.integers(0, 300), max_size=4).map(sorted),
    turns=st.integers(0, 3),
    has_headers=st.booleans(),
)
def test_any_messages_arrive_as_they_were_sent(
    *, payloads: list[tuple[int, str, bytes]], cuts: list[int], turns: int, has_headers: bool
) -> None:
    stream = b""
    for sid, reply, payload in [*payloads, (7, "", b"the end")]:
        subject = "last" if payload == b"the end" else "s"
        headers = b"NATS/1.0\r\nname: value\r\n\r\n" if has_headers else b""
        command, sizes = ("HMSG", f"{len(headers)} ") if headers else ("MSG", "")
        words = [command, subject, str(sid), reply, f"{sizes}{len(headers) + len(payload)}"]
        stream += " ".join(filter(None, words)).encode()
        stream += b"\r\n%b%b\r\n" % (headers, payload)
    parts = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream) + 300])]
    expected = [("s", reply, payload) for sid, reply, payload in payloads if sid != 9]
    assert receive(parts, turns).received == [*expected, ("last", "", b"the end")]


def test_a_receiver_that_fails_does_not_stop_the_socket(caplog: pytest.LogCaptureFixture) -> None:
    client, _ = make_client()
    client._transport = None
    received: list[bytes] = []

    def receive(message: ReceivedMessage) -> None:
        received.append(message.data)
        raise RuntimeError("on purpose")

    client._receivers[7] = receive
    client._is_reader_waiting = lambda: True
    assert client._take_messages(b"MSG a 7 2\r\nhi\r\nMSG b 7 2\r\nho\r\nPING\r\n") == b"PING\r\n"
    assert received == [b"hi", b"ho"]
    assert [record.message for record in caplog.records] == [
        "a reply of the server could not be handled; its request counts as unanswered"
    ] * 2
