"""Hostile bodies freeze the event loop of the server neither without a token, nor as forms of a page."""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from select import select
from statistics import median

import pytest

from mainspring import Mainspring
from mainspring.web.api.endpoint import API, JSON, NDJSON
from mainspring.web.api.routes import all_endpoints
from mainspring.web.credentials import TokenAuthenticator
from mainspring.web.dashboard.dashboard import Dashboard
from mainspring.web.dashboard.site import all_actions, all_pages
from mainspring.web.guard import BROWSER_STATE, FORM, JSON_TYPES, PROBES
from tests.support import PATIENCE
from tests.web.test_server import Site, served, served_app

LONGEST_NS = 100_000_000
"""How long, in processor time, hostile requests may keep the event loop from answering a probe."""
LARGE = 8_000_000
PIECE = 200_000
"""How much of a request is sent before the next probe; less than the buffers of a connection have room for."""
_NOISE = random.Random(1).randbytes(70_000).hex().encode()  # so that the bodies do not compress too well
HOSTILE = {
    FORM: b"token=" + _NOISE + b"&next=/" + b"%22" * (LARGE // 3),
    JSON: b'["' + _NOISE + b'",' + b"[" * LARGE,
    NDJSON: _NOISE + b"\n" * LARGE,
}


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def places(app: Mainspring) -> list[tuple[str, str]]:
    """Return the method and the path of every route: of the API, of the dashboard, and the others."""
    pages, dashboard = all_pages(app), Dashboard(app, TokenAuthenticator(app), None)  # type: ignore[arg-type]
    assert {f"/{name}" for name in dashboard.own_paths} == BROWSER_STATE
    found = {(endpoint.method, f"{API}{endpoint.path}") for endpoint in all_endpoints(app)}
    found |= {(method, path) for path in BROWSER_STATE for method in ("GET", "POST")}
    found |= {("GET", page.path) for page in pages} | {("POST", action.path) for action in all_actions(app)}
    found |= {("GET", f"/live{page.path}") for page in pages if page.live}
    others = ("/metrics", f"{API}/unknown", "/unknown", "/static/dashboard.css", "/?token=msp_x")
    found |= {(method, path) for path in others for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "BREW")}
    return sorted((method, path.replace("{", "").replace("}", "")) for method, path in found)


def head(method: str, path: str, kind: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


class ProbedSite:
    """A running server, whose event loop is watched by probes while it gets hostile requests."""

    def __init__(self, site: Site, probes: HTTPConnection) -> None:
        self._site = site
        self._probes = probes
        identity = site.server._thread.ident
        assert identity is not None
        self._clock = time.pthread_getcpuclockid(identity)

    def check(self, name: str, *requests: bytes) -> None:
        """Fail if probes wait for too long. Only the median counts, because the loop may also tidy up memory."""
        if self._longest_wait(requests) > LONGEST_NS:
            found = [self._longest_wait(requests) for _ in range(5)]
            assert median(found) <= LONGEST_NS, f"{name} keeps the event loop busy for {max(found) / 1e9:.2f} s"

    def _longest_wait(self, requests: Iterable[bytes]) -> int:
        """Send each request over its connection, and probes until all are answered; return the longest wait."""
        with ExitStack() as stack:
            unsent = {stack.enter_context(self._site.connect()): data for data in requests}
            waiting = set(unsent)
            longest = 0
            while waiting:
                readable, writable, _ = select(waiting, unsent, [], 0)
                for connection in writable:
                    sent = connection.send(unsent[connection][:PIECE])
                    unsent[connection] = unsent[connection][sent:]
                unsent = {connection: data for connection, data in unsent.items() if data}
                longest = max(longest, self._probe())
                for connection in readable:
                    assert connection.recv(12).startswith((b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4"))
                    waiting.discard(connection)
                    unsent.pop(connection, None)
            return longest

    def log_in(self, token: str) -> str:
        """Log a browser in, and return its cookie."""
        self._probes.request("POST", "/login", f"token={token}", {"Content-Type": FORM})
        answer = self._probes.getresponse()
        answer.read()
        return answer.headers["set-cookie"].partition(";")[0]

    def _probe(self) -> int:
        """Send a probe; return the processor time of the event loop until its answer, in nanoseconds."""
        began = time.clock_gettime_ns(self._clock)
        self._probes.request("GET", "/healthz")
        assert self._probes.getresponse().read() == b'{"status":"ok"}'
        return time.clock_gettime_ns(self._clock) - began


@contextmanager
def probed(app: Mainspring) -> Iterator[ProbedSite]:
    with served_app(app) as site, closing(HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)) as probes:
        yield ProbedSite(site, probes)


def test_hostile_bodies_know_all_content_types(app: Mainspring) -> None:
    accepted = {kind for endpoint in all_endpoints(app) for kind in endpoint.media_types}
    assert accepted | {FORM} == set(HOSTILE)
    assert set(HOSTILE) - {FORM} <= JSON_TYPES


def test_no_hostile_body_without_a_token_keeps_a_probe_waiting(app: Mainspring) -> None:
    packed = {kind: gzip.compress(body, 6) for kind, body in HOSTILE.items()}
    assert all(LARGE / len(body) < 100 for body in packed.values())
    # a body with a higher ratio is refused before it has grown
    with probed(app) as site:
        for method, path in places(app):
            requests = [
                head(method, path, kind, "Content-Encoding: gzip", f"Content-Length: {len(body)}") + body
                for kind, body in packed.items()
            ]
            site.check(f"{method} {path}", *requests)


def test_a_body_in_tiny_chunks_keeps_no_probe_waiting(app: Mainspring) -> None:
    body = b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n"
    with probed(app) as site:
        for path, kind in (("/login", FORM), (f"{API}/jobs", JSON)):
            site.check(path, head("POST", path, kind, "Transfer-Encoding: chunked") + body)


def test_a_large_form_of_a_page_is_parsed_beside_the_event_loop(app: Mainspring) -> None:
    token = app.tokens.create("ann", scopes=["read"]).secret
    with probed(app) as site:
        headers = [f"Cookie: {site.log_in(token)}", "Content-Encoding: gzip"]
        body = gzip.compress(HOSTILE[FORM], 6)
        for path in BROWSER_STATE - {"/login"}:
            site.check(path, head("POST", path, FORM, *headers, f"Content-Length: {len(body)}") + body)


def test_a_closed_application_answers_nothing_but_probes_and_reads_no_body(app: Mainspring) -> None:
    with served(app.asgi()) as site:
        for method, path in places(app):
            status, problem = site.send(head(method, path, FORM, "Content-Length: 10"))  # without a body
            assert (status, problem["type"]) == (403, "urn:mainspring:problem:closed"), (method, path)
        assert all(site.request(probe)[0] == 200 for probe in PROBES)
