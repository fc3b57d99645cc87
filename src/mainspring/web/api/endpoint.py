"""The declaration of an endpoint: its path, the rights, bodies and answers, and the coroutine that serves it.

One declaration serves the router, the OpenAPI document and the table of rights. To add an endpoint, write a class
for its subject with a coroutine method for each endpoint and a function `endpoints(app)` that returns the
declarations, and add that function to `routes.py`.

Invariants
- The scopes of a declaration are checked before the body is read: a caller without one of them learns nothing.
- The coroutine checks the rights for the job type and the queue, with `call.identity.require(...)` and the record
  that it has read. The check of the scopes does not know the type.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar

from msgspec import Meta, Struct
from starlette.requests import Request

from mainspring.jobs.request_records import RequestIds
from mainspring.security.http_limits import HttpLimits
from mainspring.security.permissions import Identity, Scope
from mainspring.web.submit_rates import SubmitMeter

if TYPE_CHECKING:
    from mainspring.app import Mainspring

API = "/api/v1"
JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
OK = 200
CREATED = 201
Instant: TypeAlias = Annotated[datetime, Meta(tz=True)]
"""A time in a body or an answer. It has a time zone, and the OpenAPI document calls it `date-time`."""

BodyT = TypeVar("BodyT")
QueryT = TypeVar("QueryT", bound=Struct)


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query parameters of an endpoint that has none."""


class EmptyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """An empty body: send `{}`, or nothing, with the content type JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall(Generic[BodyT, QueryT]):
    """One request to an endpoint, after the caller was identified and the body and the query were decoded."""

    app: Mainspring
    identity: Identity
    """The caller. The coroutine of an endpoint checks its rights."""
    path: Mapping[str, str]
    """The values of the parameters in the path, decoded: `{"id": "order-42"}`."""
    query: QueryT
    body: BodyT
    """The decoded body; None if the endpoint has none, or decodes it itself from `raw`."""
    raw: bytes
    """The body as bytes, decompressed and not decoded."""
    request_id: str
    request: Request
    """The request itself, for its headers."""
    limits: HttpLimits
    """The limits of the server."""
    meter: SubmitMeter
    """Counts the jobs that the request submits. An endpoint counts them before it stores them."""
    ids: RequestIds | None = None
    """The ids of the jobs that the request makes, if it has an `Idempotency-Key`; None lets the store choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """The answer of an endpoint: a value that msgspec encodes as JSON, or bytes that are JSON already.

    The content may also be a whole response, such as a stream; then `status` and `headers` are not used.
    """

    content: Any
    status: int = OK
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerType:
    """An answer that an endpoint may give, for the OpenAPI document."""

    type: Any
    """The type of the content, which msgspec describes."""
    description: str
    example: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that this answer has, each with a description."""
    media_type: str = JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The declaration of an endpoint, for the router, the OpenAPI document and the table of rights."""

    name: str
    """The name of the operation in generated clients, such as `get_job`."""
    method: str
    path: str
    """The path below /api/v1, with parameters in braces: `/jobs/{id}`."""
    subject: str
    """The group of the endpoint in the documentation: `jobs`."""
    summary: str
    """What the endpoint does, as one sentence in the imperative, for the OpenAPI document."""
    scopes: tuple[Scope, ...]
    """The caller needs one of these scopes, for any types and queues; empty if an identified caller needs none."""
    serve: Callable[[ApiCall[Any, Any]], Awaitable[ApiAnswer]]
    """The coroutine that serves the endpoint, and checks the rights for the type and the queue."""
    answers: Mapping[int, AnswerType]
    """The answers by HTTP status, without the problems."""
    description: str = ""
    """More about the endpoint than the summary, for the OpenAPI document."""
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    """A description for each parameter of the path."""
    query: type[Struct] = NoQuery
    """The query parameters: a struct with `forbid_unknown_fields`. A field that is a dict gets the parameters with
    its name and a dot before theirs: `argument.order_id=42`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of a request that the endpoint reads, each with a description."""
    body: Any = None
    """The type of the body; None if the endpoint has none. An empty body is decoded as `{}`. A write other than
    DELETE has at least `EmptyBody`, so that generated clients send the content type that every write needs."""
    decodes_body: bool = True
    """Whether the router decodes the body. If not, the coroutine decodes `call.raw`."""
    media_types: tuple[str, ...] = (JSON,)
    """The content types of bodies that the endpoint accepts."""
    body_examples: Mapping[str, Any] = field(default_factory=dict)
    """Examples of bodies, each with a name."""
    problems: tuple[str, ...] = ()
    """The types of problems that the endpoint may answer, beside those that every endpoint may answer."""

    @property
    def is_write(self) -> bool:
        """Whether the endpoint may change something: its method is not GET."""
        return self.method != "GET"
