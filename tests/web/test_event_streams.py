"""`GET /api/v1/events` on SQLite: rights, filters, slow and broken clients, tokens that end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.clock import NANOSECONDS
from mainspring.engines.sqlite import event_log
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.web.api import events
from mainspring.web.credentials import MAX_AGE_NS
from tests.event_client import PATH, event_server
from tests.event_stream_suite import EventStreamSuite, Shop, open_shop, submitted
from tests.support import eventually, wait_for_end_of

PROBLEM = "urn:mainspring:problem:"


class TestEventStreamsOnSqlite(EventStreamSuite):
    """The tests for every engine."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/jobs.db"

    @pytest.fixture(autouse=True)
    def keep_monkeypatch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def delete_events(self, app: Mainspring) -> None:
        engine = app.manager().engine
        assert isinstance(engine, SqliteEngine)
        with self.monkeypatch.context() as patch:
            patch.setattr(event_log, "MAX_EVENTS", 1)
            engine.listen(engine.now())


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with open_shop(f"sqlite:///{tmp_path}/jobs.db") as shop:
        yield shop


# -- rights


def test_a_token_gets_only_events_of_jobs_that_it_may_read(shop: Shop) -> None:
    create = shop.app.tokens.create
    of_type = create("packer", scopes=["read"], types=["shop.pack"]).secret
    of_queue = create("mailer", scopes=["read"], queues=["mails"]).secret
    of_neither = create("odd", scopes=["read"], types=["shop.pack"], queues=["mails"]).secret
    of_all = create("all", scopes=["admin"]).secret
    with event_server(shop.app, tokens=True) as server:
        clients = [server.follow(token=token).begin() for token in (of_type, of_queue, of_all, of_neither)]
        shop.pack("a")
        shop.mail("b")
        shop.pack("c")
        assert clients[0].stories(2) == submitted("a", "c")
        assert clients[1].stories(1) == submitted("b")
        assert clients[2].stories(3) == submitted("a", "b", "c")
        server.stop()
        with pytest.raises(EOFError):
            clients[3].next()
        for client in clients:
            client.close()


def test_a_resumed_stream_has_only_events_that_the_token_may_read(shop: Shop) -> None:
    token = shop.app.tokens.create("packer", scopes=["read"], types=["shop.pack"]).secret
    with event_server(shop.app, tokens=True) as server:
        with server.follow(token=token) as client:
            last_id = client.begin().last_id
        shop.mail("a")
        shop.pack("b")
        with server.follow(token=token, last_id=last_id) as client:
            assert client.begin().stories(1) == submitted("b")


@pytest.mark.parametrize(
    ("scopes", "status", "problem"), [(["submit", "operate"], 403, "not-allowed"), (None, 401, "token-missing")]
)
def test_without_the_scope_there_is_no_stream(
    shop: Shop, scopes: list[str] | None, status: int, problem: str
) -> None:
    token = None if scopes is None else shop.app.tokens.create("shop", scopes=scopes).secret
    with event_server(shop.app, tokens=True) as server, server.follow(token=token) as client:
        assert (client.status, client.problem["type"]) == (status, PROBLEM + problem)


def test_the_stream_of_a_revoked_token_ends_before_the_next_event(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "CHECK_SECONDS", 0)
    token = shop.app.tokens.create("shop", scopes=["read"]).secret
    with event_server(shop.app, tokens=True) as server, server.follow(token=token) as client:
        client.begin()
        shop.pack("a")
        assert client.stories(1) == submitted("a")
        shop.app.tokens.revoke("shop")
        shop.pack("b")
        with pytest.raises(EOFError):
            client.next()


def test_the_stream_of_a_revoked_token_ends_without_an_event(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert events.CHECK_SECONDS + MAX_AGE_NS / NANOSECONDS <= 5, "the docs promise five seconds"
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.02)
    token = shop.app.tokens.create("shop", scopes=["read"]).secret
    with event_server(shop.app, tokens=True) as server, server.follow("?job=none", token=token) as client:
        client.begin()
        shop.app.tokens.revoke("shop")
        client.wait_for_end()
        assert client.comments == [], "it ended before the next keep-alive"


