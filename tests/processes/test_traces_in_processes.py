"""Traces of handlers in child processes: the span of the attempt is current there, and in the log of a worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from tests.processes.sandbox import Child, Sandbox
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

TRACE, SPAN = "a" * 32, "b" * 16
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
SHOP = """
import json, logging
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from mainspring import Mainspring, Retry
from mainspring.monitoring import OpenTelemetryMiddleware

class ToFile(SpanExporter):
    def export(self, spans):
        with open("spans.jsonl", "a") as file:
            file.writelines(span.to_json(indent=None) + "\\n" for span in spans)
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")
app = Mainspring("sqlite:///shop.db")
app.middleware(OpenTelemetryMiddleware())

def log(text):
    logging.getLogger("shop").info(text)

@app.job
def follow() -> None: ...

@app.job(execution="process")
def plain() -> str:
    with tracer.start_as_current_span("inside"):
        log("plain")
        return follow.submit().id

@app.job(execution="process")
async def coroutine() -> str:
    with tracer.start_as_current_span("inside"):
        log("coroutine")
        return (await follow.submit_async()).id

@app.job(execution="process", batch=5)
def batch(numbers: list[int]) -> list[str]:
    with tracer.start_as_current_span("inside"):
        log("batch")
        return [follow.submit().id for _ in numbers]

@app.job(execution="process", retry=Retry(max_attempts=1))
def fail() -> None:
    try:
        raise ConnectionError("the bank is away")
    except ConnectionError as error:
        raise ValueError("not paid") from error

@app.job(retry=Retry(max_attempts=1), timeout=0.05, execution="process")
def hang() -> None:
    import threading
    threading.Event().wait()
"""


@pytest.fixture
def worker(tmp_path: Path, sandbox: Sandbox) -> Child:
    (tmp_path / "shop.py").write_text(SHOP)
    worker = sandbox.start("-m", "mainspring", "run", "shop:app", "--log-format", "json")
    worker.expect('"event":"ready"')
    return worker


def run(folder: Path, name: str, *arguments: object) -> str:
    """Run a job with the headers of a caller's trace, and return its id."""
    with Mainspring(f"sqlite:///{folder}/shop.db") as app:

        @app.job(name=f"shop.{name}")  # only the worker needs to know that a handler gets batches
        def handler(numbers: Any = None) -> None: ...

        handle = handler.options(headers=HEADERS).submit(*arguments)
        handle.wait(PATIENCE)
        return str(handle.id)


def spans_in(folder: Path) -> list[dict[str, Any]]:
    path = folder / "spans.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def traced_call(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
    """Return the span of an attempt, its child in the handler, and the submit in that; None if one is missing."""
    spans = spans_in(folder)
    by_id = {span["context"]["span_id"]: span for span in spans}
    for submit in spans:
        inside = by_id.get(submit["parent_id"], {})
        attempt = by_id.get(inside.get("parent_id"))
        if attempt is not None and (submit["name"], inside["name"]) == ("submit default", "inside"):
            return attempt, inside, submit
    return None


def hexadecimal(text: str | None) -> str | None:
    return None if text is None else text.removeprefix("0x")


@pytest.mark.parametrize("name", ["plain", "coroutine", "batch"])
def test_spans_and_submits_of_a_child_process_belong_to_the_attempt(
    worker: Child, tmp_path: Path, name: str
) -> None:
    job_id = run(tmp_path, name, *([7] if name == "batch" else []))
    assert eventually(lambda: traced_call(tmp_path) is not None), spans_in(tmp_path)
    attempt, inside, submit = traced_call(tmp_path) or ({}, {}, {})
    (link,) = attempt["links"]
    assert (hexadecimal(link["context"]["trace_id"]), hexadecimal(link["context"]["span_id"])) == (TRACE, SPAN)
    assert (attempt["kind"], attempt["parent_id"]) == ("SpanKind.CONSUMER", None)
    assert inside["context"]["trace_id"] == attempt["context"]["trace_id"]
    assert submit["context"]["trace_id"] == attempt["context"]["trace_id"]
    assert eventually(lambda: any('"logger":"shop"' in line for line in worker.lines))
    line = json.loads(next(line for line in worker.lines if '"logger":"shop"' in line))
    assert (line["message"], line["job"], line["type"], line["queue"]) == (name, job_id, f"shop.{name}", "default")
    assert (line["trace_id"], line["span_id"]) == (
        hexadecimal(inside["context"]["trace_id"]),
        hexadecimal(inside["context"]["span_id"]),
    )


def test_an_exception_of_a_child_process_is_recorded_with_its_cause(worker: Child, tmp_path: Path) -> None:
    run(tmp_path, "fail")
    (attempt,) = spans_in(tmp_path)
    assert attempt["attributes"]["error.type"] == "ValueError"
    (event,) = attempt["events"]
    assert event["attributes"]["exception.type"] == "ValueError"
    assert event["attributes"]["exception.message"] == "not paid"
    assert "ConnectionError: the bank is away" in event["attributes"]["exception.stacktrace"]


def test_lines_of_the_worker_about_a_timeout_name_the_job_and_the_trace_of_the_attempt(
    worker: Child, tmp_path: Path
) -> None:
    job_id = run(tmp_path, "hang")
    assert eventually(lambda: any("is a dead letter now" in line for line in worker.lines))
    lines = [json.loads(line) for line in worker.lines if job_id in line]
    (attempt,) = spans_in(tmp_path)
    trace_id = hexadecimal(attempt["context"]["trace_id"])
    timeout, failure, letter = [line for line in lines if line["logger"] == "mainspring.worker"]
    assert "has run into the timeout of 0.05 s" in timeout["message"]
    assert "failed in attempt 1 and is given up: timeout after 0.05 s" in failure["message"]
    for line in (timeout, failure):
        assert (line["job"], line["attempt"], line["type"]) == (job_id, 1, "shop.hang")
        assert (line["queue"], line["trace_id"]) == ("default", trace_id)
    assert (letter["job"], letter["trace_id"]) == (job_id, TRACE)  # that of the submit
