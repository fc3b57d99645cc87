"""Callbacks of a whole application, on any store: deliveries, retries, pauses, limits, schedules.

`tests/unit/callbacks` and `tests/nats` run these tests on their stores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook

from mainspring import (
    CallbackPolicy,
    CallbackRefused,
    CallbackSecret,
    Every,
    InvalidArguments,
    JobFailed,
    JobStatus,
    Mainspring,
    Reason,
    Retry,
    acting_as,
)
from mainspring.callbacks.client import CheckedResolver
from mainspring.callbacks.declaring import DeclaredDelivery, FreeDelivery
from tests.receiver import Hold, Receiver, Reply, receiver
from tests.support import PATIENCE, amount, eventually

DAY = {"Retry-After": "86400"}
FAST = Retry(max_attempts=3, base=0.01, max_delay=0.01, jitter=0)
KEY = CallbackSecret.generate()
MakeApp = Callable[..., AbstractContextManager[Mainspring]]


async def _loopback(_self: object, _host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


class CallbackTests:
    """A subclass has a fixture `make_app`: options of an application -> a context manager with it."""

    @pytest.fixture
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
        """A receiver, which every host name leads to."""
        monkeypatch.setattr(CheckedResolver, "_ask_system", _loopback)
        with receiver() as running:
            yield running

    @pytest.fixture
    def app(self, server: Receiver, make_app: MakeApp) -> Iterator[Mainspring]:
        with make_app(callbacks=policy_for(server)) as app:
            yield app

    def test_a_job_is_a_signed_request_that_names_its_job(self, app: Mainspring, server: Receiver) -> None:
        paid = app.http_job("paid", url=server.url(), secret="shop", headers={"X-Shop": "1"})
        with app.running():
            handle = paid.submit(body={"order": 42}, headers={"X-Own": "2"})
            assert handle.result(timeout=PATIENCE) is None
        (request,) = server.requests
        assert Webhook(KEY).verify(request.body, dict(request.headers)) == {"order": 42}
        assert request.headers["webhook-id"] == request.headers["mainspring-job"] == handle.id
        assert request.headers["mainspring-type"] == "paid"
        assert request.headers["mainspring-attempt"] == "1"
        assert (request.headers["x-shop"], request.headers["x-own"]) == ("1", "2")
        record = app.manager().record(handle.id)
        assert b"whsec" not in record.payload
        assert KEY.encode() not in record.payload
        assert record.result is None

    def test_the_answer_is_kept_if_it_was_asked_for(self, app: Mainspring, server: Receiver) -> None:
        server.answer = lambda _: Reply(200, {"Content-Type": "text/plain", "X-Other": "1"}, b"thanks")
        ask = app.http_job("ask", url=server.url(), method="PUT", keep_result=True)
        with app.running():
            result = ask.submit("a text").result(timeout=PATIENCE)
        assert result is not None
        assert (result["status"], result["body"], result["is_cut"]) == (200, "thanks", False)
        assert result["headers"]["content-type"].startswith("text/plain")
        assert "x-other" not in result["headers"]
        assert (server.requests[0].method, server.requests[0].body) == ("PUT", b"a text")

    def test_a_failed_request_is_repeated_and_becomes_a_dead_letter(
        self, app: Mainspring, server: Receiver, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.answer = lambda _: Reply(500)
        ping = app.http_job("ping", url=server.url("/hooks/ping?token=secret"), retry=FAST)
        caplog.set_level(logging.INFO)
        with app.running():
            handle = ping.submit()
            with pytest.raises(JobFailed, match="answered with 500"):
                handle.result(timeout=PATIENCE)
        assert [request.headers["mainspring-attempt"] for request in server.requests] == ["1", "2", "3"]
        assert len({request.headers["mainspring-job"] for request in server.requests}) == 1
        (letter,) = app.dead_letters.list()
        assert letter.error is not None
        assert "Traceback" not in letter.error + caplog.text
        assert "secret" not in letter.error + caplog.text
        assert "answered with 500" in app.explain(handle.id).text

    def test_410_ends_a_job_without_retries(self, app: Mainspring, server: Receiver) -> None:
        server.answer = lambda _: Reply(410)
        ping = app.http_job("ping", url=server.url(), retry=FAST)
        with app.running(), pytest.raises(JobFailed, match="no further attempts are made"):
            ping.submit().result(timeout=PATIENCE)
        assert len(server.requests) == 1

    def test_a_busy_url_pauses_its_job_type_for_minutes_and_no_other(
        self, app: Mainspring, server: Receiver
    ) -> None:
        """The receiver of one tenant asks for a day. The jobs of the other tenant at the same host go on."""
        server.answer = lambda got: Reply(503, DAY) if got.path == "/hooks/a" else Reply()
        one = app.http_job("tenant-a", url=server.url("/hooks/a"), retry=FAST)
        other = app.http_job("tenant-b", url=server.url("/hooks/b"), retry=FAST)
        with app.running():
            first = one.submit()
            assert eventually(lambda: app.get(first.id).due - app.get(first.id).created > timedelta(hours=23))
            second = one.submit()
            assert eventually(lambda: _is_put_off(app, second.id))
            assert other.submit().wait(timeout=PATIENCE) is JobStatus.COMPLETED
            waits = app.get(second.id).due - app.get(second.id).created
            assert timedelta(minutes=4) < waits < timedelta(minutes=5, seconds=1)
        explained = app.explain(second.id)
        assert explained.reason is Reason.RECEIVER_PAUSED
        assert "has answered with 503 and gets no requests of the type 'tenant-a' until" in explained.text
        assert f"app.run_now({second.id!r}) lifts the pause" in str(explained)
        (pause,) = app.callback_pauses()
        assert (pause.host, pause.type, pause.url) == (f"localhost:{server.port}", "tenant-a", None)
        assert (pause.status, pause.count, pause.is_probing) == (503, 1, False)
        assert [attempt.cause for attempt in app.get(first.id).history] == ["failure"]
        assert not app.get(second.id).history

    def test_run_now_lifts_a_pause(self, app: Mainspring, server: Receiver) -> None:
        server.answer = lambda _: Reply(503, DAY)
        ping = app.http_job("ping", url=server.url(), retry=FAST)
        with app.running():
            first = ping.submit()
            server.wait_for_requests(1)
            assert eventually(lambda: app.callback_pauses() != [])
            others = [ping.submit() for _ in range(3)]
            assert eventually(lambda: all(_is_put_off(app, other.id) for other in others))
            server.answer = lambda _: Reply()
            assert app.run_now(others[0].id)
            for other in others:  # the lift makes the others due, too
                assert other.wait(timeout=PATIENCE) is JobStatus.COMPLETED
            assert app.callback_pauses() == []
            assert app.run_now(first.id)  # its own failure has put it off for a day
            assert first.wait(timeout=PATIENCE) is JobStatus.COMPLETED

    def test_run_now_of_the_job_that_failed_lifts_the_pause(self, app: Mainspring, server: Receiver) -> None:
        server.answer = lambda _: Reply(503, DAY)
        with app.running():
            job_id = submit_http(app, url=server.url("/hooks/a?token=secret"))
            assert eventually(lambda: app.get(job_id).failures == 1)
            (pause,) = app.callback_pauses()
            assert pause.url == server.url("/hooks/a")
            server.answer = lambda _: Reply()
            assert app.run_now(job_id)
            assert app.handle(job_id).wait(timeout=PATIENCE) is JobStatus.COMPLETED

    def test_an_operator_lifts_the_pauses_of_a_host(self, app: Mainspring, server: Receiver) -> None:
        host = f"localhost:{server.port}"
        server.answer = lambda _: Reply(503, DAY)
        jobs = [app.http_job(f"type-{name}", url=server.url(f"/hooks/{name}"), retry=FAST) for name in "abcd"]
        with app.running():
            for job in jobs[:3]:
                job.submit()
            assert eventually(lambda: [pause.type for pause in app.callback_pauses()][:1] == [None])
            last = jobs[3].submit()
            assert eventually(lambda: _is_put_off(app, last.id))
            assert "of the type" not in app.explain(last.id).text
            server.answer = lambda _: Reply()
            elsewhere = app.http_job("elsewhere", url=server.url(host="other.example.com"))
            assert elsewhere.submit().wait(timeout=PATIENCE) is JobStatus.COMPLETED
            assert app.resume_callbacks("other.example.com") == 0
            with acting_as("alice"):
                assert app.resume_callbacks(host) == 4
            assert last.wait(timeout=PATIENCE) is JobStatus.COMPLETED
            assert app.callback_pauses() == []
        assert [(entry.action, entry.target) for entry in app.audit(10)] == [("callbacks.resume", host)] * 4
        assert server.requests[-1].path == "/hooks/d"

    def test_the_pauses_of_one_type_can_be_lifted(self, app: Mainspring, server: Receiver) -> None:
        server.answer = lambda _: Reply(429, DAY)
        jobs = [app.http_job(f"type-{name}", url=server.url(f"/hooks/{name}"), retry=FAST) for name in "ab"]
        with app.running():
            for job in jobs:
                job.submit()
            assert eventually(lambda: len(app.callback_pauses()) == 2)
            assert app.resume_callbacks(f"localhost:{server.port}", type="type-a") == 1
            assert [pause.type for pause in app.callback_pauses()] == ["type-b"]

    def test_after_a_pause_one_request_is_a_probe(self, server: Receiver, make_app: MakeApp) -> None:
        hold = Hold()
        server.answer = lambda _: Reply(503, DAY)
        with make_app(callbacks=policy_for(server, longest_pause=0.2)) as app:
            ping = app.http_job("ping", url=server.url(), retry=FAST)
            try:
                with app.running():
                    ping.submit()
                    server.wait_for_requests(1)
                    assert eventually(lambda: app.callback_pauses() != [])
                    server.answer = lambda _: Reply(hold=hold)
                    others = [ping.submit() for _ in range(5)]
                    server.wait_for_requests(2)
                    assert eventually(lambda: app.callback_pauses()[0].is_probing)
                    assert eventually(lambda: all(app.get(other.id).starts > 0 for other in others))
                    assert len(server.requests) == 2
                    hold.set()
                    for other in others:
                        assert other.wait(timeout=PATIENCE) is JobStatus.COMPLETED
                    assert app.callback_pauses() == []
            finally:
                hold.set()

    def test_a_slow_receiver_delays_no_other(self, server: Receiver, make_app: MakeApp) -> None:
        release = Hold()
        slow_host = f"slow.example.com:{server.port}"
        server.answer = lambda got: Reply(hold=release if got.headers["host"] == slow_host else None)
        policy = policy_for(server, in_flight=8, per_host=4)
        try:
            with make_app(callbacks=policy) as app:
                slow = app.http_job("slow", url=server.url(host="slow.example.com"))
                quick = app.http_job("quick", url=server.url(host="quick.example.com"))
                with app.running():
                    ids = slow.submit_many([{"body": number} for number in range(20)])
                    server.wait_for(lambda: server.in_flight == 4, "the slow receiver has no requests")
                    handles = [quick.submit(body=number) for number in range(20)]
                    for handle in handles:
                        assert handle.wait(timeout=PATIENCE) is JobStatus.COMPLETED
                    assert server.in_flight == 4
                    waiting = next(job for job in map(app.get, ids) if job.status is JobStatus.PENDING)
                    assert "(4 at once) is reached" in app.explain(waiting.id).text
                    release.set()
                    for job_id in ids:
                        assert app.handle(job_id).wait(timeout=PATIENCE) is JobStatus.COMPLETED
        finally:
            release.set()

    def test_a_policy_that_was_tightened_applies_to_waiting_jobs(
        self, server: Receiver, make_app: MakeApp
    ) -> None:
        with make_app(callbacks=policy_for(server)) as app:
            job_id = submit_http(app, url=server.url())
            payload = app.manager().record(job_id).payload
            strict = CallbackPolicy(allow=["https://other.example.com/*"])
            handler = app.registry.get("mainspring.http")
            handler.function.deliverer.policy = strict  # type: ignore[attr-defined]
            with app.running(), pytest.raises(JobFailed, match="no entry of the allow-list"):
                app.handle(job_id).result(timeout=PATIENCE)
            assert server.url().encode() in payload
        assert not server.requests

    def test_arguments_that_were_stored_by_other_means_are_checked_before_the_request(
        self, app: Mainspring, server: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ping = app.http_job("ping", url=server.url())
        with monkeypatch.context() as patch:
            for kind in (DeclaredDelivery, FreeDelivery):
                patch.setattr(kind, "check", lambda *_: None)
            ids = [
                ping.submit(headers={"X-Evil": "a\r\nb"}).id,
                submit_http(app, url="http://169.254.169.254/latest"),
                submit_http(app, url=server.url("/hooks/../admin")),
                submit_http(app, url=server.url(), method="CONNECT"),
                submit_http(app, url=server.url(), secret="other"),
            ]
        with app.running():
            for job_id in ids:
                assert app.handle(job_id).wait(timeout=PATIENCE) is JobStatus.FAILED
                assert len(app.get(job_id).history) == 1
        assert not server.requests

    def test_many_requests_are_in_flight_at_once(self, server: Receiver, make_app: MakeApp) -> None:
        release = Hold()
        server.answer = lambda _: Reply(hold=release)
        count = amount(100, thorough=1_000)
        try:
            with make_app(callbacks=policy_for(server, per_host=None)) as app, app.running():
                job = app.http_job("many", url=server.url())
                ids = job.submit_many([{"body": number} for number in range(count)])
                server.wait_for(lambda: server.in_flight == count, f"{server.in_flight} requests are in flight")
                busy = next(slots for slots in app.statistics().process.slots if slots.kind == "callbacks")
                assert (busy.busy, busy.slots) == (count, 1_000)
                release.set()
                for job_id in ids:
                    assert app.handle(job_id).wait(timeout=PATIENCE) is JobStatus.COMPLETED
        finally:
            release.set()

    def test_jobs_of_any_url_share_the_limit_of_their_host(self, server: Receiver, make_app: MakeApp) -> None:
        release = Hold()
        server.answer = lambda _: Reply(hold=release)
        try:
            with make_app(callbacks=policy_for(server, in_flight=8, per_host=2)) as app:
                ids = [submit_http(app, url=server.url(f"/hooks/{number}")) for number in range(4)]
                other = submit_http(app, url=server.url(host="other.example.com"))
                with app.running():
                    server.wait_for(lambda: server.in_flight == 3, "not three requests are in flight")
                    assert eventually(lambda: sum(_is_held_back(app, job_id) for job_id in ids) == 2)
                    release.set()
                    for job_id in (*ids, other):
                        assert app.handle(job_id).wait(timeout=PATIENCE) is JobStatus.COMPLETED
        finally:
            release.set()

    def test_a_schedule_sends_requests(self, app: Mainspring, server: Receiver) -> None:
        report = app.http_job("report", url=server.url("/hooks/report"))
        app.every(timedelta(milliseconds=50), name="often")(report)
        app.schedules.put("with a body", report, Every(timedelta(milliseconds=50)), arguments={"body": {"n": 1}})
        with app.running():
            assert eventually(lambda: {b"", b'{"n":1}'} <= {request.body for request in list(server.requests)})

    def test_a_request_that_takes_too_long_is_ended(self, app: Mainspring, server: Receiver) -> None:
        release = Hold()
        server.answer = lambda _: Reply(hold=release)
        ping = app.http_job("ping", url=server.url(), timeout=0.05, retry=Retry(max_attempts=1))
        try:
            with app.running(), pytest.raises(JobFailed, match=r"timeout after 0\.05 s: .* has not answered"):
                ping.submit().result(timeout=PATIENCE)
        finally:
            release.set()

    def test_a_cancel_ends_a_request(self, app: Mainspring, server: Receiver) -> None:
        release = Hold()
        server.answer = lambda _: Reply(hold=release)
        ping = app.http_job("ping", url=server.url())
        try:
            with app.running():
                handle = ping.submit()
                server.wait_for_requests(1)
                app.cancel(handle.id)
                assert handle.wait(timeout=PATIENCE) is JobStatus.CANCELED
                server.wait_for(lambda: server.in_flight == 0, "the connection was not closed")
        finally:
            release.set()

    def test_follow_ups_get_the_answer_and_callbacks_can_follow(self, app: Mainspring, server: Receiver) -> None:
        server.answer = lambda got: Reply(200, {}, b"first" if got.path == "/hooks/first" else b"")
        second = app.http_job("second", url=server.url("/hooks/second"))
        first = app.http_job("first", url=server.url("/hooks/first"), then=second)

        @app.job(name="count", then=second)
        def count() -> dict[str, int]:
            return {"count": 3}

        with app.running():
            first.submit()
            count.submit()
            requests = server.wait_for_requests(3)
        bodies = [request.body for request in requests if request.path == "/hooks/second"]
        assert b'{"count":3}' in bodies
        assert any(b'"body":"first"' in body for body in bodies)

    def test_a_request_is_sent_at_most_once_if_asked(self, server: Receiver, make_app: MakeApp) -> None:
        server.answer = lambda _: Reply(503)
        with make_app(callbacks=policy_for(server), durability="full") as app:
            once = app.http_job("once", url=server.url(), at_most_once=True)
            with app.running():
                for _ in range(2):  # the second one does not wait for the end of the pause
                    with pytest.raises(JobFailed):
                        once.submit().result(timeout=PATIENCE)
        assert len(server.requests) == 2

    def test_a_wrong_submit_is_refused_at_once(self, app: Mainspring, server: Receiver) -> None:
        ping = app.http_job("ping", url=server.url(), method="GET")
        with pytest.raises(InvalidArguments, match="has no body"):
            ping.submit(body={})
        with pytest.raises(InvalidArguments, match="X-Evil"):
            ping.submit(headers={"X-Evil": "a\r\nb"})
        with pytest.raises(InvalidArguments, match="X-Evil"):
            ping.submit_many([{}, {"headers": {"X-Evil": "a\r\nb"}}])
        with pytest.raises(CallbackRefused):
            submit_http(app, url="https://evil.example/x")
        with pytest.raises(CallbackRefused, match=r"there is no secret 'other'; .*secrets=\{'other'"):
            submit_http(app, url=server.url(), secret="other")
        assert app.counts()["PENDING"] == 0


def check_that_workers_share_a_pause(make_app: MakeApp, server: Receiver) -> None:
    """Require that a worker sends no request to a receiver that another worker has paused."""
    server.answer = lambda _: Reply(503, DAY)
    options = {"callbacks": policy_for(server)}
    with make_app(**options) as one, make_app(**options) as other:
        jobs = [app.http_job("ping", url=server.url(), retry=FAST) for app in (one, other)]
        with one.running():
            jobs[0].submit()
            assert eventually(lambda: one.callback_pauses() != [])
        with other.running():
            second = jobs[1].submit()
            assert eventually(lambda: _is_put_off(other, second.id))
    assert len(server.requests) == 1


def _is_held_back(app: Mainspring, job_id: str) -> bool:
    text = app.explain(job_id).text
    return "host=localhost" in text and "(2 at once) is reached" in text


def _is_put_off(app: Mainspring, job_id: str) -> bool:
    job = app.get(job_id)
    return job.status is JobStatus.PENDING and job.progress is not None and job.due > job.created


def policy_for(server: Receiver, **options: Any) -> CallbackPolicy:
    """Return a policy for the hosts of a receiver."""
    hosts = ("localhost", "*.example.com")
    return CallbackPolicy(
        allow=[server.url("/hooks/*", host=host) for host in hosts],
        allow_http=True,
        allow_private=True,
        secrets={"shop": KEY},
        **options,
    )


def submit_http(app: Mainspring, **arguments: Any) -> str:
    """Submit a job whose URL is an argument."""
    from mainspring.jobs.submit_options import SubmitOptions  # noqa: PLC0415

    handler = app.registry.get("mainspring.http")
    return app.manager().submission.submit(handler, SubmitOptions(), (), arguments)
