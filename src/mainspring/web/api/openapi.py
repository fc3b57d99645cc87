"""The OpenAPI 3.1 document of the API, made from the declarations of the endpoints and the types of msgspec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_origin, get_type_hints

import msgspec

from mainspring.web.api.endpoint import API, EVENT_STREAM, JSON, NDJSON, AnswerType, Endpoint
from mainspring.web.problems import MEDIA_TYPE, STATUS_OF, TYPE_PREFIX

ALWAYS = (
    "token-invalid",
    "token-missing",
    "not-authenticated",
    "authorization-repeated",
    "closed",
    "invalid-query",
    "internal-error",
    "store-unavailable",
    "not-http",
    "invalid-path",
    "header-repeated",
    "header-too-large",
    "header-too-slow",
    "host-missing",
    "host-unknown",
    "too-many-connections",
)
"""Problems that every endpoint may answer."""
SCOPED = ("not-allowed",)
WRITES = (
    "origin-foreign",
    "read-only",
    "content-type",
    "content-encoding",
    "body-not-gzip",
    "body-ratio",
    "body-too-slow",
    "body-too-large",
    "idempotency-key-invalid",
    "idempotency-key-busy",
    "idempotency-key-reused",
    "idempotency-answer-too-large",
    "too-many-idempotency-keys",
    "signature-invalid",
    "no-signing-key",
)
BODIES = ("invalid-json", "invalid-body", "too-deep")
IDEMPOTENCY_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A random key, such as a UUID. A request that is repeated with the same key gets the same "
    "answer, and is not carried out twice.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 257},
}
REF = "#/components/schemas/{name}"
PROBLEM = "Problem"
DESCRIPTION = """Submits, reads and changes jobs of Mainspring.

Send a token with each request: `Authorization: Bearer msp_...`. Times are RFC 3339 with a time zone, durations are
seconds. Lists come in pages: send `next` of one page as `after` for the next one. Errors are
`application/problem+json` (RFC 9457): decide by `type`, which never changes."""


class ProblemBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer with an error: problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str | msgspec.UnsetType = msgspec.UNSET


class OpenApiDocument:
    """The OpenAPI document. It is made at the first request for it, and kept."""

    def __init__(self, endpoints: Sequence[Endpoint], *, version: str) -> None:
        self._endpoints = endpoints
        self._version = version
        self._document: dict[str, Any] | None = None

    def encode(self, root_path: str) -> bytes:
        """Return the document as JSON, with the API below `root_path` as the address of the server."""
        if self._document is None:
            self._document = self.build()
        return msgspec.json.encode({**self._document, "servers": [{"url": f"{root_path}{API}"}]})

    def build(self) -> dict[str, Any]:
        """Make the OpenAPI document as a dict, without the address of a server."""
        schemas = _Schemas(self._endpoints)
        paths: dict[str, dict[str, Any]] = {}
        for endpoint in self._endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
        subjects = dict.fromkeys(endpoint.subject for endpoint in self._endpoints)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Mainspring",
                "version": self._version,
                "description": DESCRIPTION,
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            "tags": [{"name": subject} for subject in subjects],
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": schemas.components,
                "securitySchemes": {
                    "token": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "A token of `mainspring tokens create`.",
                    }
                },
            },
        }


class _Schemas:
    """The JSON schemas of the bodies, queries and answers of all endpoints."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        types: list[Any] = [ProblemBody]
        for endpoint in endpoints:
            types += [endpoint.query, *([] if endpoint.body is None else [endpoint.body])]
            types += [answer.type for answer in endpoint.answers.values()]
        schemas, components = msgspec.json.schema_components(types, ref_template=REF)
        self._types = types
        self._schemas = schemas
        queries = {endpoint.query.__name__ for endpoint in endpoints}
        self._components: dict[str, Any] = components
        self.components = {name: each for name, each in components.items() if name not in queries}
        self.components[PROBLEM] = _problem_schema(self.components.pop(ProblemBody.__name__))

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the JSON schema of the type of a body or an answer; usually it is a reference to a component."""
        place = next(place for place, each in enumerate(self._types) if each is kind or each == kind)
        return dict(self._schemas[place])

    def properties(self, query: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
        """Return the JSON schemas of an endpoint's query parameters, by name."""
        return dict(self._components[query.__name__]["properties"])


