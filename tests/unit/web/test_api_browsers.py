"""What a foreign web page can do with the API: nothing. A walk over all endpoints with requests of such pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import Mainspring, Retry
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import ChangeCallbackPause
from mainspring.web.api.endpoint import Endpoint
from mainspring.web.api.routes import all_endpoints
from tests.api_site import ApiSite, add_handlers
from tests.asgi_client import Answer, request
from tests.support import PATIENCE

HOST = "jobs.example.com"
JSON = ("content-type", "application/json")
DAILY = {"kind": "cron", "expression": "@daily"}
NEW = {"type": "shop.anything", "delay": 3600}


@dataclass(frozen=True)
class Target:
    """The names of the objects in the store that requests could change."""

    pending: str
    failed: str
    worker: int


PAUSE = CallbackPauseRecord("hooks.example.com", "paid", None, 503, 1, 2)
PATHS = {
    "/jobs/{id}/retry": "/jobs/{failed}/retry",
    "/dead-letters/{id}": "/dead-letters/{failed}",
    "/queues/{name}/pause": "/queues/orders/pause",
    "/queues/{name}/resume": "/queues/paused/resume",
    "/schedules/{name}/resume": "/schedules/paused/resume",
}
BODIES: dict[str, Any] = {
    "submit_job": NEW,
    "submit_jobs": [NEW],
    "reschedule_job": {"delay": 7200},
    "change_jobs": {"action": "reschedule", "queue": "orders", "delay": 9000},
    "edit_dead_letter": {"changes": {"value": 2}},
    "replay_dead_letters": {"all": True},
    "put_schedule": {"type": "shop.anything", "rule": DAILY, "jitter": 5},
    "enroll_worker": {"name": "w"},
    "claim_jobs": {"wait": 0},
    "settle_jobs": {"jobs": [{"id": "picture", "fencing_token": 1, "outcome": "completed"}]},
    "direct_worker": {"direction": "quiet"},
    "resume_callbacks": {"host": PAUSE.host},
}


def body_of(endpoint: Endpoint, target: Target) -> Any:
    """Return a body with which the endpoint changes something."""
    return {"ids": [target.failed]} if endpoint.name == "purge_dead_letters" else BODIES.get(endpoint.name, {})


@pytest.fixture
def site() -> Iterator[ApiSite]:
    with Mainspring("memory://", grace=0) as app:
        add_handlers(app)
        site = ApiSite(app)
        site.asgi = app.asgi(auth="tokens", hosts=[HOST])
        yield site


@pytest.fixture
def target(site: ApiSite) -> Target:
    """Fill the store, so that each write would change something."""
    app = site.app

    @app.job(name="shop.fail", retry=Retry(max_attempts=1))
    def fail(value: int = 1) -> None:
        raise ValueError(value)

    failed = fail.submit().id
    with app.running():
        assert app.handle(failed).wait(PATIENCE) == "FAILED"
    pending = app.manager().submit("shop.anything", delay=3600)
    for name in ("night", "paused"):
        assert send(site, "PUT", f"/schedules/{name}", {"type": "shop.anything", "rule": DAILY}).status == 201
    assert send(site, "POST", "/schedules/paused/pause").status == 200
    assert send(site, "POST", "/queues/paused/pause").status == 200
    app.remote_job("shop.resize").options(id="picture").submit()
    assert app.manager().arrange([ChangeCallbackPause(None, PAUSE)]) == [True]
    enrolled = send(site, "POST", "/workers", {"name": "remote"})
    assert enrolled.status == 201
    return Target(pending, failed, enrolled.json["number"])


def send(
    site: ApiSite,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: tuple[tuple[str, str], ...] = (JSON,),
    host: str | None = HOST,
    token: str | None = "",
) -> Answer:
    return request(
        site.asgi,
        f"/api/v1{path}",
        method=method,
        token=site.admin if token == "" else token,
        headers=headers,
        body=b"" if body is None else json.dumps(body).encode(),
        host=host,
    )


def path_of(endpoint: Endpoint, target: Target) -> str:
    path = PATHS.get(endpoint.path, endpoint.path)
    return path.format(id=target.pending, failed=target.failed, name="night", number=target.worker)


def describe_store(app: Mainspring) -> list[str]:
    """Return everything in the store that a request could change, except the last use of tokens."""
    engine = app.manager().engine
    tokens = sorted((token.id, token.revoked) for token in engine.tokens())
    return [
        repr(each)
        for each in (
            app.jobs(limit=100),
            engine.schedules(),
            app.statistics().paused_queues,
            engine.limits(),
            engine.callback_pauses(),
            app.audit(limit=100),
            tokens,
            engine.workers(),
        )
    ]


ATTACKS: dict[str, tuple[tuple[tuple[str, str], ...], str | None, int]] = {
    "foreign origin": ((JSON, ("origin", "https://evil.example")), HOST, 403),
    "origin of a sandbox": ((JSON, ("origin", "null")), HOST, 403),
    "origin of a subdomain": ((JSON, ("origin", f"https://x.{HOST}")), HOST, 403),
    "origin that begins alike": ((JSON, ("origin", f"https://{HOST}.evil.example")), HOST, 403),
    "origin with a user": ((JSON, ("origin", f"https://{HOST}@evil.example")), HOST, 403),
    "origin of another port": ((JSON, ("origin", f"http://{HOST}:8080")), HOST, 403),
    "two origins": ((JSON, ("origin", f"http://{HOST}"), ("origin", "https://evil.example")), HOST, 400),
    "cross-site": ((JSON, ("sec-fetch-site", "cross-site")), HOST, 403),
    "same-site": ((JSON, ("sec-fetch-site", "same-site")), HOST, 403),
    "text": ((("content-type", "text/plain"),), HOST, 415),
    "text that looks like JSON": ((("content-type", "text/plain; application/json"),), HOST, 415),
    "form": ((("content-type", "application/x-www-form-urlencoded"),), HOST, 415),
    "upload": ((("content-type", "multipart/form-data; boundary=x"),), HOST, 415),
    "two content types": ((("content-type", "text/plain"), JSON), HOST, 400),
    "empty content type": ((("content-type", ""), ("content-length", "2")), HOST, 415),
    "no content type": ((("content-length", "2"),), HOST, 415),
    "foreign host": ((JSON,), "evil.example", 421),
    "host that ends alike": ((JSON,), f"evil.{HOST}", 421),
    "host of the loopback": ((JSON,), "127.0.0.1", 421),
    "no host": ((JSON,), None, 400),
    "two hosts": ((JSON, ("host", "evil.example")), HOST, 400),
}
"""Requests of foreign pages: the headers, the host, and the status of the answer."""


def writes(site: ApiSite) -> list[Endpoint]:
    return [endpoint for endpoint in all_endpoints(site.app) if endpoint.is_write]


def test_a_write_of_a_foreign_page_changes_nothing(site: ApiSite, target: Target) -> None:
    before = describe_store(site.app)
    for endpoint in writes(site):
        path, body = path_of(endpoint, target), body_of(endpoint, target)
        for name, (headers, host, status) in ATTACKS.items():
            answer = send(site, endpoint.method, path, body, headers=headers, host=host)
            assert answer.status == status, (endpoint.name, name, answer.body)
    assert describe_store(site.app) == before


def test_each_of_these_writes_changes_something_without_the_attack(site: ApiSite, target: Target) -> None:
    """Otherwise the test above would prove nothing."""
    order = ("cancel_job", "delete_schedule", "leave_worker")  # they end what the others change
    letters = {"replay_dead_letters": 1, "purge_dead_letters": 2}
    for endpoint in sorted(writes(site), key=lambda each: (each.name in order, letters.get(each.name, 0))):
        if endpoint.name == "retry_job":  # has the same target as the replay
            continue
        before = describe_store(site.app)
        own = (JSON, ("origin", f"https://{HOST}"), ("sec-fetch-site", "same-origin"))
        body = body_of(endpoint, target)
        answer = send(site, endpoint.method, path_of(endpoint, target), body, headers=own)
        assert answer.status in (200, 201), (endpoint.name, answer.body)
        assert describe_store(site.app) != before, endpoint.name


def test_a_cookie_is_no_token(site: ApiSite, target: Target) -> None:
    before = describe_store(site.app)
    cookies = (("cookie", f"token={site.admin}; Authorization=Bearer {site.admin}"),)
    for endpoint in all_endpoints(site.app):
        headers = (JSON, *cookies) if endpoint.is_write else cookies
        body = BODIES.get(endpoint.name, {}) if endpoint.is_write else None
        path = path_of(endpoint, target)
        answer = send(site, endpoint.method, path, body, headers=headers, token=None)
        assert (answer.status, answer.problem) == (401, "token-missing")
        assert "set-cookie" not in answer.headers
    assert describe_store(site.app) == before


def test_a_read_changes_nothing(site: ApiSite, target: Target) -> None:
    before = describe_store(site.app)
    for endpoint in all_endpoints(site.app):
        if endpoint.is_write or endpoint.name == "follow_events":
            continue
        query = "?expression=@daily" if endpoint.name == "preview_schedule" else ""
        for method in ("GET", "HEAD"):
            answer = send(site, method, path_of(endpoint, target) + query, BODIES, headers=())
            assert answer.status == 200, (endpoint.name, answer.body)
    assert describe_store(site.app) == before


def test_no_method_is_taken_for_another_one(site: ApiSite, target: Target) -> None:
    before = describe_store(site.app)
    override = (("x-http-method-override", "POST"), ("x-http-method", "DELETE"), ("x-method-override", "PUT"))
    for endpoint in writes(site):
        path = path_of(endpoint, target)
        for method in ("GET", "HEAD", "OPTIONS", "TRACE"):
            headers = override if method != "TRACE" else (JSON, *override)
            answer = send(site, method, f"{path}?_method={endpoint.method}", {}, headers=headers)
            assert answer.status in (200, 404, 405, 409, 422), (method, path, answer.body)
    assert describe_store(site.app) == before


def test_no_other_site_is_invited(site: ApiSite, target: Target) -> None:
    """A browser asks with OPTIONS first. Without headers of CORS in the answer it sends nothing."""
    asked = (
        ("origin", "https://evil.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, content-type"),
        ("access-control-request-private-network", "true"),
    )
    for endpoint in all_endpoints(site.app):
        if endpoint.name == "follow_events":
            continue
        for method in (endpoint.method, "OPTIONS"):
            headers = (JSON, *asked) if endpoint.is_write else asked
            body = BODIES.get(endpoint.name) if endpoint.is_write else None
            answer = send(site, method, path_of(endpoint, target), body, headers=headers)
            assert not [header for header in answer.headers if header.startswith("access-control")]
            assert answer.headers["x-content-type-options"] == "nosniff"
            if method == "OPTIONS":
                assert answer.status == 405
