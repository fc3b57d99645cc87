"""`app.asgi()`: rights, problems, request ids, and requests that must change nothing. Without a server."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event
from types import ModuleType
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from mainspring import Mainspring
from mainspring.errors import EngineUnavailable, MainspringError, RefusedByStore, RunnerClosed
from mainspring.security import Identity, Permissions, Scope
from mainspring.security.asgi_types import AsgiApp, AsgiScope
from mainspring.security.http_limits import HttpLimits
from mainspring.web import asgi as asgi_module
from mainspring.web import credentials, metrics
from tests.asgi_client import request, request_async
from tests.support import PATIENCE

JSON = ("content-type", "application/json")


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


@pytest.fixture
def asgi(app: Mainspring) -> AsgiApp:
    return app.asgi(auth="tokens")


def make(app: Mainspring, *scopes: str, **options: Any) -> str:
    return app.tokens.create(f"token {len(app.tokens.list())}", scopes=scopes or ("read",), **options).secret


# -- who may enter


def test_without_auth_everything_but_the_probes_is_closed(app: Mainspring) -> None:
    closed = app.asgi()
    token = make(app, "admin")
    for path in ("/api/v1/", "/metrics"):
        answer = request(closed, path, token=token)
        assert (answer.status, answer.problem) == (403, "closed")
        assert "auth='tokens'" in answer.json["detail"]
    assert request(closed, "/healthz").json == request(closed, "/readyz").json == {"status": "ok"}


def test_a_token_opens_the_api_and_the_answer_names_its_rights(app: Mainspring, asgi: AsgiApp) -> None:
    token = make(app, "submit", "read", types=["b", "a"], queues=["mail"])
    answer = request(asgi, "/api/v1/", token=token)
    assert answer.status == 200
    assert answer.json["api"] == "v1"
    assert answer.json["caller"] == {
        "name": "token 0",
        "scopes": ["read", "submit"],
        "types": ["a", "b"],
        "queues": ["mail"],
    }
    assert request(asgi, "/api/v1", token=token).status == 200


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer"])
def test_the_case_of_the_scheme_does_not_matter(app: Mainspring, asgi: AsgiApp, scheme: str) -> None:
    header = ("Authorization", f"{scheme}  {make(app)} ")
    assert request(asgi, "/api/v1/", headers=[header]).status == 200


def test_a_token_anywhere_else_is_no_token(app: Mainspring, asgi: AsgiApp) -> None:
    token = make(app, "admin")
    for path, headers in (
        (f"/api/v1/?token={token}", []),
        (f"/api/v1/?access_token={token}", []),
        ("/api/v1/", [("cookie", f"token={token}; Authorization=Bearer {token}")]),
        ("/api/v1/", [("x-api-key", token)]),
        ("/api/v1/", [("authorization", f"Basic {token}")]),
        ("/api/v1/", [("authorization", f"Token {token}")]),
        ("/api/v1/", [("authorization", token)]),
        ("/api/v1/", [("proxy-authorization", f"Bearer {token}")]),
    ):
        answer = request(asgi, path, headers=headers)
        assert (answer.status, answer.problem) == (401, "token-missing")
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_cookie_changes_nothing_for_a_valid_token(app: Mainspring, asgi: AsgiApp) -> None:
    cookie = ("cookie", "token=msp_wrong; session=1")
    assert request(asgi, "/api/v1/", token=make(app), headers=[cookie]).status == 200


def test_two_authorization_headers_are_refused_even_if_both_are_right(app: Mainspring, asgi: AsgiApp) -> None:
    header = ("Authorization", f"Bearer {make(app)}")
    answer = request(asgi, "/api/v1/", headers=[header, header])
    assert (answer.status, answer.problem) == (400, "authorization-repeated")


CHANGES: dict[str, Callable[[str], str]] = {
    "cut by one": lambda token: token[:-1],
    "cut": lambda token: token[:20],
    "longer": lambda token: token + "x",
    "other case": str.swapcase,
    "NUL": lambda token: token[:30] + "\0" + token[31:],
    "not ASCII": lambda token: token[:30] + "\xe9" + token[31:],
    "made up": lambda _token: "msp_" + "x" * 60,
    "empty": lambda _token: "",
    "huge": lambda _token: "x" * 10_000,
    "twice": lambda token: f"{token} {token}",
    "a list": lambda token: f"{token},{token}",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_token_that_is_not_exactly_right_is_refused(app: Mainspring, asgi: AsgiApp, change: str) -> None:
    token = make(app, "admin")
    sent = CHANGES[change](token)
    answer = request(asgi, "/api/v1/", token=sent)
    assert answer.status == 401
    assert answer.problem in ("token-invalid", "token-missing")
    assert token not in answer.body.decode()
    assert not sent or len(sent) < 10 or sent not in answer.body.decode()


def test_a_revoked_token_is_refused_at_once_while_it_is_in_use(app: Mainspring, asgi: AsgiApp) -> None:
    token = make(app)

    async def use() -> list[int]:
        statuses = [(await request_async(asgi, "/api/v1/", token=token)).status for _ in range(3)]
        await app.tokens.revoke_async("token 0")
        after = await request_async(asgi, "/api/v1/", token=token)
        assert "'token 0' is revoked" in after.json["detail"]
        return [*statuses, after.status]

    assert asyncio.run(use()) == [200, 200, 200, 401]


def test_an_expired_token_is_refused(app: Mainspring, asgi: AsgiApp, monkeypatch: pytest.MonkeyPatch) -> None:
    token = make(app, expires=timedelta(hours=1))
    assert request(asgi, "/api/v1/", token=token).status == 200
    engine = app.manager().engine
    later = engine.now() + 3_600 * 1_000_000
    monkeypatch.setattr(engine, "now", lambda: later)
    answer = request(asgi, "/api/v1/", token=token)
    assert answer.problem == "token-invalid"
    assert "is expired" in answer.json["detail"]
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def test_if_tokens_cannot_be_read_no_caller_is_admitted(
    app: Mainspring, asgi: AsgiApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = make(app, "admin")
    assert request(asgi, "/api/v1/", token=token).status == 200

    def fail() -> None:
        raise EngineUnavailable(engine="/secret/path.db", reason="it is gone", remedy="look")

    engine = app.manager().engine
    monkeypatch.setattr(engine, "tokens", fail)
    engine._tokens.changes += 1  # type: ignore[attr-defined] # another change, so that the list is read again
    answer = request(asgi, "/api/v1/", token=token)
    assert (answer.status, answer.problem) == (503, "store-unavailable")
    assert "secret" not in answer.body.decode()
    assert answer.headers["retry-after"] == "1"
    assert (
        f"{answer.headers['x-request-id']}: the store cannot be used: /secret/path.db: it is gone" in caplog.text
    )


# -- a function of the application


def test_a_function_says_who_the_caller_is(app: Mainspring) -> None:
    reader = Identity(name="ann", permissions=Permissions(scopes=frozenset({Scope.READ})))

    def identify(scope: AsgiScope) -> Identity | None:
        return reader if (b"x-user", b"ann") in scope["headers"] else None

    async def identify_async(scope: AsgiScope) -> Identity | None:
        return identify(scope)

    for function in (identify, identify_async):
        asgi = app.asgi(auth=function)
        answer = request(asgi, "/api/v1/", headers=[("X-User", "ann")])
        assert answer.json["caller"]["name"] == "ann"
        assert request(asgi, "/api/v1/").problem == "not-authenticated"


def test_a_function_that_returns_anything_else_admits_no_caller(app: Mainspring) -> None:
    answer = request(app.asgi(auth=lambda scope: True), "/api/v1/")  # type: ignore[arg-type]
    assert (answer.status, answer.problem) == (500, "internal-error")


@pytest.mark.parametrize("auth", ["token", True, 7, {}])
def test_another_value_of_auth_is_an_error(app: Mainspring, auth: Any) -> None:
    with pytest.raises(TypeError, match="auth must be 'tokens'"):
        app.asgi(auth=auth)


# -- hosts, origins and content types


def test_other_hosts_than_those_that_are_named_are_refused(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens", hosts=["jobs.example.com"])
    token = make(app, "admin")
    assert request(asgi, "/api/v1/", token=token, host="jobs.example.com:8400").status == 200
    answer = request(asgi, "/api/v1/", token=token, host="evil.example")
    assert (answer.status, answer.problem) == (421, "host-unknown")
    assert request(asgi, "/api/v1/", token=token, host=None).problem == "host-missing"
    twice = request(asgi, "/api/v1/", token=token, headers=[("host", "jobs.example.com")], host="evil.example")
    assert twice.problem == "header-repeated"
    assert request(asgi, "/healthz", host="10.0.0.7:8400").status == 200
    with pytest.raises(TypeError, match="list of names"):
        app.asgi(hosts="jobs.example.com")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "BREW"])
def test_a_write_of_a_foreign_page_is_refused_whatever_token_it_has(
    app: Mainspring, asgi: AsgiApp, method: str
) -> None:
    token = make(app, "admin")
    for headers in (
        [JSON, ("origin", "http://evil.example")],
        [JSON, ("origin", "null")],
        [JSON, ("sec-fetch-site", "cross-site")],
        [JSON, ("sec-fetch-site", "same-site"), ("origin", "http://testserver")],
    ):
        answer = request(asgi, "/api/v1/", method=method, token=token, headers=headers)
        assert (answer.status, answer.problem) == (403, "origin-foreign")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_write_needs_json(app: Mainspring, asgi: AsgiApp, kind: str) -> None:
    headers = [("content-type", kind)] if kind else []
    answer = request(asgi, "/api/v1/", method="POST", token=make(app, "admin"), headers=headers, body=b"{}")
    assert (answer.status, answer.problem) == (415, "content-type")


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/x-ndjson"])
def test_a_write_with_json_of_the_server_itself_reaches_the_route(
    app: Mainspring, asgi: AsgiApp, kind: str
) -> None:
    headers = [("content-type", kind), ("origin", "http://testserver"), ("sec-fetch-site", "same-origin")]
    answer = request(asgi, "/api/v1/", method="POST", token=make(app, "admin"), headers=headers, body=b"{}")
    assert (answer.status, answer.problem) == (405, "method")
    assert answer.headers["allow"]


def test_a_delete_without_a_body_needs_no_content_type(asgi: AsgiApp) -> None:
    assert request(asgi, "/nothing", method="DELETE").problem == "not-found"
    assert request(asgi, "/nothing", method="DELETE", headers=[("content-length", "3")]).problem == "content-type"


# -- limits


def test_a_header_that_is_too_large_is_refused(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(max_header=1_000))
    assert request(asgi, "/healthz", headers=[("x-long", "x" * 1_000)]).problem == "header-too-large"
    assert request(asgi, f"/healthz?{'x' * 1_000}").status == 431
    assert request(asgi, "/healthz").status == 200


def test_a_body_that_is_too_large_is_refused_before_and_while_it_arrives(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(max_body=100))
    for length in ("101", "9" * 5_000):
        headers = [JSON, ("content-length", length)]
        answer = request(asgi, "/api/v1/", method="POST", headers=headers)
        assert (answer.status, answer.problem) == (413, "body-too-large")
        assert "the limit is 100" in answer.json["detail"]


@pytest.mark.parametrize("value", [0, -1, True, None, "1"])
def test_limits_are_positive_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="max_body must be a positive number"):
        HttpLimits(max_body=value)


# -- request ids and logs


def test_a_request_id_is_accepted_made_echoed_and_logged(asgi: AsgiApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mainspring.http")
    given = request(asgi, "/api/v1/", headers=[("X-Request-ID", "shop-42:7")])
    assert given.headers["x-request-id"] == given.json["request_id"] == "shop-42:7"
    assert "request shop-42:7: GET '/api/v1/' by an unknown caller: 401" in caplog.text
    made = {request(asgi, "/api/v1/").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 129, "a\tb", "\xe9", "<script>", "a\x1b[31m", "a\nb"])
def test_a_request_id_that_could_do_harm_is_replaced(asgi: AsgiApp, wrong: str) -> None:
    answer = request(asgi, "/api/v1/", headers=[("X-Request-ID", wrong)])
    assert answer.headers["x-request-id"] not in ("", wrong)


def test_no_token_is_in_logs_or_answers(app: Mainspring, asgi: AsgiApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = make(app, "admin")
    answers = [
        request(asgi, f"/api/v1/?token={token}", token=token, headers=[("x-request-id", token)]),
        request(asgi, f"/{token}", token=token),
        request(asgi, f"/{token}/x?{token}", token=f"{token}x", headers=[("cookie", token)]),
        request(asgi, "/api/v1/", token=token, host=f"{token}.example", method="POST"),
    ]
    secret = token.rpartition("_")[2]
    assert secret not in caplog.text
    assert not any(secret in str(record.__dict__) for record in caplog.records)
    assert not any(secret in answer.body.decode() + str(answer.headers) for answer in answers)


def test_an_error_of_the_server_is_logged_and_not_told(app: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_scope: AsgiScope) -> None:
        raise RuntimeError("a secret cause")

    answer = request(app.asgi(auth=fail), "/api/v1/", headers=[("x-request-id", "id-1")])
    assert (answer.status, answer.problem) == (500, "internal-error")
    assert "secret" not in answer.body.decode()
    assert "request id-1: GET '/api/v1/' failed" in caplog.text
    assert "a secret cause" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RefusedByStore(engine="SQLite file /srv/secret/jobs.db", reason="the text is too big"), 422),
        (EngineUnavailable(engine="NATS at 10.1.2.3:4222", reason="/srv/secret", remedy="10.1.2.3"), 503),
        (RunnerClosed(runner="/srv/secret"), 500),
    ],
)
def test_an_error_of_the_store_tells_no_path_and_no_address(
    app: Mainspring, caplog: pytest.LogCaptureFixture, error: MainspringError, status: int
) -> None:
    def fail(_scope: Any) -> None:
        raise error

    answer = request(app.asgi(auth=fail), "/api/v1/")
    assert answer.status == status
    assert "secret" not in answer.body.decode()
    assert "10.1.2.3" not in answer.body.decode()
    assert status == 422 or "secret" in caplog.text  # an operator finds the cause in the log
    assert status != 422 or "the text is too big" in answer.json["detail"]


def test_every_answer_has_headers_that_browsers_obey(asgi: AsgiApp) -> None:
    for path in ("/", "/healthz", "/api/v1/", "/nothing"):
        headers = request(asgi, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers


def test_the_page_of_the_printed_link_is_the_same_for_all_callers(asgi: AsgiApp) -> None:
    page = request(asgi, "/?token=msp_x")
    assert page.status == 200
    assert page.body == request(asgi, "/").body


# -- mounting


def test_it_works_under_any_path_and_without_the_lifespan_protocol(app: Mainspring, asgi: AsgiApp) -> None:
    token = make(app)
    assert request(asgi, "/api/v1/", token=token, root_path="/jobs").status == 200
    assert request(asgi, "/healthz", root_path="/jobs").status == 200
    assert request(asgi, "/nothing", root_path="/jobs").problem == "not-found"


def test_mounted_in_starlette_it_opens_the_store_at_the_first_request(app: Mainspring) -> None:
    outer = Starlette(routes=[Mount("/jobs", app.asgi(auth="tokens", hosts=["testserver"]))])
    assert not app.is_open
    assert request(outer, "/jobs/readyz").json == {"status": "ok"}
    token = make(app)
    assert request(outer, "/jobs/api/v1/", token=token).status == 200
    assert request(outer, "/jobs/metrics").problem == "token-missing"
    assert request(outer, "/jobs/api/v1/", token=token, host="evil.example").problem == "host-unknown"
    assert request(outer, "/jobs/healthz", host="10.0.0.7").status == 200


def test_mounted_in_fastapi_it_works_beside_the_routes_of_the_application(app: Mainspring) -> None:
    web = FastAPI()
    web.mount("/mainspring", app.asgi(auth="tokens"))
    token = make(app)
    assert request(web, "/mainspring/api/v1/", token=token).json["caller"]["name"] == "token 0"
    assert request(web, "/mainspring/nothing", token=token).problem == "not-found"
    assert request(web, "/mainspring/api/v1/", method="POST", headers=[JSON]).problem == "method"
    assert request(web, "/openapi.json").status == 200


# -- metrics


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A stand-in for the collector and for `prometheus_client`; it keeps the values of `store=`."""
    stores: list[bool] = []

    class PrometheusCollector:
        def __init__(self, app: Mainspring, store: bool = False, timeout: float = 0) -> None:  # noqa: FBT001, FBT002
            stores.append(store)

    class CollectorRegistry:
        def __init__(self, auto_describe: bool = True) -> None:  # noqa: FBT001, FBT002
            self.collectors: list[Any] = []

        def register(self, collector: Any) -> None:
            self.collectors.append(collector)

    def module(name: str, **values: Any) -> None:
        made = ModuleType(name)
        vars(made).update(values)
        monkeypatch.setitem(sys.modules, name, made)

    def choose_encoder(accept: str) -> tuple[Any, str]:
        return lambda registry: f"{len(registry.collectors)} {accept}".encode(), "text/plain; version=1.0"

    module("prometheus_client")
    module("prometheus_client.exposition", choose_encoder=choose_encoder)
    module("prometheus_client.registry", CollectorRegistry=CollectorRegistry)
    module("stand_in_collector", PrometheusCollector=PrometheusCollector)
    monkeypatch.setattr(metrics, "COLLECTOR", "stand_in_collector")
    return stores


