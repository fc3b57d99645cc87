"""Makes the HTTP request of a callback: checks method, headers and body, and adds the headers of Mainspring.

Invariants
- Headers that decide where a request goes, how long it is or who sent it are dropped: `Host`, hop-by-hop headers,
  `webhook-*` and `Mainspring-*`, also with underscores instead of hyphens.
- No header has a line break, so that no job can add headers or requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mainspring.callbacks.allow_list import CallbackUrl
from mainspring.callbacks.signatures import CallbackSecret, to_message_id
from mainspring.errors import InvalidArguments
from mainspring.jobs.serializers import to_builtin

METHODS = ("POST", "PUT", "PATCH", "DELETE", "GET", "HEAD")
BODILESS = frozenset({"GET", "HEAD"})
MAX_HEADERS = 50
MAX_HEADER_BYTES = 8_192

_DROPPED = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_DROPPED_PREFIXES = ("webhook-", "mainspring-", "proxy-")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")

_encode = msgspec.json.Encoder(enc_hook=to_builtin, decimal_format="string").encode


class SendingJob(NamedTuple):
    """The job and the attempt that a request belongs to."""

    id: str
    type: str
    attempt: int
    due: str


class CallbackRequest(NamedTuple):
    """A request that is ready to be sent."""

    url: CallbackUrl
    method: str
    headers: dict[str, str]
    body: bytes


def check_method(handler: str, method: object) -> str:
    """Return an HTTP method in upper case; raise `InvalidArguments` if callbacks do not support it."""
    name = method.upper() if isinstance(method, str) else method
    if name not in METHODS:
        raise InvalidArguments(
            handler=handler, parameter="method", problem=f"it is {method!r}", remedy=f"use {', '.join(METHODS)}"
        )
    return str(name)


def check_headers(handler: str, headers: Mapping[str, str] | None) -> None:
    """Raise `InvalidArguments` if headers cannot be sent. The error shows no values, which may be secret."""
    given = headers or {}
    problem = None
    if len(given) > MAX_HEADERS:
        problem = f"there are {len(given):,} headers, the limit is {MAX_HEADERS}"
    for name, value in given.items():
        if {type(name), type(value)} != {str}:
            problem = f"the name or the value of the header {name!r} is not a string"
        elif not _NAME.fullmatch(name):
            problem = f"{name[:100]!r} is not the name of a header"
        elif not _VALUE.fullmatch(value) or len(value) > MAX_HEADER_BYTES:
            problem = (
                f"the value of {name!r} has characters other than printable ASCII, or more than "
                f"{MAX_HEADER_BYTES:,} of them"
            )
    if problem is not None:
        raise InvalidArguments(
            handler=handler,
            parameter="headers",
            problem=problem,
            remedy=f"pass at most {MAX_HEADERS} headers as a dict of strings, such as {{'X-Tenant': 'acme'}}",
        )


def check_body(handler: str, method: str, body: Any) -> None:
    """Raise `InvalidArguments` if there is a body, and the method is GET or HEAD, which have none."""
    if body is not None and method in BODILESS:
        raise InvalidArguments(
            handler=handler,
            parameter="body",
            problem=f"a {method} request has no body",
            remedy="use POST, or pass the data in the query of the URL",
        )


def encode_body(body: Any) -> tuple[bytes, str | None]:
    """Return the bytes of a body and its content type: texts and bytes as they are, everything else as JSON.

    For None, return no bytes and no content type.
    """
    if body is None:
        return b"", None
    if isinstance(body, str):
        return body.encode(), "text/plain; charset=utf-8"
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    return _encode(body), "application/json"


def make_request(
    url: CallbackUrl,
    method: str,
    headers: tuple[Mapping[str, str], ...],
    body: Any,
    *,
    job: SendingJob,
    agent: str,
    secret: CallbackSecret | None,
    timestamp: int,
) -> CallbackRequest:
    """Make the request of a callback, with the headers of Mainspring, and signed if there is a secret.

    Of several headers with the same name, the one of the last mapping is sent. `timestamp` is the Unix time.
    """
    content, kind = encode_body(body)
    chosen: dict[str, tuple[str, str]] = {"user-agent": ("User-Agent", agent), "accept": ("Accept", "*/*")}
    if kind is not None:
        chosen["content-type"] = ("Content-Type", kind)
    for mapping in headers:
        chosen |= {name.lower(): (name, value) for name, value in mapping.items() if not is_dropped(name)}
    sent = dict(chosen.values())
    message_id = to_message_id(job.id)
    sent |= {
        "Accept-Encoding": "gzip, deflate",
        "Mainspring-Job": message_id,
        "Mainspring-Type": job.type.encode("ascii", "backslashreplace").decode(),
        "Mainspring-Attempt": str(job.attempt),
        "Mainspring-Due": job.due,
    }
    if secret is not None:
        sent |= secret.headers(message_id, timestamp, content)
    return CallbackRequest(url, method, sent, content)


def is_dropped(name: str) -> bool:
    """Return whether a header of this name is not sent if a job or a declaration sets it.

    Mainspring sets such a header itself, or HTTP reserves it.
    """
    lower = name.lower().replace("_", "-")  # for servers that follow CGI, both are the same
    return lower in _DROPPED or lower.startswith(_DROPPED_PREFIXES)
