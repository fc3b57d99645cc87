"""Attacks on tokens over real connections: revoked and expired ones in use, smuggled headers, foreign stores."""

from __future__ import annotations

import hmac
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Mainspring
from mainspring.errors import TokenInvalid
from mainspring.security import tokens
from mainspring.security.permissions import ALL_PERMISSIONS
from mainspring.security.tokens import authenticate, make_token
from mainspring.web.api import router
from tests.support import PATIENCE
from tests.web.test_server import Site, read_problem, served_app

PROBLEM = "urn:mainspring:problem:"
BODY = b'{"type": "ping"}'


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        app.job(name="ping", queue="mail")(lambda: None)
        app.job(name="pong", queue="shop")(lambda: None)
        yield app


class KeptConnection:
    """One connection that a client keeps for several requests."""

    def __init__(self, site: Site, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.sockets: set[int] = set()

    def get(self, path: str = "/api/v1/") -> tuple[int, Any]:
        return self._send("GET", path, None)

    def post(self, body: Any, path: str = "/api/v1/jobs") -> tuple[int, Any]:
        return self._send("POST", path, json.dumps(body).encode())

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, Any]:
        self._connection.request(method, path, body=body, headers=self._headers)
        assert self._connection.sock is not None
        self.sockets.add(self._connection.sock.getsockname()[1])
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        self._connection.close()


def make(app: Mainspring, *scopes: str, **options: Any) -> str:
    return app.tokens.create(f"token {len(app.tokens.list())}", scopes=scopes or ("admin",), **options).secret


def test_a_token_that_is_revoked_is_refused_on_an_open_connection(app: Mainspring) -> None:
    with served_app(app) as site:
        connection = KeptConnection(site, make(app))
        assert [connection.get()[0] for _ in range(3)] == [200] * 3
        app.tokens.revoke("token 0")
        status, problem = connection.get()
        assert (status, problem["type"]) == (401, f"{PROBLEM}token-invalid")
        assert connection.post({"type": "ping"})[0] == 401
        assert len(connection.sockets) == 1
        connection.close()
    assert app.counts()["PENDING"] == 0


