"""Redacted parameters in the API, on every engine: their values appear in no answer, no event and no log line.

`tests/unit/web` and `tests/nats` run these tests on their stores.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import Mainspring, Rate, Retry, current_job
from mainspring.security.permissions import Scope
from mainspring.web.api.routes import all_endpoints
from tests.api_site import JSON, NDJSON, ApiSite, add_handlers
from tests.asgi_client import Answer, request
from tests.event_client import event_server
from tests.redacted_shop import describe_log
from tests.support import PATIENCE

REDACTED = "[redacted]"
CARD = "canary-card"
PIN = 864_209
CANARIES = ("canary", str(PIN), f"{PIN:,}")
SECRETS: dict[str, Any] = {"card": {"owner": CARD}, "pin": PIN}
ARGUMENTS = {"order_id": 7, **SECRETS}
SHOWN = {"order_id": 7, "card": REDACTED, "pin": REDACTED}
SECRET = "shop.secret"
OTHER = "shop.other_secret"
DAILY = {"kind": "cron", "expression": "@daily"}


def add_redacting_handlers(app: Mainspring) -> None:
    """Register the handlers of a small shop, and two that redact parameters. One of the two fails."""
    add_handlers(app)
    once = Retry(max_attempts=1)

    @app.job(name=SECRET, queue="orders", retry=once, redact=("card", "pin"))
    def secret(order_id: int, card: dict[str, str], pin: int) -> None:
        current_job().progress(1, 2, f"charging {card} with {pin}")
        raise ValueError(f"{card} and {pin:,} of {order_id}")

    @app.job(name=OTHER, queue="orders", redact="phrase", rate=Rate(1, per=3600))
    def other_secret(phrase: str) -> None: ...


@dataclass(frozen=True)
class Step:
    """A request to an endpoint, and the status of its answer."""

    endpoint: str
    path: str
    status: int = 200
    body: Any = None
    raw: bytes | None = None
    content_type: tuple[str, str] = JSON


def steps(failed: str, pending: str) -> Iterator[Step]:
    """Yield requests to all endpoints, with secrets wherever a body may have them.

    `failed` and `pending` are the ids of jobs with secrets.
    """
    yield from submits(pending)
    yield from reads_and_changes_of_jobs(failed, pending)
    yield from changes_of_dead_letters(failed)
    yield from schedules()
    yield Step("get_server", "/")
    yield Step("get_openapi", "/openapi.json")
    yield Step("pause_queue", "/queues/orders/pause")
    yield Step("explain_job", f"/jobs/{pending}/explain")
    yield Step("resume_queue", "/queues/orders/resume")
    yield Step("list_queues", "/queues")
    yield Step("list_callback_pauses", "/callbacks/pauses")
    yield Step("resume_callbacks", "/callbacks/resume", body={"host": "hooks.example.com"})
    yield Step("list_workers", "/workers")
    yield Step("get_statistics", "/statistics")
    yield Step("get_doctor", "/doctor")
    yield Step("cancel_job", f"/jobs/{pending}/cancel")
    yield from remote_workers()
    yield Step("list_audit", "/audit?limit=500")


def remote_workers() -> Iterator[Step]:
    """Yield requests of remote workers. A claim would give the values to its worker, as it must."""
    item = {"id": "x", "fencing_token": 1}
    yield Step("enroll_worker", "/workers", 422, {"name": "w", "types": [SECRET]})
    yield Step("claim_jobs", "/workers/999999/claim", 404, {"wait": 0})
    yield Step(
        "settle_jobs", "/workers/999999/settle", 404, {"jobs": [{**item, "outcome": "failed", "error": CARD}]}
    )
    yield Step(
        "beat_worker",
        "/workers/999999/heartbeat",
        404,
        {"jobs": [{**item, "progress": {"done": 1, "note": CARD}}]},
    )
    yield Step("direct_worker", "/workers/999999/direct", 404, {"direction": "quiet"})
    yield Step("leave_worker", "/workers/999999", 404)


def submits(pending: str) -> Iterator[Step]:
    """Yield submits. `pending` is an id that is taken."""
    new = {"type": SECRET, "arguments": ARGUMENTS, "delay": 3600}
    wrong = [
        {**new, "arguments": {**ARGUMENTS, "order_id": CARD}},
        {**new, "arguments": {**ARGUMENTS, "pin": {"canary": CARD}}},
        {**new, "arguments": {**ARGUMENTS, "card": [CARD, PIN]}},
        {**new, "arguments": {**ARGUMENTS, "card": {"owner": PIN}}},
        {**new, "arguments": {"order_id": 7, "card": SECRETS["card"]}},
        {**new, "arguments": [CARD, PIN]},
        {**new, "unique": {"by": ["card"]}},
        {**new, "unique": {}},
        {"type": OTHER, "arguments": {"phrase": PIN}},
    ]
    yield Step("submit_job", "/jobs", 201, new)
    yield Step("submit_job", "/jobs", 409, {**new, "id": pending})
    yield from (Step("submit_job", "/jobs", 422, body) for body in wrong)
    yield Step("submit_jobs", "/jobs/batch", 201, [new, new])
    yield Step("submit_jobs", "/jobs/batch", 409, [new, {**new, "id": pending}])
    yield from (Step("submit_jobs", "/jobs/batch", 422, [new, body]) for body in wrong)
    lines = json.dumps(new) + "\n" + json.dumps(new)[:-5]
    yield Step("submit_jobs", "/jobs/batch", 400, raw=lines.encode(), content_type=NDJSON)


def reads_and_changes_of_jobs(failed: str, pending: str) -> Iterator[Step]:
    """Yield requests about these jobs."""
    for query in (
        "",
        "?text=order_id",
        f"?type={SECRET}&argument.order_id=7",
        "?newest_first=true",
        "?status=FAILED",
    ):
        yield Step("list_jobs", f"/jobs{query}")
    yield Step("list_jobs", "/jobs?argument.card=x", 422)
    yield Step("count_jobs", f"/job-count?type={SECRET}&argument.order_id=7")
    yield Step("count_jobs", "/job-count?argument.card=x", 422)
    yield Step("change_jobs", "/jobs/change", 200, {"action": "cancel", "type": SECRET, "dry_run": True})
    yield Step("get_job_links", f"/jobs/{failed}/links")
    yield Step("list_jobs", f"/jobs?type={SECRET}&argument.pin=1", 422)
    yield Step("list_jobs", f"/jobs?type={SECRET}&argument.order_id=7&argument.pin=1", 422)
    for job_id in (failed, pending):
        yield Step("get_job", f"/jobs/{job_id}")
        yield Step("explain_job", f"/jobs/{job_id}/explain")
        yield Step("get_job_links", f"/jobs/{job_id}/links")
    yield Step("count_jobs", f"/job-count?type={SECRET}&argument.order_id=7")
    yield Step("count_jobs", f"/job-count?type={SECRET}&argument.pin=1", 422)
    change = {"action": "reschedule", "delay": 7200, "type": SECRET}
    yield Step("change_jobs", "/jobs/change", 200, {**change, "text": CARD})
    for name in ("card", "pin"):
        for is_dry_run in (False, True):
            body = {**change, "argument": {name: "1"}, "dry_run": is_dry_run}
            yield Step("change_jobs", "/jobs/change", 422, body)
    yield Step("reschedule_job", f"/jobs/{pending}/reschedule", 200, {"delay": 7200})
    yield Step("retry_job", f"/jobs/{pending}/retry", 409)
    yield Step("run_job_now", f"/jobs/{failed}/run-now", 409)


def changes_of_dead_letters(failed: str) -> Iterator[Step]:
    """Yield requests about this dead letter. The last ones replay it."""
    yield Step("list_dead_letters", "/dead-letters?replayed=all")
    yield Step("get_dead_letter", f"/dead-letters/{failed}")
    yield Step("edit_dead_letter", f"/dead-letters/{failed}", 422, {"changes": {"pin": CARD}})
    yield Step("edit_dead_letter", f"/dead-letters/{failed}", 422, {"changes": {"card": {"owner": PIN}}})
    yield Step("edit_dead_letter", f"/dead-letters/{failed}", 200, {"changes": {"card": {"owner": CARD + "!"}}})
    for changes in ({"order_id": 8}, {"pin": PIN}):
        body = {"ids": [failed], "changes": changes, "dry_run": True}
        yield Step("replay_dead_letters", "/dead-letters/replay", 200, body)
    body = {"ids": [failed], "changes": {"pin": CARD}, "dry_run": True}
    yield Step("replay_dead_letters", "/dead-letters/replay", 422, body)
    yield Step("replay_dead_letters", "/dead-letters/replay", 200, {"ids": [failed], "changes": {"pin": PIN}})
    yield Step("replay_dead_letters", "/dead-letters/replay", 409, {"ids": [failed]})
    yield Step("purge_dead_letters", "/dead-letters/purge", 404, {"ids": [failed, "unheard"]})


def schedules() -> Iterator[Step]:
    """Yield requests about a schedule, from its first definition to its end."""
    schedule = {"type": SECRET, "arguments": ARGUMENTS, "rule": DAILY}
    yield Step("put_schedule", "/schedules/night", 201, schedule)
    yield Step("put_schedule", "/schedules/day", 422, {**schedule, "arguments": {**ARGUMENTS, "pin": CARD}})
    yield Step("put_schedule", "/schedules/day", 422, {**schedule, "arguments": {**ARGUMENTS, "order_id": CARD}})
    yield Step("trigger_schedule", "/schedules/night/trigger", 201)
    yield Step("pause_schedule", "/schedules/night/pause")
    yield Step("resume_schedule", "/schedules/night/resume")
    yield Step("list_schedules", "/schedules")
    yield Step("get_schedule", "/schedules/night")
    yield Step("get_schedule_history", "/schedules/night/history")
    yield Step("preview_schedule", "/schedules/preview?name=night")
    yield Step("delete_schedule", "/schedules/night")


def take(site: ApiSite, step: Step) -> Answer:
    """Send the request of a step, and check the status of its answer."""
    methods = {endpoint.name: endpoint.method for endpoint in all_endpoints(site.app)}
    raw = step.raw if step.raw is not None else b"" if step.body is None else json.dumps(step.body).encode()
    method = methods[step.endpoint]
    headers = [] if method == "GET" else [step.content_type]
    path = f"/api/v1{step.path}"
    answer = request(site.asgi, path, method=method, token=site.admin, headers=headers, body=raw)
    assert answer.status == step.status, (step, answer.status, answer.body)
    return answer


def find_canaries(texts: Iterator[str]) -> list[str]:
    """Return the texts that contain a secret."""
    return [text for text in texts if any(canary in text for canary in CANARIES)]


def fail(site: ApiSite) -> str:
    """Submit a job that has secrets and fails; return its id."""
    job_id = site.submit(SECRET, arguments=ARGUMENTS, delay=0)
    with site.app.running():
        assert site.app.handle(job_id).wait(PATIENCE) == "FAILED"
    return job_id


class RedactedApiTests:
    """The tests. A subclass has the fixture `site`, with the handlers of `add_redacting_handlers`."""

    def test_no_endpoint_shows_a_secret(self, site: ApiSite, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        failed, pending = fail(site), site.submit(SECRET, arguments=ARGUMENTS)
        wanted = list(steps(failed, pending))
        names = {endpoint.name for endpoint in all_endpoints(site.app)}
        assert {step.endpoint for step in wanted} == names - {"follow_events"}  # has a test of its own
        answers = [(step, take(site, step)) for step in wanted]
        shown = (f"{step.path} {answer.headers} {answer.body.decode()}" for step, answer in answers)
        assert find_canaries(shown) == []
        assert find_canaries(describe_log(caplog.records)) == []
        arguments = [
            answer.json["arguments"]
            for step, answer in answers
            if step.endpoint in ("get_job", "get_dead_letter", "get_schedule")
        ]
        assert arguments == [SHOWN] * 4

    def test_errors_and_progress_of_a_job_are_masked(self, site: ApiSite) -> None:
        failed = fail(site)
        for path in (f"/jobs/{failed}", f"/dead-letters/{failed}"):
            job = site.get(path).json
            assert REDACTED in job["error"]
            assert REDACTED in job["progress"]["note"]
            assert job["arguments"] == SHOWN

    def test_a_schedule_that_is_sent_back_as_it_was_shown_loses_no_secret(self, site: ApiSite) -> None:
        body = {"type": OTHER, "arguments": {"phrase": CARD}, "rule": DAILY}
        assert site.post("/schedules/night", body, method="PUT").status == 201
        before = site.app.manager().engine.schedules()
        shown = site.get("/schedules/night").json
        answer = site.post("/schedules/night", {**body, "arguments": shown["arguments"]}, method="PUT")
        assert (answer.status, answer.problem) == (422, "invalid-value")
        assert "'phrase'" in answer.json["detail"]
        assert site.app.manager().engine.schedules() == before

    def test_an_event_shows_no_secret(self, site: ApiSite) -> None:
        with event_server(site.app) as server, server.follow().begin() as client:
            failed = fail(site)
            shown: list[str] = []
            while not shown or json.loads(shown[-1])["kind"] != "failed":
                shown.append(json.dumps(client.next().data))
        assert find_canaries(iter(shown)) == []
        assert json.loads(shown[-1])["job_id"] == failed
        assert REDACTED in json.loads(shown[-1])["note"]

    def test_a_search_for_a_text_does_not_find_a_secret(self, site: ApiSite) -> None:
        failed = fail(site)
        assert site.ids("?text=of%207") == site.ids("?text=order_id") == [failed]
        for text in (CARD, str(PIN), f"{PIN:,}"):
            assert site.ids(f"?text={text}") == []

    def test_a_filter_by_a_redacted_parameter_names_no_type_that_the_token_may_not_read(
        self, site: ApiSite
    ) -> None:
        token = site.token(Scope.READ, types=[SECRET, "shop.anything"])
        own = site.get("/jobs?argument.card=x", token=token)
        assert (own.status, own.problem) == (422, "invalid-value")
        assert SECRET in own.json["detail"]
        for query in ("argument.phrase=x", f"type={OTHER}&argument.phrase=x"):
            assert site.get(f"/jobs?{query}").problem == "invalid-value"
            answer = site.get(f"/jobs?{query}", token=token)
            assert (answer.status, answer.json["jobs"]) == (200, [])
