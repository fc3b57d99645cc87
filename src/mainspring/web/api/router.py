"""Routes requests to endpoints: matches the path, identifies the caller, decodes, and encodes the answer.

Every request that may change something passes `ApiRouter.perform_write`. This is the place for everything that
concerns all writes, such as idempotency keys, rates of a token, and the actor of an audit.

Invariants
- The order is: path, method, caller, scope, content type, query, body. So a caller that may not use an endpoint
  learns nothing about its parameters.
- A caller that has lost its rights while the body arrived is refused.
- A parameter of the path is decoded once, after the path was split: an id may contain `%2F`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainspring.clock import NANOSECONDS, Clock, SystemClock
from mainspring.errors import NotAllowed
from mainspring.jobs.audit import acting_as
from mainspring.jobs.request_records import RequestIds
from mainspring.security.asgi_types import AsgiScope, Receive, Send
from mainspring.security.http_limits import HttpLimits
from mainspring.security.permissions import Identity, Scope
from mainspring.security.tokens import hide_tokens
from mainspring.web.api.decoding import decode_beside, decode_json, decode_query
from mainspring.web.api.endpoint import API, JSON, NDJSON, ApiAnswer, ApiCall, Endpoint
from mainspring.web.credentials import Authenticator
from mainspring.web.guard import CALLER, REQUEST_ID, header_of
from mainspring.web.idempotency import HEADER as IDEMPOTENCY_KEY
from mainspring.web.idempotency import IdempotentWrites, WriteAnswer, digest_of, parse_key
from mainspring.web.paths import match_segments, path_segments, split_pattern
from mainspring.web.problems import refuse
from mainspring.web.submit_rates import SubmitRates

if TYPE_CHECKING:
    from mainspring.app import Mainspring

RECHECK_NS = NANOSECONDS
"""If the body of a request takes longer than this to arrive, the caller is identified again, in nanoseconds."""
_ALSO_NDJSON = "application/ndjson"


def _to_text(value: Any) -> str:
    """Return the `repr` of a value that JSON has no form for, such as an object of a custom serializer."""
    return repr(value)


encode_json = msgspec.json.Encoder(enc_hook=_to_text, decimal_format="string").encode
"""Encodes the content of an answer as JSON. Values without a form in JSON become their `repr`."""


class JsonResponse(Response):
    """An answer in JSON: msgspec encodes the content, unless the content is bytes, which are sent as they are."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else encode_json(content)


