"""The NATS client: messages that skip the queue of their subscription, and writes that skip the flusher."""

import asyncio
from typing import Any

import pytest
from nats.aio.msg import Msg

from mainspring.engines.nats import connection
from mainspring.engines.nats.client import BatchingClient


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
    received: list[Msg] = []

    def receive(message: Msg) -> None:
        received.append(message)
        raise RuntimeError("on purpose")

    client._receivers[7] = receive

    async def parse() -> None:
        await client._ps.parse(b"MSG a 7 2\r\nhi\r\nHMSG b 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")

    asyncio.run(parse())
    assert [(message.subject, message.data) for message in received] == [("a", b"hi"), ("b", b"")]
    assert received[1].headers is not None
    assert received[1].headers["Status"] == "503"
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
