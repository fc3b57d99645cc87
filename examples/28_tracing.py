"""Traces with OpenTelemetry: the spans of a submit, of its attempts and of a follow-up job, kept in memory."""

import logging

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mainspring import Mainspring, Retry, current_job
from mainspring.monitoring import OpenTelemetryMiddleware
from mainspring.testing import inline

spans = InMemorySpanExporter()  # in production: BatchSpanProcessor(OTLPSpanExporter())
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")

logging.getLogger("mainspring").setLevel(logging.ERROR)  # the first attempt fails here on purpose
app = Mainspring("memory://")
app.middleware(OpenTelemetryMiddleware())


@app.job(queue="mail")
def send_receipt(order: int) -> None: ...


@app.job(queue="orders", retry=Retry(max_attempts=2, base=1), then=send_receipt)
def charge(order: int) -> int:
    if current_job().attempt == 1:
        raise ConnectionError("the bank is away")
    with tracer.start_as_current_span("ask the bank"):  # a child of the attempt's span
        return order


with inline(app), tracer.start_as_current_span("POST /orders"):  # as the instrumentation of a web framework does
    charge.submit(42)

names = {span.context.span_id: span.name for span in spans.get_finished_spans()}
for span in spans.get_finished_spans():
    parent = f", child of {names[span.parent.span_id]!r}" if span.parent else ""
    links = "".join(f", link to {names[link.context.span_id]!r}" for link in span.links)
    print(f"{span.kind.name:8} {span.name!r}{parent}{links}, {span.status.status_code.name.lower()}")

orders = [span for span in spans.get_finished_spans() if span.name == "process orders"]
(mail,) = (span for span in spans.get_finished_spans() if span.name == "process mail")
assert [span.attributes["messaging.mainspring.outcome"] for span in orders if span.attributes] == [
    "failed",
    "completed",
]
assert mail.links[0].context.span_id == orders[-1].context.span_id
