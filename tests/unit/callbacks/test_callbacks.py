"""Callbacks of an application on SQLite, and what their declaration checks."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import CallbackPolicy, CallbackRefused, JobStatus, Mainspring, MissingExtra, Retry
from mainspring.testing import time_travel
from tests.callback_suite import CallbackTests, MakeApp, check_that_workers_share_a_pause
from tests.programs import run_python
from tests.receiver import Receiver, Reply, receiver
from tests.recorded_spans import RecordedSpans
from tests.support import PATIENCE

URL = "https://hooks.example.com/orders"
POLICY = CallbackPolicy(allow=["https://hooks.example.com/*"])


@pytest.fixture
def make_app(url: str) -> MakeApp:
    @contextmanager
    def make(**options: Any) -> Iterator[Mainspring]:
        with Mainspring(url, **{"durability": "normal", "grace": 0, **options}) as app:
            yield app

    return make


class TestCallbacks(CallbackTests):
    def test_another_worker_knows_of_a_pause(self, tmp_path: Path, server: Receiver) -> None:
        @contextmanager
        def make(**options: Any) -> Iterator[Mainspring]:
            with Mainspring(f"sqlite:///{tmp_path}/jobs.db", grace=0, **options) as app:
                yield app

        check_that_workers_share_a_pause(make, server)


def test_without_a_policy_nothing_may_be_called(app: Mainspring) -> None:
    with pytest.raises(CallbackRefused) as caught:
        app.http_job("paid", url=URL)
    assert f"Mainspring(callbacks=CallbackPolicy(allow=[{URL!r}]))" in str(caught.value)
    assert app.callback_types() == ()


def test_a_declaration_is_checked() -> None:
    app = Mainspring("memory://", callbacks=POLICY)
    with pytest.raises(CallbackRefused, match="no entry of the allow-list"):
        app.http_job("paid", url="https://evil.example/orders")
    with pytest.raises(CallbackRefused, match="there is no secret"):
        app.http_job("paid", url=URL, secret="shop")
    with pytest.raises(ValueError, match="success must be codes"):
        app.http_job("paid", url=URL, success=(2,))
    with pytest.raises(ValueError, match="contradict"):
        app.http_job("paid", url=URL, at_most_once=True, retry=Retry(max_attempts=2, jitter=0))
    with pytest.raises(TypeError, match="callbacks must be"):
        Mainspring("memory://", callbacks=["https://hooks.example.com/*"])  # type: ignore[arg-type]
    assert app.callback_types() == ("mainspring.http",)


def test_two_callbacks_cannot_have_one_name() -> None:
    app = Mainspring("memory://", callbacks=POLICY)
    app.http_job("paid", url=URL)
    with pytest.raises(ValueError, match="two handlers are named 'paid'"):
        app.http_job("paid", url=URL)


def test_the_types_of_callbacks_can_be_told_from_others() -> None:
    app = Mainspring("memory://", callbacks=POLICY)
    paid = app.http_job("paid", url=URL)
    app.job(name="other")(lambda: None)
    assert app.callback_types() == ("mainspring.http", "paid")
    assert (paid.handler.is_callback, app.registry.get("other").is_callback) == (True, False)


def test_a_callback_is_no_function() -> None:
    app = Mainspring("memory://", callbacks=POLICY)
    paid = app.http_job("paid", url=URL)
    coroutine: Any = paid(body=1)
    with pytest.raises(RuntimeError, match=r"use paid\.submit"):
        coroutine.send(None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"per_host": 1_000}, "less than in_flight"),
        ({"per_host": 0}, "per_host"),
        ({"in_flight": 0}, "in_flight"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"timeout": 0}, "timeout must be greater"),
        ({"longest_pause": 0}, "longest_pause must be greater"),
    ],
)
def test_a_policy_checks_its_numbers(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CallbackPolicy(**options)


def test_one_host_gets_at_most_half_of_the_requests_of_a_worker() -> None:
    assert CallbackPolicy().most_of_host == 500
    assert CallbackPolicy(in_flight=1_000, per_host=800).most_of_host == 800
    assert CallbackPolicy(per_host=None).most_of_host is None


def test_time_travel_runs_the_default_retries_in_a_moment() -> None:
    with receiver() as server:
        server.answer = lambda got: Reply(204 if got.headers["mainspring-attempt"] == "10" else 500)
        policy = CallbackPolicy(allow=[server.url("/*")], allow_http=True, allow_private=True)
        app = Mainspring("memory://", callbacks=policy)
        paid = app.http_job("paid", url=server.url())
        with app, time_travel(app, start=datetime(2026, 1, 5, 12, tzinfo=UTC)) as travel:
            handle = paid.after(timedelta(hours=1)).submit(body=1)
            travel.fast_forward(minutes=59)
            assert not server.requests
            travel.fast_forward(hours=10)
            assert handle.status() is JobStatus.PENDING
            travel.fast_forward(hours=15)
            assert handle.status() is JobStatus.COMPLETED
    assert len(server.requests) == 10


def test_time_travel_passes_pauses_in_a_moment() -> None:
    with receiver() as server:
        policy = CallbackPolicy(allow=[server.url("/*")], allow_http=True, allow_private=True)
        app = Mainspring("memory://", callbacks=policy)
        paid = app.http_job("paid", url=server.url())
        server.answer = lambda _: Reply(503, {"Retry-After": "240"})
        with app, time_travel(app, start=datetime(2026, 1, 5, 12, tzinfo=UTC)) as travel:
            first = paid.submit()
            travel.settle()
            second = paid.submit()
            travel.fast_forward(minutes=3)
            assert len(server.requests) == 1
            assert (first.status(), second.status()) == (JobStatus.PENDING, JobStatus.PENDING)
            server.answer = lambda _: Reply()
            travel.fast_forward(minutes=2)
            assert (first.status(), second.status()) == (JobStatus.COMPLETED, JobStatus.COMPLETED)
            assert app.callback_pauses() == []
    assert len(server.requests) == 3


def test_a_request_names_the_span_of_its_attempt(url: str) -> None:
    spans = RecordedSpans()
    with receiver() as server:
        policy = CallbackPolicy(allow=[server.url("/*")], allow_http=True, allow_private=True)
        app = Mainspring(url, durability="normal", callbacks=policy)
        app.middleware(spans.middleware())
        paid = app.http_job("paid", url=server.url())
        with app, app.running():
            paid.submit().result(PATIENCE)
        got = server.requests[0].headers["traceparent"]
    span = spans.attempts_of("paid")[0].context
    spans.close()
    assert span is not None
    assert got == f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def test_a_request_passes_the_trace_of_its_job_on(url: str) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "shop=1"}
    own = f"00-{'c' * 32}-{'d' * 16}-00"
    with receiver() as server:
        policy = CallbackPolicy(allow=[server.url("/*")], allow_http=True, allow_private=True)
        app = Mainspring(url, durability="normal", callbacks=policy)
        paid = app.http_job("paid", url=server.url())
        with app, app.running():
            paid.options(headers=trace).submit().result(PATIENCE)
            paid.options(headers={"traceparent": "no trace"}).submit().result(PATIENCE)
            paid.options(headers=trace).submit(headers={"Traceparent": own}).result(PATIENCE)
        names = ("traceparent", "tracestate")
        got = [[each.headers.get(name) for name in names] for each in server.requests]
    assert got == [list(trace.values()), [None, None], [own, None]]


def test_an_application_without_callbacks_imports_nothing_of_them(tmp_path: Path) -> None:
    code = (
        "import sys; from mainspring import Mainspring; app = Mainspring('memory://'); "
        "app.job(name='x')(lambda: None).submit(); app.close(); "
        "print(*(name for name in sys.modules if name.startswith('mainspring.callbacks.') or 'aiohttp' in name))"
    )
    run = run_python("-c", code, folder=tmp_path)
    assert run.stdout.split() == ["mainspring.callbacks.http_jobs"]


def test_a_program_that_only_submits_imports_no_client(tmp_path: Path) -> None:
    code = (
        "import sys; from mainspring import CallbackPolicy, Mainspring; "
        f"app = Mainspring('memory://', callbacks=CallbackPolicy(allow=[{URL!r}])); "
        f"app.http_job('paid', url={URL!r}).submit(body=1); app.close(); print('aiohttp' in sys.modules)"
    )
    assert run_python("-c", code, folder=tmp_path).stdout.strip() == "False"


def test_a_process_with_few_files_sends_fewer_requests_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Mainspring("memory://", callbacks=POLICY) as app:
        paid = app.http_job("paid", url=URL)
        monkeypatch.setattr("resource.getrlimit", lambda _: (1_024, 524_288))
        with app.running():
            (slots,) = [each for each in app.statistics().process.slots if each.kind == "callbacks"]
        assert slots.slots == paid.handler.requests_at_once == 768
        assert "at most 768 requests" in caplog.text
        assert "ulimit -n" in caplog.text
        monkeypatch.setattr("resource.getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
        assert paid.handler.requests_at_once == 1_000
        monkeypatch.setattr("resource.getrlimit", lambda _: (100, 100))
        assert paid.handler.requests_at_once == 1


def test_a_worker_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "mainspring.callbacks.client", raising=False)
    app = Mainspring("memory://", callbacks=POLICY)
    app.http_job("paid", url=URL).submit(body=1)  # a submit needs no client
    with pytest.raises(MissingExtra, match=r"mainspring\[web\]"), app.running():
        pass
    app.close()
