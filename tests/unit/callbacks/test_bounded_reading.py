"""What receivers send without end, and how much of it an attempt reads."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from aiohttp.client_proto import ResponseHandler

from mainspring import CallbackPolicy
from mainspring.callbacks.answers import NoAnswer, ReceiverAnswer
from mainspring.callbacks.bounded_reading import (
    FRAMING_BYTES,
    HEADER_BYTES,
    LEAST_COST,
    MOST_INFORMATIONAL,
    BoundedConnection,
)
from mainspring.callbacks.client import CallbackClient
from mainspring.callbacks.requests import CallbackRequest

MAX_BYTES = 20_000
BUDGET = HEADER_BYTES + 2 * MAX_BYTES
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"


class Parsed:
    """Counts what reaches the parser of aiohttp: bytes, and calls with bytes."""

    def __init__(self) -> None:
        self.bytes = self.reads = 0


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Parsed:
    counted = Parsed()
    parse = ResponseHandler.data_received

    def count(connection: ResponseHandler, data: bytes) -> None:
        counted.bytes += len(data)
        counted.reads += bool(data)
        parse(connection, data)

    monkeypatch.setattr(ResponseHandler, "data_received", count)
    return counted


class Storm:
    """A receiver that answers a request with `start`, and then with `part` until the connection is closed."""

    def __init__(self, start: bytes, part: bytes) -> None:
        self._start = start
        self._part = part
        self.is_closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError, asyncio.CancelledError):
            writer.write(self._start)
            while self._part:
                writer.write(self._part)
                await writer.drain()
                await asyncio.sleep(0)
        self.is_closed.set()
        writer.close()


def run_against(start: bytes, part: bytes) -> ReceiverAnswer:
    """Send a request to a storm, and return its answer."""

    async def run() -> ReceiverAnswer:
        storm = Storm(start, part)
        server = await asyncio.start_server(storm.serve, "127.0.0.1", 0)
        url = f"http://localhost:{server.sockets[0].getsockname()[1]}/x"
        policy = CallbackPolicy(allow=[url], allow_http=True, allow_private=True, max_bytes=MAX_BYTES)
        client = CallbackClient(policy)
        try:
            return await client.send(CallbackRequest(policy.check(url), "POST", {}, b""))
        finally:
            await storm.is_closed.wait()
            server.close()

    return asyncio.run(run())


@pytest.mark.parametrize("status", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_informational_answers_without_end_are_no_answer(parsed: Parsed, status: bytes) -> None:
    one = b"HTTP/1.1 " + status + b"\r\n\r\n"
    with pytest.raises(NoAnswer, match=f"more than {MOST_INFORMATIONAL} informational answers"):
        run_against(b"", one * 10_000)
    assert parsed.bytes < 2_000


def test_some_informational_answers_are_read_over(parsed: Parsed) -> None:
    answer = run_against(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * MOST_INFORMATIONAL + EMPTY, b"")
    assert (answer.status, answer.is_cut) == (200, False)
    assert parsed.bytes < BUDGET


HEADERS = {
    "many headers": (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 10_000),
    "long headers": (b"HTTP/1.1 200 OK\r\n", (b"a: " + b"b" * 4_000 + b"\r\n") * 100),
    "a long line": (b"HTTP/1.1 200 ", b"x" * 100_000),
    "long informational answers": (b"", (b"HTTP/1.1 103 X\r\nLink: " + b"x" * 4_000 + b"\r\n\r\n") * 20),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_without_end_is_no_answer(parsed: Parsed, name: str) -> None:
    with pytest.raises(NoAnswer, match="has not answered"):
        run_against(*HEADERS[name])
    assert parsed.bytes <= HEADER_BYTES


BODIES = {
    "an extension of a chunk": (CHUNKED + b"5;", b"a=b;" * 25_000, b""),
    "an extension of a later chunk": (CHUNKED + b"2\r\nok\r\n5;", b"a" * 100_000, b"ok"),
    "chunks of one byte": (CHUNKED, b"1\r\nx\r\n" * 15_000, None),
    "chunks with long extensions": (CHUNKED, (b"1;" + b"a" * 1_000 + b"\r\nx\r\n") * 100, None),
    "a body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 100_000, b"x" * MAX_BYTES),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_without_end_is_cut(parsed: Parsed, name: str) -> None:
    start, part, body = BODIES[name]
    answer = run_against(start, part)
    assert (answer.status, answer.is_cut) == (200, True)
    assert body is None or answer.body == body
    assert parsed.bytes <= BUDGET


def test_trailers_without_end_are_no_answer(parsed: Parsed) -> None:
    with pytest.raises(NoAnswer, match="has not answered"):
        run_against(CHUNKED + b"2\r\nok\r\n0\r\n", b"a: b\r\n" * 15_000)
    assert parsed.bytes <= BUDGET


def test_answers_without_a_request_close_the_connection(parsed: Parsed) -> None:
    """They arrive while the connection waits for its next request, and would fill the memory."""
    answer = run_against(EMPTY, EMPTY * 1_000)
    assert (answer.status, answer.is_cut) == (200, False)
    assert parsed.bytes <= BUDGET


def test_many_small_reads_use_up_the_budget_sooner(parsed: Parsed) -> None:
    answer = run_against(CHUNKED + b"5;", b"a")
    assert (answer.status, answer.is_cut) == (200, True)
    assert parsed.reads <= BUDGET / LEAST_COST + 10


def test_the_framing_of_small_bodies_has_a_budget_of_its_own(parsed: Parsed) -> None:
    assert FRAMING_BYTES < MAX_BYTES
    body = b"x" * 2_000
    framed = b"".join(b"1\r\nx\r\n" for _ in body) + b"0\r\n\r\n"
    answer = run_against(CHUNKED + framed, b"")
    assert (answer.body, answer.is_cut) == (body, False)
    assert parsed.bytes <= BUDGET


class Wire(asyncio.Transport):
    """A transport that remembers whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self._is_closed = False

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def test_a_parser_that_was_paused_does_not_resume_behind_the_cut() -> None:
    """aiohttp pauses its parser at many chunks, and resumes it when they are read: here, after the cut."""

    async def run() -> bytes:
        connection = BoundedConnection(asyncio.get_running_loop(), 65_536)
        wire = Wire()
        connection.connection_made(wire)
        connection.set_response_params(read_until_eof=True)
        connection.data_received(CHUNKED + b"1\r\nx\r\n" * 40_000)
        assert (connection.is_cut, wire.is_closing()) == (True, True)
        _, payload = await connection.read()
        body = await payload.read()
        connection.connection_lost(None)
        return body

    assert set(asyncio.run(run())) == {ord("x")}
