"""The trace of a running job: fields of log records, `trace_id` and `span_id`, and headers of requests.

They come from the current span of OpenTelemetry, if the program uses it, or from the header `traceparent` of a
job. The header has the format of W3C Trace Context, so no package is needed to read it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

_VALUE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,512}")


def trace_fields(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return `trace_id` and `span_id` of the header `traceparent` of a job; empty if it is missing or not
    valid.
    """
    value = headers.get(TRACEPARENT) if headers else None
    found = None if value is None else _VALUE.fullmatch(value)
    return {} if found is None else {"trace_id": found[1], "span_id": found[2]}


def current_span_fields() -> dict[str, str]:
    """Return `trace_id` and `span_id` of OpenTelemetry's current span; empty without one, or without
    OpenTelemetry.
    """
    get_current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if get_current_span is None:
        return {}
    span = get_current_span().get_span_context()
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"} if span.is_valid else {}


def trace_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers that pass the trace of a running job on to another program, as W3C Trace Context.

    They name the current span. If there is none, they name the trace that the headers of the job name. Baggage is
    not passed on, because it may have values that the other program must not see.
    """
    get_current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if get_current_span is not None and (span := get_current_span().get_span_context()).is_valid:
        parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
        return _printable({TRACEPARENT: parent, TRACESTATE: span.trace_state.to_header()})
    if headers is None or not trace_fields(headers):
        return {}
    return _printable({name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers})


def _printable(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if _PRINTABLE.fullmatch(value)}
