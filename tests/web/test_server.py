"""The HTTP server on real sockets: limits, slow clients, and a stop that answers what was accepted."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.security.asgi_types import AsgiApp, AsgiScope, Receive, Send
from mainspring.security.http_limits import HttpLimits
from mainspring.web.addresses import HttpAddress, open_listener
from mainspring.web.asgi import build
from mainspring.web.credentials import TokenAuthenticator
from mainspring.web.guard import RequestGuard
from mainspring.web.host_names import rule_for
from mainspring.web.server import HttpServer
from tests.support import PATIENCE, Background, eventually, wait_for_end_of

PROBLEM = "urn:mainspring:problem:"


class Site:
    """A running server, and what a client can do with it."""

    def __init__(self, server: HttpServer, port: int) -> None:
        self.server = server
        self.port = port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def request(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def send(self, data: bytes) -> tuple[int, dict[str, Any]]:
        """Send raw bytes, and return the status and the problem of the answer."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_problem(connection)


def read_problem(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Read an answer that is a problem."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    assert answer.headers["content-type"] == "application/problem+json"
    problem = json.loads(answer.read())
    assert problem["status"] == answer.status
    return answer.status, problem


@contextmanager
def served(app: AsgiApp, **limits: Any) -> Iterator[Site]:
    listener = open_listener(HttpAddress("127.0.0.1", 0))
    with HttpServer(app, listener, limits=HttpLimits(**limits)) as server:
        yield Site(server, listener.address.port)


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


@contextmanager
def served_app(app: Mainspring, **limits: Any) -> Iterator[Site]:
    """Serve an application as `mainspring serve` does."""
    asgi = build(app, TokenAuthenticator(app), hosts=rule_for(["127.0.0.1"], []), limits=HttpLimits(**limits))
    with served(asgi, **limits) as site:
        yield site


async def read_body(receive: Receive) -> int:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return size


async def answer(send: Send, body: bytes = b"done") -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def without_lifespan(scope: AsgiScope, receive: Receive, send: Send) -> bool:
    """Answer the lifespan protocol; return whether it was that."""
    if scope["type"] != "lifespan":
        return False
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
    return True


def guarded(app: Callable[[Receive, Send], Any], **limits: Any) -> AsgiApp:
    """Return an application with one route, behind the guard."""

    async def route(scope: AsgiScope, receive: Receive, send: Send) -> None:
        if not await without_lifespan(scope, receive, send):
            await app(receive, send)

    return RequestGuard(route, limits=HttpLimits(**limits))


def test_a_server_answers_those_who_have_a_token(app: Mainspring) -> None:
    token = app.tokens.create("shop", scopes=["read"]).secret
    with served_app(app) as site:
        assert site.request("/healthz") == (200, b'{"status":"ok"}')
        status, body = site.request("/api/v1/", headers={"Authorization": f"Bearer {token}"})
        assert (status, json.loads(body)["caller"]["name"]) == (200, "shop")
        assert site.request("/api/v1/")[0] == 401


def test_a_page_that_lets_its_name_point_to_this_machine_gets_nothing(app: Mainspring) -> None:
    token = app.tokens.create("shop", scopes=["admin"]).secret
    with served_app(app) as site:
        headers = {"Host": f"evil.example:{site.port}", "Authorization": f"Bearer {token}"}
        status, body = site.request("/api/v1/", headers=headers)
        assert (status, json.loads(body)["type"]) == (421, f"{PROBLEM}host-unknown")
        assert site.request("/api/v1/", headers=headers | {"Host": f"localhost:{site.port}"})[0] == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Authorization: Bearer a\0b\r\n", 400),
        (b"Authorization: Bearer x\r\nAuthorization: Bearer x\r\n", 400),
        (b"Authorization:\r\n", 401),
        (b"Authorization: Bearer\r\n", 401),
        ("Authorization: Bearer mspé\r\n".encode(), 401),
        (b"Authorization: Bearer " + b"x" * 9_000 + b"\r\n", 401),
        (b"Authorization: Bearer " + b"x" * 20_000 + b"\r\n", 431),
        (b"Authorization: Bearer " + b"x" * 200_000 + b"\r\n", 431),
    ],
)
def test_malformed_credentials_are_refused(app: Mainspring, header: bytes, status: int) -> None:
    with served_app(app) as site:
        data = b"GET /api/v1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header + b"\r\n"
        assert site.send(data)[0] == status


def test_a_request_that_is_no_http_is_refused(app: Mainspring) -> None:
    with served_app(app) as site:
        assert site.send(b"\x16\x03\x01 hello\r\n\r\n")[1]["type"] == f"{PROBLEM}not-http"
        assert site.request("/healthz")[0] == 200


def test_a_header_that_does_not_arrive_in_time_is_refused(app: Mainspring) -> None:
    with served_app(app, header_seconds=0.2) as site:
        for data in (b"", b"GET /healthz HTTP/1.1\r\nHost:"):
            status, problem = site.send(data)
            assert (status, problem["type"]) == (408, f"{PROBLEM}header-too-slow")


