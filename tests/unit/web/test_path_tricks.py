"""Paths that are encoded several times or contain dot segments open nothing that the plain path does not."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from mainspring import Mainspring
from tests.asgi_client import request
from tests.dashboard_client import FORM

JSON = ("content-type", "application/json")
BODY = b'{"type": "ping"}'
PATHS = ("/api/v1/jobs", "/metrics", "/jobs/1/cancel", "/jobs")
PUBLIC = "/login"


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        app.job(name="ping")(lambda: None)
        yield app


def encoded(text: str, times: int) -> str:
    """Return a text whose characters are all percent-encoded, several times."""
    found = "".join(f"%{ord(each):02X}" for each in text)
    return found if times == 1 else found.replace("%", "%" + "25" * (times - 1))


def tricks(path: str) -> Iterator[str]:
    """Yield forms of a path that a careless server might take for it, or for a public path."""
    for times in (1, 2, 3):
        slash, dots, end = encoded("/", times), encoded("..", times), encoded(path[-1], times)
        yield from (path.replace("/", slash), path[:-1] + end, path + slash, path + encoded("\0", times))
        yield from (f"{PUBLIC}/{dots}{path}", f"{PUBLIC}{slash}{dots}{path}", f"/x/{dots}{path}")
        yield from (path + encoded("?", times), path + encoded("\r\nX: y", times))
    yield from ("/" + path, f"{path}/", f"{path};x", f"/.{path}", f"{PUBLIC}/..{path}", f"{PUBLIC}/..%20{path}")
    yield from (f"/%c0%af{path[1:]}", f"/%c0%ae%c0%ae{path}", path.replace("/", "\\"), f"http://127.0.0.1{path}")


def test_no_trick_with_a_path_opens_anything_without_a_token(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens")
    welcome = request(asgi, "/").body
    for path in PATHS:
        for trick in (path, *tricks(path)):
            answer = request(asgi, trick)
            assert answer.status in (400, 401, 404) or answer.body == welcome, trick
            for kind in (JSON, FORM):
                answer = request(asgi, trick, method="POST", headers=[kind], body=BODY)
                assert answer.status in (400, 401, 404, 405, 415), trick
    assert sum(app.counts().values()) == 0


def test_no_trick_with_a_path_changes_anything_on_a_read_only_server(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens", read_only=True)
    token = app.tokens.create("ann", scopes=["admin"]).secret
    for path in PATHS:
        for trick in (path, *tricks(path)):
            for kind in (JSON, FORM):
                answer = request(asgi, trick, method="POST", token=token, headers=[kind], body=BODY)
                assert answer.status in (403, 415), trick
    assert sum(app.counts().values()) == 0


def test_an_id_in_a_path_is_decoded_once(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens")
    token = app.tokens.create("ann", scopes=["admin"]).secret
    ids = ["a/b", "a%2Fb", "a%252Fb", "a%25252Fb", "..", "%2E%2E", "../jobs", ". "]
    ping = app.job(name="hello")(lambda: None)
    for job_id in ids:
        ping.options(id=job_id).submit()
    for job_id in ids:
        answer = request(asgi, f"/api/v1/jobs/{quote(job_id, safe='')}", token=token)
        assert (answer.status, answer.json["id"]) == (200, job_id)
