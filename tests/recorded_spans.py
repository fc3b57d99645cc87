"""Spans and metrics that tests record in memory, with the SDK of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, Tracer

from mainspring.monitoring import OpenTelemetryMiddleware


class RecordedSpans:
    """A middleware's spans and metrics, in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer: Tracer = self.provider.get_tracer("test")

    def middleware(self, **options: Any) -> OpenTelemetryMiddleware:
        return OpenTelemetryMiddleware(tracer_provider=self.provider, meter_provider=self.meters, **options)

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def submits(self) -> list[ReadableSpan]:
        return [span for span in self.all if span.kind is SpanKind.PRODUCER]

    def submits_of(self, type_: str) -> list[ReadableSpan]:
        return [span for span in self.submits if attributes(span)["messaging.mainspring.job.type"] == type_]

    @property
    def attempts(self) -> list[ReadableSpan]:
        return [span for span in self.all if span.kind is SpanKind.CONSUMER]

    def attempts_of(self, type_: str) -> list[ReadableSpan]:
        return [span for span in self.attempts if attributes(span)["messaging.mainspring.job.type"] == type_]

    def points(self, metric: str) -> list[Any]:
        """Return the data points of a metric."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        found = [
            one
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
        ]
        return [point for one in found for point in one.data.data_points]


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    """Return the trace id and the span id."""
    return context_of(span).trace_id, context_of(span).span_id


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    """Return the trace id and the span id of each span that this one links to."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)
