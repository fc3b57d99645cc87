"""Spans and metrics of submits and attempts, on memory and on a SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from mainspring import (
    Cancel,
    DeadLetter,
    DuplicateJob,
    InvalidArguments,
    JobContext,
    Mainspring,
    Middleware,
    Retry,
    Snooze,
    Submit,
    current_job,
)
from mainspring.monitoring import OpenTelemetryMiddleware
from mainspring.testing import time_travel
from tests.programs import run_python
from tests.recorded_spans import RecordedSpans, attributes, ids_of, links_of, parent_of
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

START = datetime(2026, 1, 5, 12, tzinfo=UTC)
ONCE = Retry(max_attempts=1)
ERROR, UNSET = StatusCode.ERROR, StatusCode.UNSET


@pytest.fixture
def recorded() -> Iterator[RecordedSpans]:
    spans = RecordedSpans()
    yield spans
    spans.close()


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    with Mainspring(url) as app:
        yield app


def exceptions_of(span: ReadableSpan) -> list[str]:
    return [str((event.attributes or {})["exception.type"]) for event in span.events if event.name == "exception"]


def test_a_submit_is_a_producer_span_and_an_attempt_a_consumer_span_with_a_link(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    app.middleware(recorded.middleware())

    @app.job(name="cancel", queue="orders")
    def cancel(order_id: int) -> None: ...

    with app.running():
        cancel.options(id="order-42").submit(42).wait(PATIENCE)
    (submit,), (attempt,) = recorded.submits, recorded.attempts
    assert (submit.name, attempt.name) == ("submit orders", "process orders")
    shared = {
        "messaging.system": "mainspring",
        "messaging.destination.name": "orders",
        "messaging.message.id": "order-42",
        "messaging.mainspring.job.type": "cancel",
    }
    assert dict(attributes(submit)) == shared | {
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
    }
    assert dict(attributes(attempt)) == shared | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.mainspring.attempt": 1,
        "messaging.mainspring.outcome": "completed",
        "messaging.mainspring.job.status": "COMPLETED",
    }
    assert links_of(attempt) == [ids_of(submit)]
    assert (parent_of(submit), parent_of(attempt)) == (None, None)
    assert ids_of(submit)[0] != ids_of(attempt)[0]
    assert (submit.status.status_code, attempt.status.status_code) == (UNSET, UNSET)


def test_with_same_trace_the_attempt_is_a_child_of_the_submit_and_the_names_may_have_the_type(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    app.middleware(recorded.middleware(same_trace=True, span_names="type"))

    @app.job(name="cancel")
    def cancel() -> None: ...

    with app.running(), recorded.tracer.start_as_current_span("request") as request:
        cancel.submit().wait(PATIENCE)
    (submit,), (attempt,) = recorded.submits, recorded.attempts
    assert (submit.name, attempt.name) == ("submit cancel", "process cancel")
    caller = request.get_span_context()
    assert parent_of(submit) == (caller.trace_id, caller.span_id)
    assert parent_of(attempt) == ids_of(submit)
    assert links_of(attempt) == [ids_of(submit)]


def test_every_attempt_is_a_span_that_says_how_it_ended(app: Mainspring, recorded: RecordedSpans) -> None:
    app.middleware(recorded.middleware())

    @app.job(name="pay", retry=Retry(max_attempts=2, base=0))
    def pay() -> None:
        try:
            raise ConnectionError("the bank is away")
        except ConnectionError as error:
            raise ValueError("not paid\nyet") from error

    with app.running():
        pay.submit().wait(PATIENCE)
    (submit,), attempts = recorded.submits, recorded.attempts
    assert [attributes(span)["messaging.mainspring.attempt"] for span in attempts] == [1, 2]
    assert [attributes(span)["messaging.mainspring.job.status"] for span in attempts] == ["PENDING", "FAILED"]
    for span in attempts:
        assert links_of(span) == [ids_of(submit)]
        assert attributes(span)["messaging.mainspring.outcome"] == "failed"
        assert attributes(span)["error.type"] == "ValueError"
        assert span.status.status_code is ERROR
        assert span.status.description == "ValueError: not paid"
        (event,) = span.events
        text = str((event.attributes or {})["exception.stacktrace"])
        assert "ConnectionError: the bank is away" in text
        assert "ValueError: not paid" in text


def test_requests_of_a_handler_are_no_errors(app: Mainspring, recorded: RecordedSpans) -> None:
    app.middleware(recorded.middleware())
    requests = [Snooze(0), Retry.Later(0), Cancel("no longer needed")]

    @app.job
    def ask() -> None:
        raise requests[len(recorded.attempts)]

    with app.running():
        ask.submit().wait(PATIENCE)
    outcomes = [attributes(span)["messaging.mainspring.outcome"] for span in recorded.attempts]
    assert outcomes == ["snoozed", "failed", "canceled"]
    assert [span.status.status_code for span in recorded.attempts] == [UNSET, ERROR, UNSET]
    assert not any(exceptions_of(span) for span in recorded.attempts)


def test_a_timeout_is_the_type_of_the_error(app: Mainspring, recorded: RecordedSpans) -> None:
    app.middleware(recorded.middleware())

    @app.job(timeout=0.05, retry=ONCE)
    async def hang() -> None:
        await asyncio.Event().wait()

    with app.running():
        hang.submit().wait(PATIENCE)
    (attempt,) = recorded.attempts
    assert attributes(attempt)["error.type"] == attributes(attempt)["messaging.mainspring.outcome"] == "timeout"


def test_a_bulk_submit_is_one_span_and_each_of_its_jobs_has_a_link_to_it(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    app.middleware(recorded.middleware())

    @app.job
    def count(number: int) -> None: ...

    with app.running():
        for job_id in count.submit_many([{"number": n} for n in range(3)]):
            app.handle(job_id).wait(PATIENCE)
    (submit,) = recorded.submits
    assert attributes(submit)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(submit)
    assert [links_of(attempt) for attempt in recorded.attempts] == [[ids_of(submit)]] * 3


def test_a_call_of_a_batch_handler_is_one_span_with_links_to_all_its_jobs(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    app.middleware(recorded.middleware(same_trace=True))

    @app.job(batch=10, retry=ONCE)
    def count(numbers: list[int]) -> list[object]:
        return [ValueError(f"not {number}") if number == 1 else number for number in numbers]

    ids = [count.submit(number).id for number in range(3)]
    with app.running():
        for job_id in ids:
            app.handle(job_id).wait(PATIENCE)
    (attempt,) = recorded.attempts
    assert attributes(attempt)["messaging.batch.message_count"] == 3
    assert sorted(links_of(attempt)) == sorted(ids_of(submit) for submit in recorded.submits)
    assert {(link.attributes or {})["messaging.message.id"] for link in attempt.links} == set(ids)
    assert parent_of(attempt) is None
    assert attempt.status.status_code is ERROR  # one of the three jobs failed
    assert exceptions_of(attempt) == ["ValueError"]
    assert "messaging.mainspring.outcome" not in attributes(attempt)


def test_spans_of_handlers_and_jobs_that_they_submit_are_children_of_the_attempt(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    app.middleware(recorded.middleware())

    @app.job(name="second")
    def second() -> None: ...

    @app.job(name="plain")
    def plain() -> str:
        with recorded.tracer.start_as_current_span("inside plain"):
            return second.submit().id

    @app.job(name="coroutine")
    async def coroutine() -> str:
        await asyncio.sleep(0)
        with recorded.tracer.start_as_current_span("inside coroutine"):
            return (await second.submit_async()).id

    with app.running():
        for first in (plain, coroutine):
            app.handle(first.submit().result(PATIENCE)).wait(PATIENCE)
            (attempt,) = recorded.attempts_of(first.name)
            (inside,) = (span for span in recorded.all if span.name == f"inside {first.name}")
            submit = recorded.submits_of("second")[-1]  # the submit of the first job may end later
            assert parent_of(inside) == ids_of(attempt)
            assert parent_of(submit) == ids_of(inside)
            assert links_of(recorded.attempts_of("second")[-1]) == [ids_of(submit)]


def test_a_follow_up_job_has_a_link_to_the_attempt_that_caused_it(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    app.middleware(recorded.middleware())

    @app.job(name="last")
    def last(number: int) -> None: ...

    @app.job(name="middle", then=last)
    def middle(number: int) -> int:
        return number

    @app.job(name="first", then=middle)
    def first() -> int:
        return 7

    with app.running():
        first.submit().wait(PATIENCE)
        assert eventually(lambda: len(recorded.attempts) == 3)
    for before, after in (("first", "middle"), ("middle", "last")):
        assert links_of(recorded.attempts_of(after)[0]) == [ids_of(recorded.attempts_of(before)[0])]


def test_the_job_of_a_dead_letter_handler_and_a_replay_have_links_to_the_submit_of_the_failed_job(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    app.middleware(recorded.middleware())

    @app.job(name="fail", retry=ONCE)
    def fail() -> None:
        raise ValueError("no")

    @app.on_dead_letter
    @app.job(name="alarm")
    def alarm(letter: DeadLetter) -> None: ...

    with app.running():
        failed = fail.submit()
        failed.wait(PATIENCE)
        assert eventually(lambda: bool(recorded.attempts_of("alarm")))
        (replay,) = app.dead_letters.replay(failed.id)
        app.handle(replay).wait(PATIENCE)
        assert eventually(lambda: len(recorded.attempts_of("alarm")) == 2)
    (submit,) = recorded.submits
    alarm_span = recorded.attempts_of("alarm")[0]
    assert links_of(alarm_span) == [ids_of(submit)]
    assert attributes(alarm_span)["messaging.mainspring.dead_letter"] == failed.id
    again = recorded.attempts_of("fail")[1]
    assert attributes(again)["messaging.message.id"] == replay
    assert links_of(again) == [ids_of(submit)]


def test_a_job_of_a_schedule_has_a_link_to_the_span_of_its_firing(recorded: RecordedSpans) -> None:
    app = Mainspring("memory://")
    app.middleware(recorded.middleware())

    @app.cron("0 13 * * *", name="daily")
    @app.job(retry=Retry(max_attempts=2, base=60, jitter=0))
    def report() -> None:
        raise ValueError("no numbers yet")

    with time_travel(app, start=START) as travel:
        travel.fast_forward(hours=2)
        triggered = app.schedules.trigger("daily")
        travel.fast_forward(hours=1)
    fired, by_hand = recorded.submits
    assert fired.name == "submit default"
    assert attributes(fired)["messaging.mainspring.schedule"] == "daily"
    assert [links_of(span) for span in recorded.attempts] == [[ids_of(fired)]] * 2 + [[ids_of(by_hand)]] * 2
    assert attributes(by_hand)["messaging.message.id"] == triggered.id


def test_a_firing_that_another_worker_has_made_is_not_counted(recorded: RecordedSpans) -> None:
    with recorded.middleware().scheduling(Submit("report", "default", 1, {}, schedule="daily")):
        pass  # the firer sets `ids` only if the store has accepted the firing
    (submit,) = recorded.submits
    assert attributes(submit)["messaging.mainspring.outcome"] == "not stored"
    assert recorded.points("messaging.client.sent.messages") == []


def test_a_submit_that_fails_is_an_error(app: Mainspring, recorded: RecordedSpans) -> None:
    app.middleware(recorded.middleware())

    @app.job
    def count(number: int) -> None: ...

    count.options(id="one").submit(1)
    with pytest.raises(DuplicateJob):
        count.options(id="one").submit(1)
    with pytest.raises(InvalidArguments):
        count.submit("many")  # type: ignore[arg-type]
    errors = [attributes(span).get("error.type") for span in recorded.submits]
    assert errors == [None, "mainspring.errors.DuplicateJob", "mainspring.errors.InvalidArguments"]
    assert [span.status.status_code for span in recorded.submits] == [UNSET, ERROR, ERROR]
    assert exceptions_of(recorded.submits[1]) == ["mainspring.errors.DuplicateJob"]
    sent = {
        point.attributes.get("error.type"): point.value
        for point in recorded.points("messaging.client.sent.messages")
    }
    assert sent == dict.fromkeys(errors, 1)


def test_a_context_that_the_caller_has_put_into_the_headers_is_kept(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    app.middleware(recorded.middleware())

    @app.job
    def ping() -> str:
        return current_job().headers["traceparent"]

    given = f"00-{'a' * 32}-{'b' * 16}-01"
    with app.running():
        assert ping.options(headers={"traceparent": given}).submit().result(PATIENCE) == given
    expected = [(int("a" * 32, 16), int("b" * 16, 16))]
    assert links_of(recorded.attempts[0]) == links_of(recorded.submits[0]) == expected


@pytest.mark.parametrize("is_on", [True, False])
def test_baggage_is_passed_on_by_option(app: Mainspring, recorded: RecordedSpans, *, is_on: bool) -> None:
    app.middleware(recorded.middleware(baggage=is_on))

    @app.job
    def ask() -> object:
        return baggage.get_baggage("tenant")

    token = context.attach(baggage.set_baggage("tenant", "blue"))
    try:
        with app.running():
            assert ask.submit().result(PATIENCE) == ("blue" if is_on else None)
    finally:
        context.detach(token)


def test_metrics_count_and_time_submits_and_attempts(app: Mainspring, recorded: RecordedSpans) -> None:
    app.middleware(recorded.middleware())

    @app.job(name="count", queue="numbers", retry=ONCE)
    def count(number: int) -> None:
        if number == 2:
            raise ValueError("not two")

    with app.running():
        for job_id in count.submit_many([(number,) for number in range(3)]):
            app.handle(job_id).wait(PATIENCE)
    shared = {
        "messaging.system": "mainspring",
        "messaging.destination.name": "numbers",
        "messaging.mainspring.job.type": "count",
    }
    (sent,) = recorded.points("messaging.client.sent.messages")
    assert (dict(sent.attributes), sent.value) == (shared | {"messaging.operation.name": "submit"}, 3)
    process = shared | {"messaging.operation.name": "process"}
    consumed = recorded.points("messaging.client.consumed.messages")
    assert sorted((point.attributes.get("error.type", ""), point.value) for point in consumed) == [
        ("", 2),
        ("ValueError", 1),
    ]
    durations = recorded.points("messaging.process.duration")
    assert sorted(point.count for point in durations) == [1, 2]
    assert all(process.items() <= dict(point.attributes).items() for point in durations)
    (submits,) = recorded.points("messaging.client.operation.duration")
    assert (submits.count, submits.explicit_bounds[0]) == (1, 0.005)


def test_without_an_sdk_the_context_of_other_programs_is_passed_on(app: Mainspring) -> None:
    app.middleware(OpenTelemetryMiddleware(tracer_provider=trace.NoOpTracerProvider()))

    @app.job
    def second() -> str:
        return current_job().headers["traceparent"]

    @app.job
    def first() -> str:
        return second.submit().id

    given = f"00-{'a' * 32}-{'b' * 16}-01"
    with app.running():
        job_id = first.options(headers={"traceparent": given}).submit().result(PATIENCE)
        assert app.handle(job_id).result(PATIENCE) == given


def test_a_middleware_that_fails_before_the_span_leaves_none_open(
    app: Mainspring, recorded: RecordedSpans
) -> None:
    class Failing(Middleware):
        def attempting(self, job: JobContext) -> AbstractContextManager[object]:
            raise PermissionError("not now")

    app.middleware(Failing())
    app.middleware(recorded.middleware())

    @app.job(retry=ONCE)
    def ping() -> None: ...

    with app.running():
        ping.submit().wait(PATIENCE)
    assert recorded.attempts == []


def test_the_package_is_imported_at_the_first_use() -> None:
    code = "import sys, mainspring.monitoring; sys.exit(any('opentelemetry' == name for name in sys.modules))"
    assert run_python("-c", code).returncode == 0


def test_a_missing_package_is_an_error_with_the_remedy() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None; "
        "from mainspring.monitoring import OpenTelemetryMiddleware"
    )
    assert "pip install 'mainspring[otel]'" in run_python("-c", code).stderr.splitlines()[-1]


def test_an_unknown_form_of_names_is_refused() -> None:
    with pytest.raises(ValueError, match="span_names must be 'queue' or 'type', got 'job'"):
        OpenTelemetryMiddleware(span_names="job")  # type: ignore[arg-type]
