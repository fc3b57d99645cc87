"""Checks every request before a route gets it, and completes every answer.

The guard gives a request its id, checks `Host`, `Origin` and the content type, decompresses the body, enforces the
limits of sizes and times, turns errors into problems, adds the headers that every answer has, and logs the
request.

Invariants
- Each request is answered, also if a route raises an error.
- Where a request ends is certain: the connection of one whose headers contradict each other is closed, so that no
  proxy and this server see different requests in the same bytes.
- Until the caller of a request is identified, its body has at most 16 KiB and is not compressed. A closed
  application answers nothing but probes. So a caller without a token costs the event loop little time.
- A log line has the path without the query, which may contain a token, and no header but the request id.
- A request of a foreign web page changes nothing. A write whose `Origin` is not this server is refused, and the
  API needs a JSON content type, for which a browser asks first (CORS). Forms of pages have a CSRF token instead.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from mainspring.clock import NANOSECONDS, Clock, SystemClock
from mainspring.errors import MainspringError
from mainspring.security.asgi_types import AsgiApp, AsgiMessage, AsgiScope, Receive, Send
from mainspring.security.http_limits import HttpLimits
from mainspring.security.tokens import hide_tokens
from mainspring.web.credentials import closed
from mainspring.web.decompression import Inflater, inflater_for
from mainspring.web.host_names import HostRule, is_same_origin
from mainspring.web.problems import FAILURE, MEDIA_TYPE, Problem, Refused, problem_of, refuse

REQUEST_ID = "mainspring.request_id"
"""The key of the request id in the ASGI scope."""
CALLER = "mainspring.caller"
"""The key of the caller's name in the ASGI scope. It is there once the caller was identified."""
PROBES = frozenset({"/healthz", "/readyz"})
OK = 200
READS = frozenset({"GET", "HEAD", "OPTIONS"})
JSON_TYPES = frozenset({"application/json", "application/x-ndjson", "application/ndjson"})
FORM = "application/x-www-form-urlencoded"
"""The content type of the forms of pages. Any foreign page can send it, so pages check a CSRF token as well."""
API_ROOT = "/api"
EARLY_BODY = 16_384
"""The size in bytes of the largest body that is read before the caller is identified, such as that of a login."""
BROWSER_STATE = frozenset({"/login", "/logout", "/theme"})
"""The paths of writes that change only the session or a cookie of a browser. A read-only server allows them."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}", re.ASCII)
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-store",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
}

logger = logging.getLogger("mainspring.http")


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path of a request without the path where the application is mounted; at least `/`."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return (path.removeprefix(root) if path.startswith(f"{root}/") or path == root else path) or "/"


def header_of(scope: Mapping[str, Any], name: bytes) -> str | None:
    """Return the value of a header; None if the request does not have it; raise `Refused` if it is repeated."""
    found = [value for key, value in scope["headers"] if key.lower() == name]
    if len(found) > 1:
        raise refuse(400, "header-repeated", f"the request has the header {name.decode()} several times; send one")
    return None if not found else str(found[0].decode("latin-1"))


class RequestGuard:
    """An ASGI application that checks and logs every request, and passes it to the application with the routes.

    - `app`: the ASGI application with the routes
    - `limits`: the largest sizes and longest times of a request
    - `hosts`: the names of this server; None accepts all, because the server around it checks them
    - `clock`: the clock for the durations in the log
    - `read_only`: refuse all requests that may change something, except those that log a browser in or out, or
      choose its theme
    - `is_closed`: refuse all requests except probes, because the application admits no caller
    - `end_streams`: ends the answers that would last for ever; a server calls it when it stops
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        limits: HttpLimits,
        hosts: HostRule | None = None,
        clock: Clock | None = None,
        read_only: bool = False,
        is_closed: bool = False,
        end_streams: Callable[[], None] | None = None,
    ) -> None:
        self.end_streams = end_streams
        self._app = app
        self._limits = limits
        self._hosts = hosts
        self._read_only = read_only
        self._is_closed = is_closed
        self._clock = clock or SystemClock()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request: check it, pass it on, answer an error as a problem, and log it.

        Other scopes, such as lifespan, are only passed on.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic_ns()
        scope = dict(scope)
        scope[REQUEST_ID] = request_id = _request_id(scope)
        answer = _Answer(send, request_id)
        body = _Body(scope, receive, self._limits)
        try:
            self._check(scope)
            body.prepare()
            await self._app(scope, body.receive, answer.send)
        except Refused as refused:
            await answer.refuse(refused.problem)
        except MainspringError as error:
            await answer.refuse(problem_of(error))
        except Exception:
            if body.is_disconnected:  # no client waits for an answer
                return
            logger.exception("request %s: %s %r failed", request_id, scope["method"], _loggable(scope))
            await answer.refuse(FAILURE)
        finally:
            self._log(scope, answer, began)

    def _check(self, scope: AsgiScope) -> None:
        _check_framing(scope)
        if self._is_closed and route_path(scope) not in PROBES:
            raise closed()
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._limits.max_header:
            raise refuse(
                431,
                "header-too-large",
                f"the header has {size:,} bytes, the limit is {self._limits.max_header:,}; send less",
            )
        host = header_of(scope, b"host")
        if self._hosts is not None and route_path(scope) not in PROBES:
            _check_host(host, self._hosts)
        if scope["method"] not in READS:
            _check_write(scope, host)
            if self._read_only and route_path(scope) not in BROWSER_STATE:
                raise refuse(
                    403, "read-only", "this server is read-only: it refuses all changes; use another server"
                )

    def _log(self, scope: AsgiScope, answer: _Answer, began: int) -> None:
        is_quiet = route_path(scope) in PROBES or route_path(scope) == "/metrics"
        status = answer.status
        level = logging.DEBUG if is_quiet and status == OK else logging.INFO
        if not logger.isEnabledFor(level):
            return
        milliseconds = (self._clock.monotonic_ns() - began) * 1_000 / NANOSECONDS
        caller = scope.get(CALLER)
        facts = {
            "event": "request",
            "request_id": answer.request_id,
            "method": scope["method"],
            "path": _loggable(scope),
            "status": status,
            "milliseconds": round(milliseconds, 3),
            **({} if caller is None else {"caller": caller}),
        }
        logger.log(
            level,
            "request %s: %s %r by %s: %s, %.1f ms",
            answer.request_id,
            scope["method"],
            facts["path"],
            "an unknown caller" if caller is None else repr(caller),
            "no answer" if status is None else status,
            milliseconds,
            extra={"facts": facts},
        )


