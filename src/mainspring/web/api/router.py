"""Routes requests to endpoints: matches the path, identifies the caller, decodes, and encodes the answer.

Every request that may change something passes `ApiRouter.perform_write`. This is the place for everything that
concerns all writes, such as idempotency keys, rates of a token, and the actor of an audit.

Invariants
- The order is: path, method, caller, scope, content type, query, body. So a caller that may not use an endpoint
  learns nothing about its parameters.
- A parameter of the path is decoded once, after the path was split: an id may contain `%2F`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import NotAllowed
from mainspring.security.asgi_types import AsgiScope, Receive, Send
from mainspring.security.permissions import Identity, Scope
from mainspring.security.tokens import hide_tokens
from mainspring.web.api.decoding import decode_json, decode_query
from mainspring.web.api.endpoint import API, JSON, NDJSON, ApiAnswer, ApiCall, Endpoint
from mainspring.web.credentials import Authenticator
from mainspring.web.guard import CALLER, REQUEST_ID, header_of, route_path
from mainspring.web.problems import refuse

if TYPE_CHECKING:
    from mainspring.app import Mainspring

LARGE_BODY = 65_536
_ALSO_NDJSON = "application/ndjson"


def _to_text(value: Any) -> str:
    """Return a value that JSON has no form for, such as one of a serializer of the application, as text."""
    return repr(value)


encode_json = msgspec.json.Encoder(enc_hook=_to_text, decimal_format="string").encode
"""Encodes the content of an answer."""


class JsonResponse(Response):
    """An answer in JSON, encoded by msgspec."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else encode_json(content)


class ApiRouter:
    """The ASGI application of the API. It raises `Refused` and errors of the library, which `asgi.py` answers.

    - `app`: the application
    - `authenticator`: finds out who sends a request
    - `endpoints`: the declarations
    """

    def __init__(self, app: Mainspring, authenticator: Authenticator, endpoints: Iterable[Endpoint]) -> None:
        self._app = app
        self._authenticator = authenticator
        self._routes: dict[tuple[str, ...], dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            methods = self._routes.setdefault(tuple(endpoint.path.split("/")[1:]), {})
            if endpoint.method in methods:
                raise ValueError(f"two endpoints are declared for {endpoint.method} {endpoint.path}")
            methods[endpoint.method] = endpoint

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        endpoint, path = self._match(request)
        identity = await self._authenticator.identify(scope)
        scope[CALLER] = identity.name
        check_scope(endpoint, identity)
        answer = await self._perform(endpoint, request, identity, path)
        response = answer.content
        if not isinstance(response, Response):
            response = JsonResponse(answer.content, status_code=answer.status, headers=dict(answer.headers))
        await response(scope, receive, send)

    async def _perform(
        self, endpoint: Endpoint, request: Request, identity: Identity, path: Mapping[str, str]
    ) -> ApiAnswer:
        if endpoint.is_write:
            _check_content_type(endpoint, request)
        query = decode_query(request.scope.get("query_string") or b"", endpoint.query)
        raw = await request.body() if endpoint.is_write else b""
        decodes = endpoint.body is not None and endpoint.decodes_body
        if endpoint.body is None and raw.strip() not in (b"", b"{}"):
            raise refuse(422, "invalid-body", "this request has no body; send none, or {}")
        call: ApiCall[Any, Any] = ApiCall(
            app=self._app,
            identity=identity,
            path=path,
            query=query,
            body=await self._decode(raw, endpoint.body) if decodes else None,
            raw=raw,
            request_id=request.scope[REQUEST_ID],
            request=request,
        )
        return await self.perform_write(endpoint, call) if endpoint.is_write else await endpoint.serve(call)

    async def _decode(self, raw: bytes, kind: Any) -> Any:
        """Decode a body. A large one is decoded on a thread, because other requests must not wait for it."""
        if len(raw) > LARGE_BODY:
            return await self._app.off_loop.read(decode_json, raw, kind)
        return decode_json(raw if raw.strip() else b"{}", kind)

    async def perform_write(self, endpoint: Endpoint, call: ApiCall[Any, Any]) -> ApiAnswer:
        """Serve a request that may change something. Every such request passes here, after it was decoded."""
        return await endpoint.serve(call)

    # -- paths

    def _match(self, request: Request) -> tuple[Endpoint, dict[str, str]]:
        segments = _segments(request.scope)
        method = "GET" if request.method == "HEAD" else request.method
        for pattern, methods in self._routes.items():
            values = _values(pattern, segments)
            if values is None:
                continue
            if method in methods:
                return methods[method], values
            allowed = ", ".join(sorted([*methods, *(["HEAD"] if "GET" in methods else [])]))
            raise refuse(405, "method", f"{request.method} is not possible here; use {allowed}", allow=allowed)
        shown = hide_tokens(request.url.path)[:200]
        raise refuse(404, "not-found", f"there is nothing at {shown!r}; {API}/openapi.json has all paths")


def check_scope(endpoint: Endpoint, identity: Identity) -> None:
    """Raise `NotAllowed` if the caller has none of the scopes of an endpoint, for any types and queues."""
    if endpoint.scopes and not any(identity.permissions.has(scope) for scope in endpoint.scopes):
        scope: Scope = endpoint.scopes[0]
        raise NotAllowed(name=identity.name, scope=str(scope))


def _check_content_type(endpoint: Endpoint, request: Request) -> None:
    given = (header_of(request.scope, b"content-type") or JSON).partition(";")[0].strip().lower()
    kind = NDJSON if given == _ALSO_NDJSON else given
    if kind not in endpoint.media_types:
        accepted = " or ".join(endpoint.media_types)
        raise refuse(415, "content-type", f"the content type of the request is {kind[:100]!r}; send {accepted}")


def _values(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    """Return the parameters of a path that matches a pattern; None if it does not match."""
    if len(pattern) != len(segments):
        return None
    values: dict[str, str] = {}
    for wanted, given in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            if not given:
                return None
            values[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return values


def _segments(scope: Mapping[str, Any]) -> list[str]:
    """Return the decoded parts of the path below /api/v1.

    The path as it was sent is split before it is decoded.
    """
    below = route_path(scope)
    raw = scope.get("raw_path") or b""
    try:
        sent = [unquote_to_bytes(part).decode() for part in raw.partition(b"?")[0].split(b"/")]
    except UnicodeDecodeError:
        raise refuse(
            400, "invalid-path", "the path is not UTF-8 in percent-encoding; encode it as UTF-8"
        ) from None
    if "/".join(sent) not in (scope["path"], below):  # another server, or a proxy, has changed the path
        sent = str(scope["path"]).split("/")
    mounted = str(scope["path"]).removesuffix(below).count("/") if "/".join(sent) == scope["path"] else 0
    return sent[mounted + 1 + API.count("/") :] or [""]