def test_metrics_need_the_scope_read_for_everything(app: Mainspring, asgi: AsgiApp, collector: list[bool]) -> None:
    assert request(asgi, "/metrics").problem == "token-missing"
    for token in (make(app, "submit"), make(app, "read", types=["a"]), make(app, "read", queues=["mail"])):
        answer = request(asgi, "/metrics", token=token)
        assert (answer.status, answer.problem) == (403, "not-allowed")
        assert 'error="insufficient_scope", scope="read"' in answer.headers["www-authenticate"]
    for token in (make(app, "read"), make(app, "admin")):
        answer = request(asgi, "/metrics", token=token, headers=[("accept", "text/fine")])
        assert (answer.status, answer.body) == (200, b"1 text/fine")
        assert answer.headers["content-type"] == "text/plain; version=1.0"
    assert collector == [False]


def test_metrics_of_the_store_must_be_wanted(app: Mainspring, collector: list[bool]) -> None:
    token = make(app)
    assert request(app.asgi(auth="tokens", store_metrics=True), "/metrics", token=token).status == 200
    assert collector == [True]


def test_a_store_that_hangs_costs_a_scrape_its_store_metrics_only(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metrics.IDENTIFY_SECONDS + metrics.STORE_SECONDS <= 2.5, "a page comes within three seconds"
    monkeypatch.setattr(asgi_module, "IDENTIFY_SECONDS", 0.05)
    monkeypatch.setattr(metrics, "STORE_SECONDS", 0.05)
    monkeypatch.setattr(credentials, "MAX_AGE_NS", -1)
    token, site = make(app), app.asgi(auth="tokens", store_metrics=True)
    engine = app.manager().engine
    assert request(site, "/metrics", token=token).status == 200, "the server knows the token now"
    answers = Event()

    def hang(*_: object, **__: object) -> Any:
        assert answers.wait(PATIENCE)
        raise EngineUnavailable(engine="it", reason="hung", remedy="wait")

    for name in ("tokens", "statistics"):
        monkeypatch.setattr(engine, name, hang)
    try:
        for _ in range(100):  # all threads that read the store hang
            app.off_loop.submit(hang, writes=False)
        answer = request(site, "/metrics", token=token)
        assert (answer.status, "mainspring_store_up 0.0" in answer.body.decode()) == (200, True)
        assert request(site, "/metrics", token=token[:-1] + "!").status == 401
    finally:
        answers.set()


def test_without_the_extra_the_answer_says_what_to_install(
    app: Mainspring, asgi: AsgiApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "COLLECTOR", "mainspring.no_such_module")
    answer = request(asgi, "/metrics", token=make(app))
    assert (answer.status, answer.problem) == (501, "not-installed")
    assert "pip install 'mainspring[metrics]'" in answer.json["detail"]