def _problem_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a problem, with the members that only some types of problems have."""
    names = [f"{TYPE_PREFIX}{name}" for name in sorted(STATUS_OF)]
    properties = {
        **schema["properties"],
        "type": {"type": "string", "description": "The kind of the problem, for programs.", "examples": names},
        "detail": {"type": "string", "description": "What was wrong, and what to do."},
        "request_id": {
            "type": "string",
            "description": "The id of the request, as in X-Request-ID and the log. A request that was refused "
            "before its header was read has none.",
        },
        "parameter": {"type": "string", "description": "The wrong argument: `invalid-arguments`."},
        "existing_id": {"type": "string", "description": "The id of the existing job: `duplicate-job`."},
        "job_status": {"type": "string", "description": "The status of the job: `invalid-transition`."},
        "line": {"type": "integer", "description": "The first wrong line of a batch, from 1."},
        "stored": {"type": "integer", "description": "How many jobs of a batch were stored."},
        "ids": {
            "type": "array",
            "items": {"type": ["string", "null"]},
            "description": "The ids of the jobs of a batch, in order; null for jobs that were not stored.",
        },
        "failed": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "line": {"type": "integer"},
                    "type": {"type": "string"},
                    "detail": {"type": "string"},
                },
                "required": ["line", "type", "detail"],
            },
            "description": "The lines of a batch that were not stored, with the reasons.",
        },
    }
    return {**schema, "title": PROBLEM, "properties": properties, "additionalProperties": True}


def _operation(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    scopes = " or ".join(f"`{scope}`" for scope in endpoint.scopes)
    needs = f"Needs a token with the scope {scopes}." if scopes else "Needs a token."
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.subject],
        "summary": endpoint.summary,
        "description": f"{endpoint.description}\n\n{needs}".strip(),
        "x-scopes": [str(scope) for scope in endpoint.scopes],
    }
    parameters = [*_path_parameters(endpoint), *_query_parameters(endpoint, schemas), *_headers(endpoint)]
    if endpoint.is_write:
        parameters.append(IDEMPOTENCY_KEY)
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = _request_body(endpoint, schemas)
    operation["responses"] = {
        **{str(status): _response(answer, schemas) for status, answer in sorted(endpoint.answers.items())},
        **_problem_responses(endpoint),
    }
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": endpoint.path_parameters[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in names
    ]


def _query_parameters(endpoint: Endpoint, schemas: _Schemas) -> list[dict[str, Any]]:
    hints = get_type_hints(endpoint.query)
    found = []
    for field in msgspec.structs.fields(endpoint.query):
        schema = dict(schemas.properties(endpoint.query)[field.encode_name])
        described = {"description": schema.pop("description", "")}
        parameter: dict[str, Any] = {"name": field.encode_name, "in": "query", "required": field.required}
        if get_origin(hints[field.name]) is dict:  # argument.NAME=value
            schema["propertyNames"] = {"pattern": f"^{field.encode_name}\\."}
            schema.pop("default", None)
            parameter |= {"style": "form", "explode": True}
        found.append({**parameter, **described, "schema": _without_null(schema)})
    return found


def _headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.headers.items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter without the option null, because a query string has no null."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if not options:
        return schema
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**options[0], **rest} if len(options) == 1 else {**rest, "anyOf": options}


def _request_body(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    """Return the description of a request's body. NDJSON is only mentioned in words: client generators lack it."""
    content: dict[str, Any] = {"schema": schemas.of(endpoint.body)}
    if endpoint.body_examples:
        content["examples"] = {name: {"value": value} for name, value in endpoint.body_examples.items()}
    body: dict[str, Any] = {"required": True, "content": {JSON: content}}
    if NDJSON in endpoint.media_types:
        body["description"] = (
            f"The body may also be `{NDJSON}`, with one element of the array in each line; a client that sends it "
            "sets the header `Content-Type` itself."
        )
    return body


def _response(answer: AnswerType, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schemas.of(answer.type)}
    if answer.example is not None:
        content["example"] = answer.example
    if answer.media_type == EVENT_STREAM:
        content = _stream(content)
    response: dict[str, Any] = {"description": answer.description, "content": {answer.media_type: content}}
    if answer.headers:
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers.items()
        }
    return response


def _stream(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of an event stream as text, because OpenAPI 3.1 cannot describe single events.

    The type of the events is in the text and in the extension `x-event-data`.
    """
    name = content["schema"]["$ref"].rpartition("/")[2]
    text = f"Server-sent events. The `data` of each is a `{name}` in JSON."
    return {
        "schema": {"type": "string", "description": text},
        "example": f"id: 1794943600123457\ndata: {msgspec.json.encode(content['example']).decode()}\n\n",
        "x-event-data": content["schema"],
    }


def problems_of(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the types of all problems that an endpoint may answer."""
    common = (*ALWAYS, *SCOPED) if endpoint.scopes else ALWAYS
    written = WRITES if endpoint.is_write else ()
    decoded = BODIES if endpoint.body is not None else ()
    return tuple(dict.fromkeys((*endpoint.problems, *common, *written, *decoded)))


def _problem_responses(endpoint: Endpoint) -> Mapping[str, Any]:
    by_status: dict[int, list[str]] = {}
    for name in problems_of(endpoint):
        by_status.setdefault(STATUS_OF[name], []).append(name)
    return {str(status): _problem_response(status, names) for status, names in sorted(by_status.items())}


def _problem_response(status: int, names: list[str]) -> dict[str, Any]:
    phrase = HTTPStatus(status).phrase
    example = {
        "type": f"{TYPE_PREFIX}{names[0]}",
        "title": phrase,
        "status": status,
        "detail": "what was wrong, and what to do",
        "request_id": "4ee93215d003482aafe310afdd3cdfd5",
    }
    response: dict[str, Any] = {
        "description": f"{phrase}: {', '.join(f'`{name}`' for name in names)}.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(name=PROBLEM)}, "example": example}},
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        response["headers"] = {
            "Retry-After": {"description": "After how many seconds to try again.", "schema": {"type": "integer"}}
        }
    return response