def test_the_second_request_of_a_connection_must_arrive_in_time_too(app: Mainspring) -> None:
    with served_app(app, header_seconds=0.2) as site, site.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        first = http.client.HTTPResponse(connection)
        first.begin()
        assert first.read() == b'{"status":"ok"}'
        connection.sendall(b"GET /heal")
        assert read_problem(connection)[0] == 408


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_header(app: Mainspring) -> None:
    with served_app(app) as site, site.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(1)
        (served_connection,) = site.server._server.server_state.connections
        accepted = served_connection.transport.get_extra_info("socket")
        # without it, each answer over keep-alive takes 40 ms more: the client delays its acknowledgement
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_idle_connection_is_closed(app: Mainspring) -> None:
    with served_app(app, idle_seconds=1) as site, site.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_for_end_of(connection)


def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    async def route(receive: Receive, send: Send) -> None:
        await read_body(receive)
        await answer(send)

    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n12345"
    with served(guarded(route, body_seconds=0.2)) as site:
        status, problem = site.send(head)
        assert (status, problem["type"]) == (408, f"{PROBLEM}body-too-slow")


def test_a_body_that_grows_too_large_is_refused() -> None:
    async def route(receive: Receive, send: Send) -> None:
        await read_body(receive)
        await answer(send)

    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served(guarded(route, max_body=100)) as site:
        status, problem = site.send(head + b"80\r\n" + b"x" * 128 + b"\r\n")
        assert (status, problem["type"]) == (413, f"{PROBLEM}body-too-large")


def test_a_client_that_never_ends_a_refused_request_is_disconnected() -> None:
    async def route(receive: Receive, send: Send) -> None:
        raise AssertionError("it is refused before")

    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    app = guarded(route, max_body=100)
    with served(app, max_body=100, body_seconds=0.2) as site, site.connect() as connection:
        connection.sendall(head + b"x")
        assert read_problem(connection)[0] == 413
        wait_for_end_of(connection)


def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    ended = Event()

    async def route(receive: Receive, send: Send) -> None:
        try:
            await answer(send, b"x" * 50_000_000)
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            ended.set()

    with served(guarded(route), write_seconds=0.2) as site, site.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert ended.wait(PATIENCE)
        # the client reads nothing until the server has dropped the connection
        assert eventually(lambda: not site.server._server.server_state.connections)
        wait_for_end_of(connection)


def test_beyond_the_number_of_connections_only_probes_are_answered(app: Mainspring) -> None:
    with served_app(app, connections=2) as site:
        first, second = site.connect(), site.connect()
        with first, second:
            for each in (first, second):  # an answer shows that the server has accepted the connection
                each.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                kept = http.client.HTTPResponse(each)
                kept.begin()
                kept.read()
            status, body = site.request("/api/v1/")
            assert (status, json.loads(body)["type"]) == (503, f"{PROBLEM}too-many-connections")
            assert site.request("/healthz")[0] == 200
        assert eventually(lambda: site.request("/api/v1/")[0] == 401)


def test_a_stopping_server_answers_the_requests_that_it_has_accepted() -> None:
    begun, may_end = Event(), Event()

    async def route(receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.get_running_loop().run_in_executor(None, may_end.wait, PATIENCE)
        await answer(send)

    listener = open_listener(HttpAddress("127.0.0.1", 0))
    server = HttpServer(guarded(route), listener, limits=HttpLimits(grace_seconds=PATIENCE))
    site = Site(server, listener.address.port)
    with server:
        client = Background(lambda: site.request("/"))
        assert begun.wait(PATIENCE)
        stop = Background(lambda: server.__exit__(None, None, None))
        assert eventually(lambda: is_refused(site))
        assert not stop.is_done
        may_end.set()
        assert client.result() == (200, b"done")
        stop.result()


def test_a_stopping_server_answers_requests_that_it_has_not_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def route(receive: Receive, send: Send) -> None:
        await answer(send)

    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    is_prepared = Event()
    clients: list[socket.socket] = []
    with served(guarded(route), grace_seconds=PATIENCE) as site:
        uvicorn_server = site.server._server
        on_tick = uvicorn_server.on_tick

        async def send_and_stop(counter: int) -> bool:
            """Send requests in the same turn of the event loop in which the stop begins."""
            if not is_prepared.is_set():
                return await on_tick(counter)
            clients.append(site.connect())  # the server has not accepted it
            for client in clients:
                client.sendall(request)
            return True

        monkeypatch.setattr(uvicorn_server, "on_tick", send_and_stop)
        clients.append(site.connect())
        clients[0].sendall(request)
        assert read_whole(clients[0]) == (b"done", False)
        is_prepared.set()
        site.server._thread.join(PATIENCE)
        assert not site.server._thread.is_alive()
    for client in clients:
        with client:
            assert read_whole(client) == (b"done", True)
            assert client.recv(1) == b""


def read_whole(connection: socket.socket) -> tuple[bytes, bool]:
    """Read an answer; return its body, and whether it says that the connection ends."""
    found = http.client.HTTPResponse(connection)
    found.begin()
    assert found.status == 200
    return found.read(), found.headers["connection"] == "close"


def is_refused(site: Site) -> bool:
    try:
        site.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_server_in_a_hurry_does_not_wait() -> None:
    begun, may_end = Event(), Event()

    async def route(receive: Receive, send: Send) -> None:
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        may_end.set()

    with served(guarded(route), grace_seconds=1_000) as site, site.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert begun.wait(PATIENCE)
        site.server.hurry()
        Background(lambda: site.server.__exit__(None, None, None)).result()