class ApiRouter:
    """The ASGI application of the API. It raises `Refused` and errors of the library, which `asgi.py` answers.

    - `app`: the application
    - `authenticator`: identifies the caller of a request
    - `endpoints`: the declarations of all endpoints
    - `limits`: the limits of a request, and of all requests of a token
    - `clock`: the clock for the rates of tokens, and for slow bodies
    """

    def __init__(
        self,
        app: Mainspring,
        authenticator: Authenticator,
        endpoints: Iterable[Endpoint],
        *,
        limits: HttpLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._clock = clock or SystemClock()
        self._limits = limits or HttpLimits()
        self._rates = SubmitRates(self._limits, self._clock)
        self._idempotent_writes = IdempotentWrites(app, self._limits)
        self._routes: dict[tuple[str, ...], dict[str, Endpoint]] = {}
        self._by_name: dict[str, Endpoint] = {}
        for endpoint in endpoints:
            self._by_name[endpoint.name] = endpoint
            methods = self._routes.setdefault(split_pattern(endpoint.path), {})
            if endpoint.method in methods:
                raise ValueError(f"two endpoints are declared for {endpoint.method} {endpoint.path}")
            methods[endpoint.method] = endpoint

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request: find the endpoint, identify the caller, check its scopes, and send the answer."""
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
        began = self._clock.monotonic_ns()
        raw = await request.body() if endpoint.is_write else b""
        if self._clock.monotonic_ns() - began > RECHECK_NS:
            # the token may have been revoked, or have expired, while the body arrived
            identity = await self._authenticator.identify(request.scope)
            check_scope(endpoint, identity)
        decodes = endpoint.body is not None and endpoint.decodes_body
        if endpoint.body is None and raw.strip() not in (b"", b"{}"):
            raise refuse(422, "invalid-body", "this endpoint takes no body; leave the body out, or send {}")
        call: ApiCall[Any, Any] = ApiCall(
            app=self._app,
            identity=identity,
            path=path,
            query=query,
            body=await self._decode(raw, endpoint.body) if decodes else None,
            raw=raw,
            request_id=request.scope[REQUEST_ID],
            request=request,
            limits=self._limits,
            meter=self._rates.meter(identity.caller),
        )
        return await self.perform_write(endpoint, call) if endpoint.is_write else await endpoint.serve(call)

    async def _decode(self, raw: bytes, kind: Any) -> Any:
        """Decode a body, an empty one as `{}`; raise `Refused` if it is wrong."""
        decode = partial(decode_json, kind=kind, max_depth=self._limits.max_depth)
        return await decode_beside(self._app.off_loop, decode, raw if raw.strip() else b"{}")

    async def invoke(
        self,
        name: str,
        request: Request,
        identity: Identity,
        *,
        path: Mapping[str, str],
        query: Mapping[str, Any],
        body: Any = None,
    ) -> Any:
        """Perform the operation of an endpoint for a page of the dashboard, and return the content of its answer.

        This method checks the same rights, decodes the same parameters and writes the same audit entry as a
        request does.

        - `name`: the name of the endpoint, such as `cancel_job`
        - `request`: the request for the page
        - `identity`: the caller of the page
        - `path`, `query`, `body`: the parameters; parameters of the query that are None are left out
        """
        endpoint = self._by_name[name]
        check_scope(endpoint, identity)
        given = [
            (key, str(value).lower() if isinstance(value, bool) else value)
            for key, value in query.items()
            if value is not None
        ]
        raw = b"" if body is None else encode_json(body)
        decodes = endpoint.body is not None and endpoint.decodes_body
        call: ApiCall[Any, Any] = ApiCall(
            app=self._app,
            identity=identity,
            path=path,
            query=decode_query(urlencode(given, doseq=True).encode(), endpoint.query),
            body=await self._decode(raw, endpoint.body) if decodes else None,
            raw=raw,
            request_id=request.scope[REQUEST_ID],
            request=request,
            limits=self._limits,
            meter=self._rates.meter(identity.caller),
        )
        answer = await (self.perform_write(endpoint, call) if endpoint.is_write else endpoint.serve(call))
        return answer.content

    def is_write(self, name: str) -> bool:
        """Return whether the endpoint with this name may change something: its method is not GET."""
        return self._by_name[name].is_write

    async def perform_write(self, endpoint: Endpoint, call: ApiCall[Any, Any]) -> ApiAnswer:
        """Serve a decoded request that may change something, within `acting_as` for the audit trail.

        Every request that may change something, also one of the dashboard, passes here. If it has an idempotency
        key and repeats an earlier request, it is not carried out again, and gets the stored answer.
        """
        header = header_of(call.request.scope, IDEMPOTENCY_KEY)
        name = "".join(each if each.isprintable() else "?" for each in call.identity.name) or "?"
        with acting_as(name, source="http", token=call.identity.token, request_id=call.request_id):
            if header is None:
                answer = await endpoint.serve(call)
            else:
                answer = await self._perform_once(endpoint, call, parse_key(header))
        return replace(answer, headers={**answer.headers, **call.meter.headers}) if call.meter.headers else answer

    async def _perform_once(self, endpoint: Endpoint, call: ApiCall[Any, Any], key: str) -> ApiAnswer:
        """Serve a request with an idempotency key, or return the stored answer of an equal earlier request."""

        async def carry_out(ids: RequestIds) -> WriteAnswer:
            answer = await endpoint.serve(replace(call, ids=ids))
            content = answer.content
            body = content if isinstance(content, bytes) else encode_json(content)
            return WriteAnswer(status=answer.status, body=body, headers=dict(answer.headers))

        scope = call.request.scope
        place = "/".join((endpoint.path, *(quote(value, safe="") for value in call.path.values())))
        query = scope.get("query_string") or b""
        kind = (header_of(scope, b"content-type") or JSON).partition(";")[0].strip().lower()
        digest = digest_of(endpoint.method.encode(), place.encode(), query, kind.encode(), call.raw)
        found = await self._idempotent_writes.perform(call.identity, key, digest, carry_out)
        return ApiAnswer(content=found.body, status=found.status, headers=found.headers)

    # -- paths

    def _match(self, request: Request) -> tuple[Endpoint, dict[str, str]]:
        segments = path_segments(request.scope, API)
        method = "GET" if request.method == "HEAD" else request.method
        possible: set[str] = set()
        for pattern, methods in self._routes.items():  # the first pattern wins that has the method
            values = match_segments(pattern, segments)
            if values is not None and method in methods:
                return methods[method], values
            possible.update(() if values is None else methods)
        if possible:
            allowed = ", ".join(sorted(possible | ({"HEAD"} if "GET" in possible else set())))
            raise refuse(405, "method", f"this path does not allow {request.method}; use {allowed}", allow=allowed)
        shown = hide_tokens(request.url.path)[:200]
        raise refuse(404, "not-found", f"the API has no path {shown!r}; {API}/openapi.json lists all paths")


def check_scope(endpoint: Endpoint, identity: Identity) -> None:
    """Raise `NotAllowed` if an endpoint has scopes and the caller has none of them.

    It does not matter for which job types and queues the caller has the scope.
    """
    if endpoint.scopes and not any(identity.permissions.has(scope) for scope in endpoint.scopes):
        scope: Scope = endpoint.scopes[0]
        raise NotAllowed(name=identity.name, scope=str(scope))


def _check_content_type(endpoint: Endpoint, request: Request) -> None:
    given = (header_of(request.scope, b"content-type") or JSON).partition(";")[0].strip().lower()
    kind = NDJSON if given == _ALSO_NDJSON else given
    if kind not in endpoint.media_types:
        accepted = " or ".join(endpoint.media_types)
        raise refuse(415, "content-type", f"the content type of the request is {kind[:100]!r}; send {accepted}")