# -- filters


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?queue=mails", submitted("b")),
        ("?type=shop.pack", [*submitted("a"), ("canceled", "a"), *submitted("c")]),
        ("?type=pack&queue=orders&kind=submitted", submitted("a", "c")),
        ("?kind=canceled,failed", [("canceled", "a")]),
        ("?job=c", submitted("c")),
        ("?job=a&kind=canceled", [("canceled", "a")]),
    ],
)
def test_a_client_chooses_events(shop: Shop, query: str, expected: list[tuple[str, str]]) -> None:
    with event_server(shop.app) as server, server.follow() as everything, server.follow(query) as client:
        everything.begin()
        client.begin()
        shop.pack("a")
        shop.mail("b")
        shop.app.cancel("a")
        shop.pack("c")
        assert client.stories(len(expected)) == expected
        assert len(everything.stories(4)) == 4
        server.stop()
        with pytest.raises(EOFError):
            client.next()


@pytest.mark.parametrize(
    ("query", "problem", "words"),
    [
        ("?kind=fialed", "invalid-value", "'fialed' is no kind of event; did you mean 'failed'?"),
        ("?kind=", "invalid-value", "'' is no kind of event; the kinds are submitted, started"),
        ("?queues=mails", "invalid-query", "this endpoint has no parameter 'queues'; did you mean 'queue'?"),
    ],
)
def test_a_wrong_filter_is_refused(shop: Shop, query: str, problem: str, words: str) -> None:
    with event_server(shop.app) as server, server.follow(query) as client:
        assert client.status == 422
        found = client.problem
        assert found["type"] == PROBLEM + problem
        assert words in found["detail"]


# -- quiet streams


def test_a_quiet_stream_sends_comments_and_keeps_its_position_current(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05)
    with event_server(shop.app) as server, server.follow() as all_events, server.follow("?job=none") as client:
        first = client.begin().last_id
        shop.pack("a")
        last = all_events.begin().next().id
        while client.last_id != last:
            assert client.read_block() is None
            assert client.last_id in (first, last)
        assert set(client.comments) == {"keep-alive"}


def test_head_answers_the_header_only(shop: Shop) -> None:
    with event_server(shop.app) as server, server.follow(method="HEAD") as client:
        assert client.status == 200
        assert client.answer.headers["content-type"].startswith("text/event-stream")
        assert client.answer.read() == b""


# -- limits and slow clients


def test_a_client_that_leaves_makes_room_at_once(shop: Shop) -> None:
    with event_server(shop.app, event_readers=1) as server:
        for _ in range(3):
            assert eventually(lambda: _is_admitted(server.port))


def test_one_token_cannot_take_all_streams(shop: Shop) -> None:
    greedy, modest = (shop.app.tokens.create(name, scopes=["read"]).secret for name in ("greedy", "modest"))
    with event_server(shop.app, tokens=True, event_readers=10) as server, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(server.follow(token=greedy)).begin()
        for _ in range(5):
            with server.follow(token=greedy) as refused:
                assert (refused.status, refused.problem["type"]) == (429, f"{PROBLEM}too-many-own-readers")
        stack.enter_context(server.follow(token=modest)).begin()


def _is_admitted(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return connection.recv(12) == b"HTTP/1.1 200"


def test_a_client_that_reads_nothing_is_disconnected_and_delays_no_other(shop: Shop) -> None:
    number = 2_000
    long = shop.app.job(name="x" * 190, queue="y" * 190)(lambda: None)
    served = event_server(shop.app, write_seconds=0.5, send_buffer=4_096)
    with served as server, socket.socket() as slow, server.follow() as client:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert slow.recv(12) == b"HTTP/1.1 200"
        client.begin()
        ids = long.submit_many([()] * number)
        assert client.stories(number) == submitted(*ids)
        assert eventually(lambda: server.hub.readers == 1)  # a client that read now would be slow no more
        wait_for_end_of(slow)
        shop.pack("a")
        assert client.stories(1) == submitted("a")


def test_a_server_in_a_hurry_does_not_wait_for_slow_readers(shop: Shop) -> None:
    with event_server(shop.app, grace_seconds=1_000) as server, server.follow() as client:
        client.begin()
        server.server.hurry()
        server.stop()
        client.wait_for_end()