def _loggable(scope: Mapping[str, Any]) -> str:
    """Return the path of a request for the log, at most 500 characters, without the query and without tokens."""
    return hide_tokens(str(scope["path"]))[:500]


def _request_id(scope: Mapping[str, Any]) -> str:
    """Return the client's `X-Request-ID` if it is a short plain text without a token; else a new random id."""
    given = [value for name, value in scope["headers"] if name.lower() == b"x-request-id"]
    text = given[0].decode("latin-1") if len(given) == 1 else ""
    return text if _REQUEST_ID.fullmatch(text) and hide_tokens(text) == text else uuid4().hex


def _check_framing(scope: Mapping[str, Any]) -> None:
    """Raise `Refused`, which closes the connection, if it is not certain where a request ends (RFC 9112, 6.1)."""
    if header_of(scope, b"transfer-encoding") is None:
        return
    is_old = scope.get("http_version") == "1.0"
    if is_old or any(name.lower() == b"content-length" for name, _ in scope["headers"]):
        other = "HTTP/1.0, which does not know it" if is_old else "Content-Length"
        raise refuse(
            400,
            "not-http",
            f"the request has Transfer-Encoding and {other}, so that its end is not certain; send one of them",
            connection="close",
        )


def _check_host(host: str | None, rule: HostRule) -> None:
    if host is None:
        raise refuse(400, "host-missing", "the request has no Host header; send one")
    if not rule.accepts(host):
        raise refuse(
            421,
            "host-unknown",
            f"the Host header {hide_tokens(host)[:100]!r} is no name of this server; use its address, or name the "
            "host with --host-name, or with hosts= of app.asgi()",
        )