def test_a_token_that_expires_is_refused_on_an_open_connection(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_app(app) as site:
        connection = KeptConnection(site, make(app, expires=timedelta(hours=1)))
        assert connection.get()[0] == 200
        engine = app.manager().engine
        end = engine.now() + 3_600 * 1_000_000
        monkeypatch.setattr(engine, "now", lambda: end)
        status, problem = connection.get()
        assert (status, "is expired" in problem["detail"]) == (401, True)
        assert len(connection.sockets) == 1
        connection.close()


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_token_that_ends_while_the_body_arrives_submits_nothing(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(router, "RECHECK_NS", 0)  # any body is slow
    token = make(app, "submit", expires=timedelta(hours=1))
    with served_app(app) as site, site.connect() as connection:
        head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert b"100 Continue" in connection.recv(1_000)  # the caller was identified, and the body is wanted
        if end == "revoked":
            app.tokens.revoke("token 0")
        else:
            later = app.manager().engine.now() + 3_600 * 1_000_000
            monkeypatch.setattr(app.manager().engine, "now", lambda: later)
        connection.sendall(BODY)
        status, problem = read_problem(connection)
        assert (status, end in problem["detail"]) == (401, True)
    assert sum(app.counts().values()) == 0


def raw_request(
    token: str, *headers: str, method: str = "GET", path: str = "/api/v1/", body: bytes = b""
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    return "\r\n".join([*(line.replace("TOKEN", token) for line in lines), "", ""]).encode("latin-1") + body


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Authorization: Bearer TOKEN", "Authorization: Bearer TOKEN"], 400),
        (["Authorization: Bearer TOKEN", "authorization: Basic x"], 400),
        (["AUTHORIZATION: x", "Authorization: Bearer TOKEN"], 400),
        (["Authorization: Bearer TOKEN, Bearer TOKEN"], 401),
        (["Authorization: Basic x, Bearer TOKEN"], 401),
        (["Authorization: Basic x", " Bearer TOKEN"], 401),  # a folded line
        (["Authorization : Bearer TOKEN"], 400),
        (["Authorization\t: Bearer TOKEN"], 400),
        (["Authorization\x00: Bearer TOKEN"], 400),
        (["X-Forwarded-Authorization: Bearer TOKEN"], 401),
        (["X-Original-Authorization: Bearer TOKEN", "X-Auth-Token: TOKEN"], 401),
        (["Authorization_: Bearer TOKEN"], 401),
        (["Cookie: Authorization=Bearer TOKEN; token=TOKEN"], 401),
        (["X-Request-ID: a", "Authorization;: Bearer TOKEN"], 400),
    ],
    ids=str,
)
def test_a_smuggled_token_is_no_token(app: Mainspring, headers: list[str], status: int) -> None:
    token = make(app)
    with served_app(app) as site:
        assert site.send(raw_request(token, *headers))[0] == status


def test_a_token_in_the_address_or_the_body_is_no_token(app: Mainspring) -> None:
    token = make(app)
    with served_app(app) as site:
        for path in (f"/api/v1/?token={token}", f"/api/v1/?access_token={token}&authorization=Bearer%20{token}"):
            assert site.send(raw_request(token, path=path))[0] == 401
        body = json.dumps({"type": "ping", "token": token}).encode()
        data = raw_request(
            token,
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            method="POST",
            path="/api/v1/jobs",
            body=body,
        )
        assert site.send(data)[0] == 401
        userinfo = f"GET http://x:{token}@127.0.0.1/api/v1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        assert site.send(userinfo)[0] in (401, 404)


def answers_of(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    found = b""
    while part := connection.recv(65_536):
        found += part
    return found


def test_a_second_request_inside_of_a_body_is_not_carried_out(app: Mainspring) -> None:
    token = make(app, "submit")
    hidden = raw_request(
        token,
        "Authorization: Bearer TOKEN",
        "Content-Type: application/json",
        f"Content-Length: {len(BODY)}",
        method="POST",
        path="/api/v1/jobs",
        body=BODY,
    )
    chunked = b"0\r\n\r\n"
    framings = [
        # both framings: one of them ends before the hidden request
        [f"Content-Length: {len(chunked + hidden)}", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, identity", f"Content-Length: {len(chunked + hidden)}"],
        [f"Content-Length: {len(chunked + hidden)}", f"Content-Length: {len(chunked)}"],
        [f"Content-Length: {len(chunked)}, {len(chunked + hidden)}"],
        [f"Content-Length: +{len(chunked + hidden)}"],
    ]
    for framing in framings:
        with served_app(app, idle_seconds=2 * PATIENCE) as site, site.connect() as connection:
            head = raw_request(
                token, "Content-Type: application/json", *framing, method="POST", path="/api/v1/jobs"
            )
            connection.sendall(head + chunked + hidden)  # the outer request has no token
            found = answers_of(connection)  # the client keeps the connection open, and the server closes it
            assert found.startswith(b"HTTP/1.1 4"), (framing, found)
            assert found.count(b"HTTP/1.1 ") == 1, (framing, found)
            assert b"urn:mainspring:problem:not-http" in found
    assert sum(app.counts().values()) == 0


def test_the_connection_of_a_request_without_a_certain_end_is_closed(app: Mainspring) -> None:
    with served_app(app) as site:
        for headers, version in (
            (["Transfer-Encoding: chunked", "Content-Length: 5"], b"HTTP/1.1"),
            (["Content-Length: 5", "transfer-encoding: Chunked"], b"HTTP/1.1"),
            (["Transfer-Encoding: chunked"], b"HTTP/1.0"),
        ):
            for path in ("/healthz", "/api/v1/jobs", "/login"):
                with site.connect() as connection:
                    head = raw_request("", *headers, method="POST", path=path).replace(b"HTTP/1.1", version)
                    connection.sendall(head + b"0\r\n\r\n")
                    found = answers_of(connection)
                assert found.startswith(b"HTTP/1.1 400"), (headers, found)
                assert b"\r\nconnection: close\r\n" in found.lower()


def test_a_restricted_token_submits_only_what_it_may(app: Mainspring) -> None:
    with served_app(app) as site:
        by_type = KeptConnection(site, make(app, "submit", types=["ping"]))
        by_queue = KeptConnection(site, make(app, "submit", queues=["mail"]))
        reader = KeptConnection(site, make(app, "read"))
        allowed, refused = (201, None), (403, f"{PROBLEM}not-allowed")
        for connection, body, expected in (
            (by_type, {"type": "ping"}, allowed),
            (by_type, {"type": "ping", "queue": "shop"}, allowed),
            (by_type, {"type": "pong"}, refused),
            (by_type, {"type": "unknown"}, refused),
            (by_queue, {"type": "ping"}, allowed),
            (by_queue, {"type": "pong", "queue": "mail"}, allowed),
            (by_queue, {"type": "pong"}, refused),
            (by_queue, {"type": "ping", "queue": "shop"}, refused),
            (reader, {"type": "ping"}, refused),
        ):
            status, answer = connection.post(body)
            assert (status, answer.get("type")) == expected, body
        status, answer = by_type.post([{"type": "ping"}, {"type": "pong"}], "/api/v1/jobs/batch")
        assert (status, answer["line"]) == (403, 2)  # and the first one is not stored
        for connection in (by_type, by_queue, reader):
            connection.close()
    assert app.counts()["PENDING"] == 4


def test_a_token_of_another_store_is_unknown(app: Mainspring) -> None:
    with Mainspring("memory://") as other, served_app(app) as site:
        foreign = make(other)
        make(app)
        connection = KeptConnection(site, foreign)
        status, problem = connection.get()
        assert (status, "unknown here" in problem["detail"]) == (401, True)
        connection.close()


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown id, a wrong secret and the right one take the same steps, with values of the same length."""
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def spy(first: Any, second: Any) -> bool:
        compared.append((len(first), len(second)))
        return bool(compare(first, second))

    class Spied:
        compare_digest = staticmethod(spy)

    token, record = make_token("shop", ALL_PERMISSIONS, created=0)
    unknown, _ = make_token("shop", ALL_PERMISSIONS, created=0)
    other, _ = make_token("shop", ALL_PERMISSIONS, created=0, random_bits=lambda number: (1 << number) - 1)
    _, same_id = make_token("shop", ALL_PERMISSIONS, created=0, random_bits=lambda number: (1 << number) - 1)
    wrong = replace(same_id, digest="0" * 64)
    monkeypatch.setattr(tokens, "hmac", Spied)
    steps = []
    for sent, known in ((token, record), (unknown, record), (other, wrong)):
        compared.clear()
        with suppress(TokenInvalid):
            authenticate(sent, {known.id: known}, 1)
        steps.append(list(compared))
    assert steps[0] == steps[1] == steps[2] == [(6, 6), (64, 64)]
