"""The trace of a log record: from the header of a job, or from the current span."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from mainspring.jobs.trace_fields import current_span_fields, trace_fields, trace_headers

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("value", [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-more"])
def test_a_traceparent_names_trace_and_span(value: str) -> None:
    assert trace_fields({"traceparent": value}) == {"trace_id": TRACE, "span_id": SPAN}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00-…",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01more",
    ],
)
def test_a_value_that_is_not_valid_names_none(value: str) -> None:
    assert trace_fields({"traceparent": value}) == {}


@pytest.mark.parametrize("headers", [None, {}, {"user": "7"}])
def test_without_a_traceparent_there_is_none(headers: dict[str, str] | None) -> None:
    assert trace_fields(headers) == {}


def test_the_current_span_has_a_trace_and_no_span_has_none() -> None:
    assert current_span_fields() == {}
    provider = TracerProvider(shutdown_on_exit=False)
    with provider.get_tracer("test").start_as_current_span("here"):
        found = trace.get_current_span().get_span_context()
        assert current_span_fields() == {
            "trace_id": trace.format_trace_id(found.trace_id),
            "span_id": trace.format_span_id(found.span_id),
        }


def test_without_opentelemetry_there_is_no_current_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert current_span_fields() == {}


@pytest.mark.parametrize("state", ["", "line\r\nbreak", "é", "x" * 513])
def test_a_state_that_no_header_can_have_is_not_passed_on(state: str) -> None:
    parent = f"00-{TRACE}-{SPAN}-01"
    assert trace_headers({"traceparent": parent, "tracestate": state}) == {"traceparent": parent}
    assert trace_headers({"tracestate": state}) == trace_headers(None) == {}
