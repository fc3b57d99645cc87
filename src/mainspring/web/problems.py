"""Errors as `application/problem+json` (RFC 9457), with stable types and the remedies of the library.

A client decides by `type`; people read `detail`, which says what was wrong and what to do. `request_id` is that of
the answer's `X-Request-ID`, which the log has, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec

from mainspring.errors import (
    ArgumentsTooLarge,
    CallbackRefused,
    DuplicateJob,
    EngineUnavailable,
    InvalidArguments,
    InvalidTransition,
    JobFailed,
    JobNotFound,
    LimitExceeded,
    MainspringError,
    MissingExtra,
    NoSigningKey,
    NotAllowed,
    PartialSubmit,
    RefusedByStore,
    ScheduleBusy,
    ScheduleInvalid,
    ScheduleNotFound,
    SignatureInvalid,
    TokenInvalid,
    TokenNotFound,
    UnknownHandler,
    UnknownSerializer,
    WorkerAlive,
    WorkerNotFound,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:mainspring:problem:"
REALM = 'Bearer realm="mainspring"'

# The most special class first. A client may rely on these names: they never change.
_ERRORS: tuple[tuple[type[MainspringError], int, str], ...] = (
    (TokenInvalid, 401, "token-invalid"),
    (NotAllowed, 403, "not-allowed"),
    (JobNotFound, 404, "job-not-found"),
    (ScheduleNotFound, 404, "schedule-not-found"),
    (WorkerNotFound, 404, "worker-not-found"),
    (TokenNotFound, 404, "token-not-found"),
    (DuplicateJob, 409, "duplicate-job"),
    (InvalidTransition, 409, "invalid-transition"),
    (JobFailed, 409, "job-failed"),
    (ScheduleBusy, 409, "schedule-busy"),
    (WorkerAlive, 409, "worker-alive"),
    (SignatureInvalid, 409, "signature-invalid"),
    (ArgumentsTooLarge, 413, "arguments-too-large"),
    (CallbackRefused, 422, "callback-refused"),
    (InvalidArguments, 422, "invalid-arguments"),
    (ScheduleInvalid, 422, "schedule-invalid"),
    (UnknownHandler, 422, "unknown-handler"),
    (UnknownSerializer, 422, "unknown-serializer"),
    (RefusedByStore, 422, "refused-by-store"),
    (LimitExceeded, 429, "limit-exceeded"),
    (MissingExtra, 501, "not-installed"),
    (NoSigningKey, 501, "no-signing-key"),
    (PartialSubmit, 503, "partial-submit"),
    (EngineUnavailable, 503, "store-unavailable"),
)
INTERNAL = "internal-error"
STATUS_OF: dict[str, int] = {
    **{name: status for _, status, name in _ERRORS},
    INTERNAL: 500,
    "invalid-json": 400,
    "authorization-repeated": 400,
    "header-repeated": 400,
    "host-missing": 400,
    "invalid-path": 400,
    "not-http": 400,
    "not-authenticated": 401,
    "not-logged-in": 401,
    "token-missing": 401,
    "closed": 403,
    "origin-foreign": 403,
    "read-only": 403,
    "form-outdated": 403,
    "not-found": 404,
    "method": 405,
    "header-too-slow": 408,
    "body-too-slow": 408,
    "precondition-failed": 412,
    "body-too-large": 413,
    "batch-too-large": 413,
    "content-type": 415,
    "invalid-body": 422,
    "invalid-query": 422,
    "invalid-value": 422,
    "too-deep": 422,
    "host-unknown": 421,
    "header-too-large": 431,
    "too-many-connections": 503,
    "too-many-event-readers": 503,
    "too-many-claims": 503,
    "too-many-claimed-jobs": 429,
    "too-many-own-readers": 429,
    "too-many-own-claims": 429,
    "too-many-workers": 429,
    "too-many-schedules": 429,
    "claim-in-progress": 429,
    "stopping": 503,
    "idempotency-key-invalid": 400,
    "idempotency-key-busy": 409,
    "idempotency-answer-too-large": 409,
    "body-not-gzip": 400,
    "body-ratio": 413,
    "content-encoding": 415,
    "idempotency-key-reused": 422,
    "schedule-too-dense": 422,
    "too-many-idempotency-keys": 429,
    "submit-rate": 429,
    "lease-lost": 409,
    "too-many-logins": 429,
}
"""The HTTP status of each type of problem."""
MEMBERS: dict[type[MainspringError], dict[str, str]] = {
    DuplicateJob: {"existing_id": "existing_id"},
    InvalidArguments: {"parameter": "parameter"},
    InvalidTransition: {"job_status": "status"},
}
"""Additional members in the bodies of some problems, each with the attribute of the error that has its value."""
STORE_DETAIL = "the store does not answer, or cannot be used; try again, and ask the operator to look at the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The error with which a request is answered: an HTTP status, a type for programs, and a text for people."""

    status: int
    type: str
    """The type of the problem without its prefix, such as `token-invalid`."""
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)
    """More members of the body, which programs may read: see `MEMBERS`."""

    def body(self, request_id: str | None = None) -> bytes:
        """Return the body of the answer as JSON (RFC 9457), with the id of the request if it is given."""
        values: dict[str, Any] = {
            "type": f"{TYPE_PREFIX}{self.type}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }
        if request_id is not None:
            values["request_id"] = request_id
        return msgspec.json.encode(values)


FAILURE = Problem(
    status=500,
    type=INTERNAL,
    detail="the server has failed; the log of the server has the cause, under this request id",
)


class Refused(Exception):
    """An exception that makes the server answer a request with its problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.detail)


def refuse(status: int, type: str, detail: str, **headers: str) -> Refused:
    """Return the exception that answers a request with a problem; the caller must raise it.

    A keyword argument becomes a header of the answer: `retry_after="1"` is `Retry-After: 1`.
    """
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Refused(Problem(status=status, type=type, detail=detail, headers=named))


def problem_of(error: MainspringError) -> Problem:
    """Return the problem for an error of the library, with its status, type and text.

    The text of an error of the store is replaced, because it has paths and addresses; the log has it. An error
    that no request should raise becomes `FAILURE`.
    """
    for kind, status, name in _ERRORS:
        if isinstance(error, kind):
            return Problem(
                status=status, type=name, detail=_detail(error), headers=_headers(error), members=_members(error)
            )
    return FAILURE


def _detail(error: MainspringError) -> str:
    """Return the text of an error without the path or the address of the store."""
    if isinstance(error, EngineUnavailable):
        return STORE_DETAIL
    if isinstance(error, RefusedByStore):
        return f"the store refused the request: {error.reason}; nothing of it was stored; {error.remedy}"
    return str(error)


def _members(error: MainspringError) -> dict[str, Any]:
    found = {
        name: getattr(error, attribute)
        for kind, names in MEMBERS.items()
        if isinstance(error, kind)
        for name, attribute in names.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _headers(error: MainspringError) -> dict[str, str]:
    if isinstance(error, TokenInvalid):
        return {"WWW-Authenticate": f'{REALM}, error="invalid_token"'}
    if isinstance(error, NotAllowed):
        return {"WWW-Authenticate": f'{REALM}, error="insufficient_scope", scope="{error.scope}"'}
    if isinstance(error, LimitExceeded) and error.retry_after is not None:
        return {"Retry-After": str(max(1, ceil(error.retry_after.total_seconds())))}
    if isinstance(error, EngineUnavailable):
        return {"Retry-After": "1"}
    return {}