def _check_write(scope: AsgiScope, host: str | None) -> None:
    origin = header_of(scope, b"origin")
    if origin is not None and (host is None or not is_same_origin(origin, host)):
        raise refuse(
            403,
            "origin-foreign",
            f"the request comes from a page of {hide_tokens(origin)[:100]!r}, which is another server, and must "
            "not change anything; send it from a page of this server",
        )
    site = header_of(scope, b"sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise refuse(
            403,
            "origin-foreign",
            f"the request comes from a page of another server (Sec-Fetch-Site: {site[:20]!r}), and must not "
            "change anything; send it from a page of this server",
        )
    kind = (header_of(scope, b"content-type") or "").partition(";")[0].strip().lower()
    path = route_path(scope)
    if kind == FORM and path != API_ROOT and not path.startswith(f"{API_ROOT}/"):
        return
    if kind not in JSON_TYPES and (scope["method"] != "DELETE" or kind or _has_body(scope)):
        raise refuse(
            415,
            "content-type",
            f"the content type of the request is {kind[:100]!r}; send JSON, with Content-Type: application/json",
        )


def _has_body(scope: AsgiScope) -> bool:
    length = header_of(scope, b"content-length")
    return header_of(scope, b"transfer-encoding") is not None or length not in (None, "0")


class _Body:
    """Passes the body of a request on to the application, decompressed, and enforces its limits.

    Invariant: until the caller is identified, no more than `EARLY_BODY` is passed on, and nothing is decompressed.
    """

    def __init__(self, scope: AsgiScope, receive: Receive, limits: HttpLimits) -> None:
        self._scope = scope
        self._receive = receive
        self._limits = limits
        self._announced = 0  # the size that the header announces; 0 if it announces none
        self._size = 0
        self._inflater: Inflater | None = None
        self._is_complete = False
        self._deadline: float | None = None
        self.is_disconnected = False

    def prepare(self) -> None:
        """Raise `Refused` if the headers announce a body that is too large, or that has an unknown encoding.

        The application behind the guard gets the decompressed body, so the headers `Content-Encoding` and
        `Content-Length` of a compressed body are removed.
        """
        length = header_of(self._scope, b"content-length")
        if length is not None and length.isdecimal():
            self._announced = int(length[:18])  # more digits would be an error of `int`, and no body is that large
        self._check_size(self._announced, self._limits.max_body)
        self._inflater = inflater_for(header_of(self._scope, b"content-encoding"), self._limits)
        if self._inflater is not None:
            hidden = (b"content-encoding", b"content-length")
            self._scope["headers"] = [pair for pair in self._scope["headers"] if pair[0].lower() not in hidden]

    async def receive(self) -> AsgiMessage:
        """Return the next ASGI message of the client, with its part of the body decompressed.

        Raises `Refused` if the body is too large or too slow, or cannot be decompressed.
        """
        if self._is_complete:
            return await self._receive()  # a disconnect, at any time
        if CALLER not in self._scope:
            self._check_early()
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise refuse(
                408,
                "body-too-slow",
                f"the body of the request did not arrive within {self._limits.body_seconds:g} s; send it faster, "
                "or in smaller requests",
                connection="close",
            ) from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
            self._check_size(self._size, self._limits.max_body)
            if CALLER not in self._scope:
                self._check_early()
            if self._inflater is not None:
                data = self._inflater.inflate(message.get("body", b""), is_last=self._is_complete)
                message = {**message, "body": data}
        self.is_disconnected |= message["type"] == "http.disconnect"
        return message

    def _check_early(self) -> None:
        """Raise `Refused` if the body is compressed or too large for a request without an identified caller."""
        if self._inflater is not None:
            raise refuse(
                415,
                "content-encoding",
                "the body is compressed, and the caller of the request is not known yet; send it uncompressed",
            )
        self._check_size(max(self._announced, self._size), min(EARLY_BODY, self._limits.max_body))

    def _check_size(self, size: int, limit: int) -> None:
        if size > limit:
            raise refuse(
                413,
                "body-too-large",
                f"the body of the request has {size:,} bytes or more, the limit is {limit:,}; send smaller "
                "requests",
            )


class _Answer:
    """Sends the answer to one request, with the headers that every answer has, and keeps its status for logs."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status: int | None = None
        """The status of the answer; None before it begins."""

    async def send(self, message: AsgiMessage) -> None:
        """Send a message to the client, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode("latin-1"))]
            present = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in _HEADERS.items() if name not in present]
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, problem: Problem) -> None:
        """Answer the request with a problem; do nothing if an answer has begun already."""
        if self.status is not None:
            return
        body = problem.body(self.request_id)
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            *((name.lower().encode(), value.encode("latin-1")) for name, value in problem.headers.items()),
        ]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
