"""The log of `mainspring run`: lines for people, or JSON in each line."""

import asyncio
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import ExceptHookArgs
from typing import Any

import pytest

from mainspring import Mainspring, Retry, current_job
from mainspring.cli.logs import (
    ConsoleLogFormatter,
    JsonLogFormatter,
    LogFormat,
    LogLevel,
    add_job_fields,
    start_logging,
)
from tests.recorded_spans import RecordedSpans, ids_of
from tests.support import PATIENCE, eventually


def record_of(message: str, **extra: Any) -> logging.LogRecord:
    logger = logging.getLogger("shop")
    record = logger.makeRecord("shop", logging.WARNING, __file__, 1, message, (), None, extra=extra or None)
    record.created = 1_800_000_000.25
    return record


def line_of(record: logging.LogRecord) -> Any:
    text = JsonLogFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_record_is_an_object_in_one_line() -> None:
    assert line_of(record_of("two\nlines")) == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "logger": "shop",
        "message": "two\nlines",
    }


def test_a_record_of_a_job_says_which_and_does_not_repeat_it() -> None:
    fields = {"job": "order-42", "attempt": 2, "handler": "cancel", "queue": "orders"}
    line = line_of(record_of("[order-42 #2] gone", **fields))
    assert {name: line[name] for name in fields} == fields
    assert line["message"] == "gone"


def test_a_console_line_names_the_job_of_the_handler_that_logs_it() -> None:
    fields = {"job": "order-42", "attempt": 2, "handler": "cancel", "queue": "orders"}
    form = ConsoleLogFormatter(is_colored=False).format
    assert form(record_of("gone", **fields)).endswith(" WARNING shop: [order-42 #2] gone")
    assert form(record_of("[order-42 #2] gone", **fields)).endswith(" WARNING shop: [order-42 #2] gone")
    assert form(record_of("job order-42 ended", **fields)).endswith(" WARNING shop: job order-42 ended")


def test_an_exception_is_a_field() -> None:
    record = record_of("it broke")
    try:
        raise ValueError("no such order")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = line_of(record)
    assert line["message"] == "it broke"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: no such order")


def test_facts_are_fields_and_what_json_does_not_know_is_a_text() -> None:
    line = line_of(record_of("ready", facts={"event": "ready", "path": object}))
    assert (line["event"], line["path"]) == ("ready", "<class 'object'>")


def test_levels_have_colours_on_a_terminal_only() -> None:
    record = record_of("careful")
    assert " WARNING shop: careful" in ConsoleLogFormatter(is_colored=False).format(record)
    assert " \x1b[33mWARNING\x1b[0m shop: careful" in ConsoleLogFormatter(is_colored=True).format(record)


def test_a_terminal_does_not_obey_control_characters_of_an_error() -> None:
    record = record_of("\x1b[2Jgone\n\tindented\x9b")
    assert ConsoleLogFormatter(is_colored=True).format(record).endswith("shop: \\x1b[2Jgone\n\tindented\\x9b")


