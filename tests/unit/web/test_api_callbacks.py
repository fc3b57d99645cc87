"""Requests that HTTP clients describe themselves: `POST /jobs {"http": {...}}`, and the rights for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mainspring import CallbackPolicy, CallbackSecret, JobFailed, JobStatus, Mainspring
from mainspring.callbacks.declaring import HTTP_TYPE
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import ChangeCallbackPause
from tests.api_site import NDJSON, ApiSite, add_handlers
from tests.receiver import Receiver, Reply, receiver
from tests.support import PATIENCE

URL = "https://hooks.example.com/orders/42"
RULE = {"kind": "cron", "expression": "@daily"}


@pytest.fixture
def site() -> Iterator[ApiSite]:
    policy = CallbackPolicy(
        allow=["https://hooks.example.com/orders/*"], secrets={"shop": CallbackSecret.generate()}
    )
    with Mainspring("memory://", grace=0, callbacks=policy) as app:
        add_handlers(app)
        app.http_job("paid", url=URL)
        yield ApiSite(app)


@pytest.fixture
def local() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def test_a_client_submits_a_request_without_a_declaration(local: Receiver) -> None:
    local.answer = lambda _: Reply(200, {}, b"thanks")
    policy = CallbackPolicy(allow=[local.url("/hooks/*")], allow_http=True, allow_private=True)
    with Mainspring("memory://", grace=0, callbacks=policy) as app:
        site = ApiSite(app)
        http = {
            "url": local.url("/hooks/1"),
            "method": "PATCH",
            "headers": {"Authorization": "Bearer top-secret"},
            "body": {"order": 42, "sum": 12345678901234567890.5},
            "keep_result": True,
        }
        answer = site.post("/jobs", {"http": http, "delay": 0.01}, token=site.token("callback"))
        assert answer.status == 201
        with app.running():
            result = app.handle(answer.json["id"]).result(timeout=PATIENCE)
        shown = site.get(f"/jobs/{answer.json['id']}")
    (request,) = local.requests
    assert (request.method, request.body) == ("PATCH", b'{"order":42,"sum":1.2345678901234567e19}')
    assert request.headers["authorization"] == "Bearer top-secret"
    assert (result["status"], result["body"]) == (200, "thanks")
    assert (shown.json["type"], shown.json["arguments"]["url"]) == (HTTP_TYPE, local.url("/hooks/1"))
    assert b"top-secret" not in shown.body


@pytest.mark.parametrize(
    ("http", "problem"),
    [
        ({"url": "https://evil.example/orders/42"}, "callback-refused"),
        ({"url": "https://hooks.example.com/orders/../admin"}, "callback-refused"),
        ({"url": "https://127.0.0.1/orders/42"}, "callback-refused"),
        ({"url": URL, "secret": "other"}, "callback-refused"),
        ({"url": URL, "headers": {"X-Evil": "a\r\nb"}}, "invalid-arguments"),
        ({"url": URL, "method": "GET", "body": 1}, "invalid-arguments"),
        ({"url": URL, "method": "TRACE"}, "invalid-body"),
        ({"url": URL, "proxy": "http://evil.example"}, "invalid-body"),
        ({}, "invalid-body"),
        ({"url": None}, "invalid-body"),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason(site: ApiSite, http: dict[str, Any], problem: str) -> None:
    answer = site.post("/jobs", {"http": http})
    assert (answer.status, answer.problem) == (422, problem), answer.body
    line = site.post("/jobs/batch", [{"http": {"url": URL}}, {"http": http}])
    assert (line.status, line.problem, line.json["line"]) == (422, problem, 2)
    assert site.app.counts()["PENDING"] == 0


def test_a_job_is_either_a_type_or_a_request(site: ApiSite) -> None:
    for body in ({}, {"type": "paid", "http": {"url": URL}}, {"http": {"url": URL}, "arguments": {"url": URL}}):
        assert site.post("/jobs", body).problem == "invalid-body"


def test_without_a_policy_the_error_names_the_remedy() -> None:
    with Mainspring("memory://") as app:
        answer = ApiSite(app).post("/jobs", {"http": {"url": URL}})
    assert (answer.status, answer.problem) == (422, "callback-refused")
    assert "CallbackPolicy(allow=" in answer.json["detail"]


def test_only_the_scope_callback_chooses_a_url(site: ApiSite) -> None:
    request = {"http": {"url": URL}}
    typed = {"type": HTTP_TYPE, "arguments": {"url": URL}}
    for body in (request, typed):
        for scopes in (("submit",), ("submit", "operate", "read", "work")):
            assert site.post("/jobs", body, token=site.token(*scopes)).problem == "not-allowed"
            assert site.post("/jobs/batch", [body], token=site.token(*scopes)).problem == "not-allowed"
        for scopes in (("callback",), ("admin",)):
            assert site.post("/jobs", body, token=site.token(*scopes)).status == 201
    lines = b'{"http": {"url": "%s"}}\n' % URL.encode()
    answer = site.post("/jobs/batch", raw=lines, content_type=NDJSON, token=site.token("callback"))
    assert answer.status == 201


def test_the_scope_callback_submits_no_other_job(site: ApiSite) -> None:
    token = site.token("callback")
    other = {"type": "shop.cancel_order", "arguments": {"order_id": 42}}
    assert site.post("/jobs", other, token=token).problem == "not-allowed"
    assert site.post("/jobs", {"type": "paid", "arguments": {"body": 1}}, token=token).problem == "not-allowed"
    assert site.post("/jobs", {"type": "paid", "arguments": {"body": 1}}, token=site.token("submit")).status == 201


def test_restrictions_to_types_and_queues_apply(site: ApiSite) -> None:
    request = {"http": {"url": URL}}
    assert site.post("/jobs", request, token=site.token("callback", types=["paid"])).problem == "not-allowed"
    assert site.post("/jobs", request, token=site.token("callback", queues=["other"])).problem == "not-allowed"
    token = site.token("callback", types=[HTTP_TYPE], queues=["hooks"])
    assert site.post("/jobs", {**request, "queue": "hooks"}, token=token).status == 201


def test_a_schedule_with_a_url_needs_the_scope_too(site: ApiSite) -> None:
    body = {"type": HTTP_TYPE, "arguments": {"url": URL, "body": {"n": 1}}, "rule": RULE}
    answer = site.post("/schedules/nightly", body, method="PUT", token=site.token("operate"))
    assert answer.problem == "not-allowed"
    answer = site.post("/schedules/nightly", body, method="PUT", token=site.token("operate", "callback"))
    assert answer.status == 201
    wrong = {**body, "arguments": {"url": "https://evil.example/"}}
    answer = site.post("/schedules/other", wrong, method="PUT")
    assert (answer.status, answer.problem) == (422, "callback-refused")


def test_an_edit_of_a_url_needs_the_scope_too(local: Receiver) -> None:
    local.answer = lambda _: Reply(410)
    policy = CallbackPolicy(allow=[local.url("/hooks/*")], allow_http=True, allow_private=True)
    with Mainspring("memory://", grace=0, callbacks=policy) as app:
        site = ApiSite(app)
        job_id = site.post("/jobs", {"http": {"url": local.url("/hooks/old")}}).json["id"]
        with app.running(), pytest.raises(JobFailed):
            app.handle(job_id).result(timeout=PATIENCE)
        change = {"changes": {"url": local.url("/hooks/new")}}
        replay = {"ids": [job_id], **change}
        operator, caller = site.token("operate"), site.token("operate", "callback")
        letter = f"/dead-letters/{job_id}"
        assert site.post(letter, change, method="PATCH", token=operator).problem == "not-allowed"
        assert site.post("/dead-letters/replay", replay, token=operator).problem == "not-allowed"
        evil = {"changes": {"url": "https://evil.example/"}}
        assert site.post(letter, evil, method="PATCH", token=caller).problem == "callback-refused"
        assert site.post(letter, change, method="PATCH", token=caller).status == 200
        local.answer = lambda _: Reply()
        answer = site.post("/dead-letters/replay", {"ids": [job_id]}, token=operator)
        assert answer.status == 200
        with app.running():
            again = app.handle(answer.json["replayed"][0]["job"])
            assert again.wait(timeout=PATIENCE) is JobStatus.COMPLETED
    assert [request.path for request in local.requests] == ["/hooks/old", "/hooks/new"]


def test_pauses_are_listed_and_lifted(site: ApiSite) -> None:
    manager = site.app.manager()
    now = manager.engine.now()
    host = "hooks.example.com"
    paused = (
        (host, None, None),
        (host, "paid", None),
        (host, HTTP_TYPE, URL),
        ("other.example.com", "paid", None),
    )
    for name, type_, url in paused:
        pause = CallbackPauseRecord(name, type_, url, 503, now, now + 60_000_000)
        assert manager.arrange([ChangeCallbackPause(None, pause)]) == [True]
    listed = site.get("/callbacks/pauses").json["pauses"]
    assert [(pause["host"], pause["type"], pause["url"]) for pause in listed] == [
        (host, None, None),
        (host, HTTP_TYPE, URL),
        (host, "paid", None),
        ("other.example.com", "paid", None),
    ]
    assert {pause["status"] for pause in listed} == {503}
    restricted = site.token("read", "operate", types=["paid"])
    seen = site.get("/callbacks/pauses", token=restricted).json["pauses"]
    assert [(pause["host"], pause["type"]) for pause in seen] == [(host, "paid"), ("other.example.com", "paid")]
    assert site.get("/callbacks/pauses", token=site.token("read", queues=["x"])).json == {"pauses": []}
    lift = {"host": host, "type": "paid"}
    for token in (restricted, site.token("operate", queues=["x"]), site.token("read")):
        assert site.post("/callbacks/resume", lift, token=token).problem == "not-allowed"
    assert site.post("/callbacks/resume", lift).json == {"host": host, "lifted": 2}
    assert site.post("/callbacks/resume", {"host": host}).json == {"host": host, "lifted": 1}
    assert site.post("/callbacks/resume", {"host": host}).json == {"host": host, "lifted": 0}
    assert [pause.host for pause in site.app.callback_pauses()] == ["other.example.com"]
    assert [entry.action for entry in site.app.audit(10)] == ["callbacks.resume"] * 3
