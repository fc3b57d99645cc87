"""What each scope may do with each endpoint: a walk over all endpoints with all scopes."""

from __future__ import annotations

import re

import pytest

from mainspring.security import Scope
from mainspring.web.api.endpoint import Endpoint
from mainspring.web.api.routes import all_endpoints
from tests.api_site import ApiSite
from tests.asgi_client import Answer, request

ALL = frozenset(Scope)
ADMIN = frozenset({Scope.ADMIN})
RIGHTS: dict[str, frozenset[Scope]] = {
    "get_server": ALL,
    "get_openapi": ALL,
    "submit_job": ADMIN | {Scope.SUBMIT, Scope.CALLBACK},
    "submit_jobs": ADMIN | {Scope.SUBMIT, Scope.CALLBACK},
    "list_jobs": ADMIN | {Scope.READ},
    "get_job": ADMIN | {Scope.READ},
    "explain_job": ADMIN | {Scope.READ},
    "get_job_links": ADMIN | {Scope.READ},
    "cancel_job": ADMIN | {Scope.OPERATE},
    "retry_job": ADMIN | {Scope.OPERATE},
    "reschedule_job": ADMIN | {Scope.OPERATE},
    "run_job_now": ADMIN | {Scope.OPERATE},
    "count_jobs": ADMIN | {Scope.READ},
    "change_jobs": ADMIN | {Scope.OPERATE},
    "follow_events": ADMIN | {Scope.READ},
    "list_dead_letters": ADMIN | {Scope.READ},
    "get_dead_letter": ADMIN | {Scope.READ},
    "edit_dead_letter": ADMIN | {Scope.OPERATE},
    "replay_dead_letters": ADMIN | {Scope.OPERATE},
    "purge_dead_letters": ADMIN | {Scope.OPERATE},
    "preview_schedule": ADMIN | {Scope.READ},
    "list_schedules": ADMIN | {Scope.READ},
    "get_schedule": ADMIN | {Scope.READ},
    "get_schedule_history": ADMIN | {Scope.READ},
    "put_schedule": ADMIN | {Scope.OPERATE},
    "delete_schedule": ADMIN | {Scope.OPERATE},
    "pause_schedule": ADMIN | {Scope.OPERATE},
    "resume_schedule": ADMIN | {Scope.OPERATE},
    "trigger_schedule": ADMIN | {Scope.OPERATE},
    "list_queues": ADMIN | {Scope.READ},
    "pause_queue": ADMIN | {Scope.OPERATE},
    "resume_queue": ADMIN | {Scope.OPERATE},
    "list_callback_pauses": ADMIN | {Scope.READ},
    "resume_callbacks": ADMIN | {Scope.OPERATE},
    "list_workers": ADMIN | {Scope.READ},
    "get_statistics": ADMIN | {Scope.READ},
    "get_doctor": ADMIN | {Scope.OPERATE},
    "list_audit": ADMIN | {Scope.OPERATE},
    "enroll_worker": ADMIN | {Scope.WORK},
    "claim_jobs": ADMIN | {Scope.WORK},
    "settle_jobs": ADMIN | {Scope.WORK},
    "beat_worker": ADMIN | {Scope.WORK},
    "leave_worker": ADMIN | {Scope.WORK, Scope.OPERATE},
    "direct_worker": ADMIN | {Scope.OPERATE},
}
"""The scopes that each endpoint admits. A token with any other scope is refused. Add each new endpoint here."""


def send(site: ApiSite, endpoint: Endpoint, job_id: str, token: str | None) -> Answer:
    """Send a request to an endpoint, with an empty body, and the job in its path."""
    path = re.sub(r"\{[^}]*\}", job_id, endpoint.path)
    headers = [("content-type", "application/json")] if endpoint.is_write else []
    body = b"{}" if endpoint.is_write else b""
    return request(site.asgi, f"/api/v1{path}", method=endpoint.method, token=token, headers=headers, body=body)


def test_the_table_has_every_endpoint(site: ApiSite) -> None:
    assert {endpoint.name for endpoint in all_endpoints(site.app)} == set(RIGHTS)


def test_every_endpoint_admits_exactly_the_scopes_of_the_table(site: ApiSite) -> None:
    tokens = {scope: site.token(str(scope)) for scope in Scope}
    for endpoint in all_endpoints(site.app):
        job_id = site.submit()
        for scope, token in tokens.items():
            answer = send(site, endpoint, job_id, token)
            if scope in RIGHTS[endpoint.name]:
                assert answer.status < 500
                assert answer.status not in (401, 403), (endpoint.name, scope, answer.body)
            else:
                assert (answer.status, answer.problem) == (403, "not-allowed"), (endpoint.name, scope)
                assert "insufficient_scope" in answer.headers["www-authenticate"]


def test_every_endpoint_needs_a_token(site: ApiSite) -> None:
    for endpoint in all_endpoints(site.app):
        answer = send(site, endpoint, "x", None)
        assert (answer.status, answer.problem) == (401, "token-missing")
    site.asgi = site.app.asgi()
    for endpoint in all_endpoints(site.app):
        assert send(site, endpoint, "x", site.admin).problem == "closed"


@pytest.mark.parametrize("restriction", [{"types": ["other"]}, {"queues": ["other"]}])
def test_a_restricted_token_gets_no_job_of_others_from_any_endpoint(
    site: ApiSite, restriction: dict[str, list[str]]
) -> None:
    marks = ("hidden-reason", "hidden-key", "cancel_order")
    job_id = site.submit(arguments={"order_id": 1, "reason": "hidden-reason"}, sequence="hidden-key")
    scopes = [str(scope) for scope in Scope if scope is not Scope.ADMIN]
    token = site.token(*scopes, **restriction)
    arguments = {"order_id": 1, "reason": "hidden-reason"}
    rule = {"kind": "cron", "expression": "@daily"}
    body = {"type": "shop.cancel_order", "arguments": arguments, "rule": rule}
    assert site.post(f"/schedules/{job_id}", body, method="PUT").status == 201
    before, schedule = site.app.get(job_id), site.app.schedules.get(job_id)
    for endpoint in all_endpoints(site.app):
        if endpoint.name == "get_openapi":  # has examples
            continue
        answer = send(site, endpoint, job_id, token)
        assert not [mark for mark in marks if mark in answer.body.decode()], (endpoint.name, answer.body)
        if "{id}" in endpoint.path or ("/schedules/{name}" in endpoint.path and endpoint.method != "PUT"):
            assert answer.status == 404
    assert site.app.get(job_id) == before
    assert site.app.schedules.get(job_id) == schedule


def test_rights_are_checked_before_the_body_and_the_query_are_read(site: ApiSite) -> None:
    token = site.token("read")
    for raw in (b"{", b"[" * 100_000, b"\xff", b'{"none": 1}'):
        assert site.post("/jobs?none=1", raw=raw, token=token).problem == "not-allowed"