class Kept(logging.Handler):
    """Keeps the lines of all records."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self.addFilter(add_job_fields)
        self.setFormatter(JsonLogFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


def test_whatever_is_logged_while_a_job_runs_says_which() -> None:
    app = Mainspring("memory://")

    @app.job(queue="orders", retry=Retry(max_attempts=1))
    def cancel(order_id: int) -> None:
        logging.getLogger("shop").error("of the application")
        current_job().log.error("of the job", extra={"order": order_id})
        raise ValueError("no such order")

    kept = Kept()
    logging.getLogger().addHandler(kept)
    try:
        with app, app.running():
            cancel.options(id="order-42").submit(42).wait(PATIENCE)
    finally:
        logging.getLogger().removeHandler(kept)
    name = cancel.name
    job = {"job": "order-42", "attempt": 1, "handler": name, "queue": "orders"}
    (own,) = (line for line in kept.lines if line["logger"] == "shop")
    assert own.items() >= job.items()
    (of_job,) = (line for line in kept.lines if line["logger"] == "mainspring.job")
    assert of_job.items() >= (job | {"message": "of the job"}).items()
    (given_up,) = (line for line in kept.lines if line["logger"] == "mainspring.worker")
    assert (given_up["job"], given_up["handler"], given_up["level"]) == ("order-42", name, "error")


HEADERS = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
OF_SUBMIT = {"trace_id": "a" * 32, "span_id": "b" * 16}


@contextmanager
def kept_lines() -> Iterator[Kept]:
    kept = Kept()
    root = logging.getLogger()
    root.addHandler(kept)
    level = root.level
    root.setLevel(logging.INFO)
    try:
        yield kept
    finally:
        root.removeHandler(kept)
        root.setLevel(level)


def test_without_opentelemetry_the_trace_comes_from_the_headers_of_the_job() -> None:
    app = Mainspring("memory://")

    @app.job(name="cancel", queue="orders", retry=Retry(max_attempts=2, base=0))
    def cancel() -> None:
        logging.getLogger("shop").info("of the application")
        current_job().log.info("of the job")
        raise ValueError("no such order")

    with kept_lines() as kept, app, app.running():
        cancel.options(id="order-42", headers=HEADERS).submit().wait(PATIENCE)
        assert eventually(lambda: any("dead letter now" in line["message"] for line in kept.lines))
    job = {"job": "order-42", "type": "cancel", "queue": "orders"} | OF_SUBMIT
    lines = [line for line in kept.lines if line["logger"] != "mainspring.schedules"]
    assert [line["message"][:40] for line in lines] == [
        "of the application",
        "of the job",
        "job order-42 (cancel) failed in attempt ",
        "of the application",
        "of the job",
        "job order-42 (cancel) failed in attempt ",
        "job order-42 (cancel) is a dead letter n",
    ]
    assert all(line.items() >= job.items() for line in lines)
    assert [line["attempt"] for line in lines] == [1, 1, 1, 2, 2, 2, 2]


def test_the_trace_of_a_line_is_that_of_the_current_span_or_of_the_attempt() -> None:
    spans = RecordedSpans()
    app = Mainspring("memory://")
    app.middleware(spans.middleware())

    @app.job(name="cancel", retry=Retry(max_attempts=1))
    def cancel() -> None:
        logging.getLogger("shop").info("in the attempt")
        with spans.tracer.start_as_current_span("inside"):
            logging.getLogger("shop").info("inside")
            current_job().log.info("inside")
        raise ValueError("no")

    with kept_lines() as kept, app, app.running():
        cancel.options(headers=HEADERS).submit().wait(PATIENCE)
    by_name = {span.name: ids_of(span) for span in spans.all}
    attempt, inside = by_name["process default"], by_name["inside"]
    given_up = next(line for line in kept.lines if "is given up" in line["message"])
    expected = {"in the attempt": attempt, "inside": inside, given_up["message"]: attempt}
    lines = [line for line in kept.lines if line["message"] in expected]
    assert len(lines) == 4
    for line in lines:
        trace_id, span_id = expected[line["message"]]
        assert (line["trace_id"], line["span_id"]) == (f"{trace_id:032x}", f"{span_id:016x}")
    spans.close()


def test_a_line_outside_of_jobs_names_the_current_span_and_one_of_the_worker_about_a_job_does_not() -> None:
    spans = RecordedSpans()
    own, of_worker = record_of("hello"), record_of("job order-42 waits", job="order-42")
    of_worker.name = "mainspring.worker"
    with spans.tracer.start_as_current_span("request") as request:
        for record in (own, of_worker):
            add_job_fields(record)
    assert line_of(own)["trace_id"] == f"{request.get_span_context().trace_id:032x}"
    assert "trace_id" not in line_of(of_worker)
    spans.close()


def test_a_timeout_of_a_batch_names_all_jobs_and_what_they_share() -> None:
    app = Mainspring("memory://")

    @app.job(name="count", batch=5, timeout=0.05, retry=Retry(max_attempts=1))
    async def count(numbers: list[int]) -> None:
        await asyncio.Event().wait()

    with app:
        ids = [count.options(headers=HEADERS).submit(number).id for number in range(2)]
        with kept_lines() as kept, app.running():
            for job_id in ids:
                app.handle(job_id).wait(PATIENCE)
    (line,) = (line for line in kept.lines if "run into the timeout" in line["message"])
    assert sorted(line["jobs"]) == sorted(ids)
    assert line.items() >= ({"type": "count", "handler": "count", "queue": "default"} | OF_SUBMIT).items()
    assert "job" not in line


@pytest.fixture
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    root.handlers = []
    yield
    logging.captureWarnings(capture=False)
    root.handlers, root.level = before


def test_in_json_everything_is_json(logging_as_it_was: None, capsys: pytest.CaptureFixture[str]) -> None:
    start_logging(LogFormat.JSON, LogLevel.INFO)
    logging.getLogger("shop").debug("left out")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    error = ValueError("lost")
    sys.excepthook(ValueError, error, None)
    threading.excepthook(ExceptHookArgs((ValueError, error, None, None)))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["logger"] for line in lines] == ["py.warnings", "mainspring.cli", "mainspring.cli"]
    assert "ValueError: lost" in lines[1]["exception"]
