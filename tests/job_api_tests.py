"""What the job endpoints do on every engine. `tests/unit/web` and `tests/nats` run these tests on their stores."""

from __future__ import annotations

import base64
import json
import os
import platform
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Mainspring, Rate, Unique
from mainspring.jobs.status import JobStatus
from tests.api_site import NDJSON, ApiSite
from tests.support import PATIENCE

HOUR = timedelta(hours=1)


class JobApiTests:
    """The tests. A subclass has the fixture `site`."""

    # -- submits

    def test_a_submitted_job_can_be_read_at_its_location(self, site: ApiSite) -> None:
        answer = site.post("/jobs", {"type": "shop.cancel_order", "arguments": {"order_id": 7}, "delay": 90.5})
        assert answer.status == 201
        assert answer.json == {"id": answer.json["id"], "is_new": True}
        assert answer.headers["location"] == f"/api/v1/jobs/{answer.json['id']}"
        job = site.get(f"/jobs/{answer.json['id']}").json
        assert (job["type"], job["queue"], job["status"]) == ("shop.cancel_order", "orders", "PENDING")
        assert job["arguments"] == {"order_id": 7}
        stored = site.app.get(job["id"])
        assert datetime.fromisoformat(job["due"]) == stored.due
        assert timedelta(seconds=85) < stored.due - stored.created <= timedelta(seconds=90.5)

    def test_every_option_of_a_submit_is_stored(self, site: ApiSite) -> None:
        due = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
        job_id = site.submit(
            at="2031-01-02T11:04:05+08:00",
            queue="urgent",
            priority="USER_BLOCKING",
            id="order/42 é",
            unique="order-42",
            sequence="order-42",
            retry={"max_attempts": 3, "base": 1.5, "factor": 3, "max_delay": 7, "jitter": 0.25},
            timeout=12.5,
            expires=60,
        )
        job = site.get("/jobs/order%2F42%20%C3%A9").json
        assert job["id"] == job_id == "order/42 é"
        assert (job["queue"], job["priority"], job["sequence"]) == ("urgent", "USER_BLOCKING", "order-42")
        assert datetime.fromisoformat(job["due"]) == due
        assert datetime.fromisoformat(job["expires"]) == due + timedelta(minutes=1)
        assert job["unique_key"] == "shop.cancel_order: order-42"
        assert json.loads(job["headers"]["mainspring-retry"])["max_attempts"] == 3
        assert job["headers"]["mainspring-timeout"] == "12500000"

    def test_an_id_with_a_line_feed_belongs_to_the_api(self, site: ApiSite) -> None:
        answer = site.get("/jobs/a%0Ab")
        assert (answer.status, answer.problem) == (404, "job-not-found")

    def test_a_unique_job_that_exists_is_answered_with_200(self, site: ApiSite) -> None:
        body = {"type": "shop.cancel_order", "arguments": {"order_id": 1}, "delay": 3600, "unique": "k"}
        first, second = site.post("/jobs", body), site.post("/jobs", body)
        assert (first.status, second.status) == (201, 200)
        assert second.json == {"id": first.json["id"], "is_new": False}
        assert second.headers["location"] == first.headers["location"]
        assert len(site.ids()) == 1

    def test_a_duplicate_is_answered_with_409_and_its_id(self, site: ApiSite) -> None:
        site.submit(id="x")
        answer = site.post("/jobs", {"type": "shop.cancel_order", "arguments": {"order_id": 1}, "id": "x"})
        assert (answer.status, answer.problem, answer.json["existing_id"]) == (409, "duplicate-job", "x")
        first = site.submit("shop.pay", arguments={"order_id": 1})
        answer = site.post("/jobs", {"type": "shop.pay", "arguments": {"order_id": 1}})
        assert (answer.status, answer.problem, answer.json["existing_id"]) == (409, "duplicate-job", first)

    def test_arguments_have_the_types_of_the_signature_and_keys_are_those_of_python(self, site: ApiSite) -> None:
        picture = base64.b64encode(b"\0\xff").decode()
        unique = {"by": ["at"]}
        arguments = {"at": "2026-01-02T03:04:05+00:00", "picture": picture}
        job_id = site.submit("shop.remind", arguments=arguments, unique=unique)
        again = {**arguments, "at": "2026-01-02T03:04:05Z"}
        body = {"type": "shop.remind", "arguments": again, "unique": unique, "delay": 3600}
        assert site.post("/jobs", body).json == {"id": job_id, "is_new": False}
        assert site.get(f"/jobs/{job_id}").json["arguments"]["picture"] == picture

    @pytest.mark.parametrize(
        ("arguments", "parameter"),
        [({"order_id": "x"}, "order_id"), ({}, "order_id"), ({"order_id": 1, "n": 2}, "n"), ([1], None)],
    )
    def test_wrong_arguments_are_answered_with_422_and_the_parameter(
        self, site: ApiSite, arguments: Any, parameter: str | None
    ) -> None:
        answer = site.post("/jobs", {"type": "shop.cancel_order", "arguments": arguments})
        assert (answer.status, answer.problem) == (422, "invalid-arguments")
        assert answer.json.get("parameter") == parameter
        assert site.ids() == []

    def test_a_type_without_a_handler_is_answered_with_the_known_ones(self, site: ApiSite) -> None:
        answer = site.post("/jobs", {"type": "shop.cancel_ordr"})
        assert (answer.status, answer.problem) == (422, "unknown-handler")
        assert "did you mean 'shop.cancel_order'" in answer.json["detail"]

    def test_a_job_that_calls_a_url_needs_a_policy(self, site: ApiSite) -> None:
        answer = site.post("/jobs", {"http": {"url": "https://example.com/"}})
        assert (answer.status, answer.problem) == (422, "callback-refused")

    def test_arguments_that_are_too_large_are_answered_with_413(self, site: ApiSite) -> None:
        answer = site.post("/jobs", {"type": "shop.anything", "arguments": {"value": "x" * 1_100_000}})
        assert (answer.status, answer.problem) == (413, "arguments-too-large")

    def test_a_submit_beyond_the_rate_of_its_queue_is_answered_with_429(self, site: ApiSite) -> None:
        site.app.queue("orders", submit_rate=Rate(1, per=3600))
        site.submit()
        answer = site.post("/jobs", {"type": "shop.cancel_order", "arguments": {"order_id": 1}})
        assert (answer.status, answer.problem) == (429, "limit-exceeded")
        assert 0 < int(answer.headers["retry-after"]) <= 3600

    # -- batches

    def test_a_batch_is_stored_in_order(self, site: ApiSite) -> None:
        lines = [
            {"type": "shop.anything", "arguments": {"value": 1}, "delay": 3600},
            {"type": "shop.cancel_order", "arguments": {"order_id": 2}, "delay": 3600, "queue": "other"},
            {"type": "shop.anything", "arguments": {"value": 3}, "delay": 3600, "unique": "k"},
            {"type": "shop.anything", "arguments": {"value": 4}, "delay": 3600, "unique": "k"},
        ]
        answer = site.post("/jobs/batch", lines)
        assert answer.status == 201
        ids = answer.json["ids"]
        assert (answer.json["stored"], answer.json["existing"]) == (3, [4])
        assert ids[2] == ids[3]
        assert [site.get(f"/jobs/{job_id}").json["arguments"] for job_id in ids[:2]] == [
            {"value": 1},
            {"order_id": 2},
        ]
        assert site.get(f"/jobs/{ids[1]}").json["queue"] == "other"
        assert site.ids() == ids[:3]

    def test_a_batch_may_have_one_job_in_each_line(self, site: ApiSite) -> None:
        lines = [json.dumps({"type": "shop.anything", "arguments": {"value": n}, "delay": 3600}) for n in range(3)]
        raw = ("\r\n".join(lines) + "\n\n").encode()
        answer = site.post("/jobs/batch", raw=raw, content_type=NDJSON)
        assert answer.status == 201
        assert site.ids() == answer.json["ids"]

    @pytest.mark.parametrize(
        ("line", "status", "problem"),
        [
            ('{"type": "shop.cancel_order", "arguments": {"order_id": "x"}}', 422, "invalid-arguments"),
            ('{"type": "shop.cancel_order"', 400, "invalid-json"),
            ('{"type": "shop.none"}', 422, "unknown-handler"),
            ('{"type": "shop.anything", "delay": -1}', 422, "invalid-body"),
            ('{"type": "shop.anything", "id": ""}', 422, "invalid-value"),
            ("[" * 100 + "]" * 100, 422, "too-deep"),
        ],
    )
    def test_a_wrong_line_is_named_and_nothing_is_stored(
        self, site: ApiSite, line: str, status: int, problem: str
    ) -> None:
        good = '{"type": "shop.anything", "delay": 3600}'
        raw = f"{good}\n\n{line}\n{good}".encode()  # the second line is blank, and counts
        answer = site.post("/jobs/batch", raw=raw, content_type=NDJSON)
        assert (answer.status, answer.problem, answer.json["line"]) == (status, problem, 3)
        assert "line 3" in answer.json["detail"]
        assert "no job of this batch was stored" in answer.json["detail"]
        assert site.ids() == []

    def test_a_batch_that_is_stored_in_part_tells_which_jobs_were_not(self, site: ApiSite) -> None:
        site.submit(id="taken")
        job = {"type": "shop.anything", "delay": 3600}
        answer = site.post("/jobs/batch", [{**job, "id": "a"}, {**job, "id": "taken"}, {**job, "id": "b"}])
        assert (answer.status, answer.problem) == (409, "duplicate-job")
        assert (answer.json["ids"], answer.json["stored"], answer.json["line"]) == (["a", None, "b"], 2, 2)
        (failed,) = answer.json["failed"]
        assert (failed["line"], failed["type"]) == (2, "urn:mainspring:problem:duplicate-job")
        assert set(site.ids()) == {"taken", "a", "b"}

    def test_a_batch_that_a_limit_stops_tells_what_was_stored_before(
        self, site: ApiSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mainspring.jobs.submission.CHUNK", 2)  # jobs in one call of the engine
        site.app.queue("orders", submit_rate=Rate(3, per=3600))
        job = {"type": "shop.anything", "delay": 3600}
        answer = site.post("/jobs/batch", [job] * 5)
        assert (answer.status, answer.problem) == (429, "limit-exceeded")
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json["ids"] == [*site.ids(), None, None, None]
        assert (answer.json["stored"], answer.json["line"]) == (2, 3)
        assert [failed["line"] for failed in answer.json["failed"]] == [3, 4, 5]

    def test_the_number_of_jobs_in_a_batch_is_limited(self, site: ApiSite) -> None:
        job = b'{"type":"shop.anything","delay":3600}'
        answer = site.post("/jobs/batch", raw=b"[" + b",".join([job] * 10_001) + b"]")
        assert (answer.status, answer.problem) == (413, "batch-too-large")
        assert site.post("/jobs/batch", []).problem == "invalid-body"
        assert site.post("/jobs/batch", raw=b"\n\n", content_type=NDJSON).problem == "invalid-body"
        assert site.post("/jobs/batch", {"type": "shop.anything"}).problem == "invalid-body"
        assert site.ids() == []

    # -- lists

    def test_pages_follow_each_other(self, site: ApiSite) -> None:
        ids = [site.submit() for _ in range(7)]
        found: list[str] = []
        query = "?limit=3"
        while True:
            page = site.get(f"/jobs{query}").json
            found += [job["id"] for job in page["jobs"]]
            if page["next"] is None:
                break
            query = f"?limit=3&after={page['next']}"
        assert found == ids
        assert site.ids("?newest_first=true&limit=2") == ids[:-3:-1]

    def test_a_list_can_be_filtered(self, site: ApiSite) -> None:
        first = site.submit(arguments={"order_id": 1, "reason": "too late"})
        text = site.submit("shop.anything", arguments={"value": "42"})
        number = site.submit("shop.anything", arguments={"value": 42}, queue="other")
        site.post(f"/jobs/{first}/cancel")
        assert site.ids("?status=CANCELED") == [first]
        assert site.ids("?queue=other") == [number]
        assert site.ids("?type=shop.anything") == [text, number]
        assert site.ids("?type=cancel_order") == [first]
        assert site.ids("?argument.value=42") == [text, number]
        assert site.ids("?argument.order_id=1&argument.reason=too+late") == [first]
        assert site.ids("?argument.order_id=2") == []
        assert site.ids("?text=TOO%20late") == [first]
        assert site.ids("?since=1h&until=2031-01-01T00:00:00Z") == [first, text, number]
        assert site.ids("?since=2031-01-01T08:00:00%2B08:00") == site.ids("?until=9d") == []

    def test_a_search_tells_how_far_it_has_read(self, site: ApiSite) -> None:
        ids = [site.submit("shop.anything", arguments={"value": n % 2}) for n in range(4)]
        page = site.get("/jobs?argument.value=1&limit=1").json
        assert [job["id"] for job in page["jobs"]] == [ids[1]]
        assert (page["is_complete"], page["scanned"]) == (True, 2)
        assert page["reached"] == site.get(f"/jobs/{ids[1]}").json["created"]
        assert site.ids(f"?argument.value=1&after={page['next']}") == [ids[3]]

    @pytest.mark.parametrize("cursor", ["x", "-1", "%201", "1_0", "%D9%A3", "9" * 30, "1.5", "0x1", ""])
    def test_a_cursor_that_no_page_has_returned_is_refused(self, site: ApiSite, cursor: str) -> None:
        site.submit()
        answer = site.get(f"/jobs?after={cursor}")
        assert (answer.status, answer.problem) == (422, "invalid-value")
        assert "`next` of an earlier page" in answer.json["detail"]

    def test_large_jobs_make_shorter_pages(self, site: ApiSite, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mainspring.web.api.jobs.PAGE_BYTES", 20_000)
        monkeypatch.setattr("mainspring.web.api.jobs.READ_AT_ONCE", 1)
        ids = [site.submit("shop.anything", arguments={"value": "x" * 9_000}) for _ in range(5)]
        page = site.get("/jobs").json
        assert [job["id"] for job in page["jobs"]] == ids[:3]
        assert site.ids(f"?after={page['next']}") == ids[3:]

    # -- single jobs

    def test_a_job_that_does_not_exist_is_answered_with_404(self, site: ApiSite) -> None:
        for path in ("/jobs/none", "/jobs/none/explain", "/jobs/" + "x" * 300, "/jobs/%00", "/jobs/%0A"):
            assert site.get(path).problem == "job-not-found"
        for verb in ("cancel", "retry", "run-now"):
            assert site.post(f"/jobs/none/{verb}").problem == "job-not-found"
        assert site.post("/jobs/none/reschedule", {"delay": 1}).problem == "job-not-found"

    def test_a_job_is_explained(self, site: ApiSite) -> None:
        job_id = site.submit()
        found = site.get(f"/jobs/{job_id}/explain").json
        assert (found["id"], found["status"], found["reason"]) == (job_id, "PENDING", "not due")
        assert datetime.fromisoformat(found["until"]) == site.app.get(job_id).due

    def test_a_pending_job_is_canceled(self, site: ApiSite) -> None:
        job_id = site.submit()
        assert site.post(f"/jobs/{job_id}/cancel").json == {"id": job_id, "status": "CANCELED", "is_done": True}
        assert site.app.get(job_id).status is JobStatus.CANCELED
        again = site.post(f"/jobs/{job_id}/cancel", raw=b"")  # no body is as good as {}
        assert (again.status, again.json["is_done"]) == (200, False)
        assert site.post(f"/jobs/{job_id}/run-now").problem == "invalid-transition"
        refused = site.post(f"/jobs/{job_id}/retry")
        assert (refused.status, refused.problem, refused.json["job_status"]) == (
            409,
            "invalid-transition",
            "CANCELED",
        )

    def test_a_job_is_rescheduled(self, site: ApiSite) -> None:
        job_id = site.submit()
        assert site.post(f"/jobs/{job_id}/reschedule", {"at": "2031-01-01T00:00:00Z"}).status == 200
        assert site.app.get(job_id).due == datetime(2031, 1, 1, tzinfo=UTC)
        before = site.app.get(job_id)
        assert site.post(f"/jobs/{job_id}/reschedule", {"delay": 7200}).status == 200
        assert HOUR < site.app.get(job_id).due - before.created < 3 * HOUR
        for body in ({}, {"delay": 1, "at": "2031-01-01T00:00:00Z"}, {"delay": 1e18}):
            assert site.post(f"/jobs/{job_id}/reschedule", body).problem == "invalid-value"
        site.post(f"/jobs/{job_id}/cancel")
        assert site.post(f"/jobs/{job_id}/reschedule", {"delay": 1}).problem == "invalid-transition"

    def test_jobs_run_now_and_their_results_are_json(self, site: ApiSite) -> None:
        picture = base64.b64encode(bytes(range(256))).decode()
        order = site.submit()
        letter = site.submit("shop.remind", arguments={"at": "2026-01-01T00:00:00Z", "picture": picture})
        for job_id in (order, letter):
            assert site.post(f"/jobs/{job_id}/run-now").json["is_done"]
        with site.app.running():
            for job_id in (order, letter):
                assert site.app.handle(job_id).wait(PATIENCE) is JobStatus.COMPLETED
        assert site.get(f"/jobs/{order}").json["result"] == {"canceled": 42, "reason": "unpaid"}
        assert site.get(f"/jobs/{letter}").json["result"] == picture
        assert site.post(f"/jobs/{order}/cancel").problem == "invalid-transition"

    def test_a_dead_letter_is_retried(self, site: ApiSite) -> None:
        add_failing_handler(site.app)
        job_id = site.submit("shop.fail", delay=0, retry={"max_attempts": 1})
        with site.app.running():
            assert site.app.handle(job_id).wait(PATIENCE) is JobStatus.FAILED
        job = site.get(f"/jobs/{job_id}").json
        assert (job["failures"], job["history"][0]["cause"]) == (1, "failure")
        assert job["history"][0]["worker"] == f"{platform.node()}:{os.getpid()}"
        assert "RuntimeError: no" in job["error"]
        assert site.post(f"/jobs/{job_id}/retry").json["status"] == "PENDING"
        assert site.app.get(job_id).status is JobStatus.PENDING

    def test_a_follow_up_job_and_its_predecessor_are_linked(self, site: ApiSite) -> None:
        @site.app.job(name="shop.second", queue="mail")
        def second(order: int) -> None: ...

        @site.app.job(name="shop.first", queue="orders")
        def first(order: int) -> int:
            return order

        with site.app.running():
            before = first.options(then=second).submit(7)
            assert before.wait(PATIENCE) is JobStatus.COMPLETED
            (link,) = site.get(f"/jobs/{before.id}/links").json["links"]
        assert (link["relation"], link["type"], link["queue"]) == ("follow-up", "shop.second", "mail")
        (back,) = site.get(f"/jobs/{link['id']}/links").json["links"]
        assert (back["relation"], back["id"]) == ("predecessor", before.id)
        token = site.token("read", queues=["orders"])
        assert site.get(f"/jobs/{before.id}/links", token=token).json == {"links": []}

    # -- rights

    def test_a_token_submits_only_its_types_and_queues(self, site: ApiSite) -> None:
        token = site.token("submit", types=["shop.anything"], queues=["orders"])
        site.submit("shop.anything", token=token)
        for body in (
            {"type": "shop.cancel_order", "arguments": {"order_id": 1}},
            {"type": "shop.anything", "queue": "money"},
            {"type": "shop.none"},
        ):
            for answer in (
                site.post("/jobs", body, token=token),
                site.post("/jobs/batch", [{"type": "shop.anything"}, body], token=token),
            ):
                assert (answer.status, answer.problem) == (403, "not-allowed")
        assert len(site.ids()) == 1

    def test_a_token_learns_nothing_of_handlers_that_it_may_not_use(self, site: ApiSite) -> None:
        token = site.token("submit", types=["shop.missing", "shop.pay"])
        answer = site.post("/jobs", {"type": "shop.missing"}, token=token)
        assert answer.problem == "unknown-handler"
        assert "shop.pay" in answer.json["detail"]
        assert "cancel_order" not in answer.json["detail"]
        registered, unknown = (
            site.post("/jobs", {"type": name}, token=token).json["detail"]
            for name in ("shop.remind", "shop.remix")
        )
        assert registered.replace("shop.remind", "shop.remix") == unknown  # not even the queue of its handler

    def test_jobs_that_a_token_may_not_read_are_as_if_they_did_not_exist(self, site: ApiSite) -> None:
        hidden = [site.submit("shop.pay", arguments={"order_id": n}) for n in range(3)]
        other_queue = site.submit("shop.anything", queue="secret")
        mine = [site.submit("shop.anything", arguments={"value": "secret"}) for _ in range(3)]
        token = site.token("read", "operate", types=["shop.anything"], queues=["orders"])
        assert site.ids(token=token) == mine
        page = site.get("/jobs?limit=2", token=token).json
        assert [job["id"] for job in page["jobs"]] == mine[:2]  # the page is full
        assert site.ids(f"?after={page['next']}", token=token) == mine[2:]
        assert site.ids("?type=shop.pay", token=token) == site.ids("?queue=secret", token=token) == []
        assert site.ids("?text=secret", token=token) == mine
        assert site.get("/jobs?text=none", token=token).json["scanned"] == 3
        for job_id in (*hidden, other_queue):
            for answer, missing in (
                (site.get(f"/jobs/{job_id}", token=token), site.get("/jobs/none", token=token)),
                (site.get(f"/jobs/{job_id}/explain", token=token), site.get("/jobs/none/explain", token=token)),
                (site.post(f"/jobs/{job_id}/cancel", token=token), site.post("/jobs/none/cancel", token=token)),
            ):
                assert (answer.status, answer.problem) == (404, "job-not-found")
                assert answer.json["detail"].replace(job_id, "none") == missing.json["detail"]
            assert site.app.get(job_id).status is JobStatus.PENDING

    def test_an_explanation_names_no_job_that_the_token_may_not_read(self, site: ApiSite) -> None:
        first = site.submit("shop.cancel_order", sequence="s", delay=0)
        second = site.submit("shop.anything", sequence="s", delay=0)
        assert first in site.get(f"/jobs/{second}/explain").json["blocked_by"]
        answer = site.get(f"/jobs/{second}/explain", token=site.token("read", types=["shop.anything"]))
        assert answer.status == 200
        assert answer.json["reason"] == "behind another job of its sequence"
        assert first not in answer.body.decode()
        assert "cancel_order" not in answer.body.decode()

    @pytest.mark.parametrize("on_conflict", ["return", "raise"])
    def test_a_unique_key_tells_no_id_of_another_queue(self, site: ApiSite, on_conflict: str) -> None:
        unique = {"key": "k", "on_conflict": on_conflict}
        hidden = site.submit("shop.anything", unique="k", queue="secret")
        before = site.app.get(hidden)
        token = site.token("submit", "read", queues=["orders"])
        body = {"type": "shop.anything", "arguments": {"value": "mine"}, "unique": unique}
        single = site.post("/jobs", body, token=token)
        batch = site.post("/jobs/batch", [{"type": "shop.anything", "id": "new"}, body], token=token)
        for answer in (single, batch):
            assert (answer.status, answer.problem) == (409, "duplicate-job")
            assert hidden not in answer.body.decode() + str(answer.headers)
            assert "existing_id" not in answer.json
        assert (batch.json["ids"], batch.json["stored"], batch.json["line"]) == (["new", None], 1, 2)
        assert [failed["line"] for failed in batch.json["failed"]] == [2]
        assert site.app.get(hidden) == before
        assert set(site.ids()) == {hidden, "new"}

    def test_a_unique_key_tells_the_id_of_an_own_job(self, site: ApiSite) -> None:
        token = site.token("submit", types=["shop.anything"], queues=["orders"])  # it may not read
        body = {"type": "shop.anything", "unique": "k", "delay": 3600}
        first = site.post("/jobs", body, token=token).json["id"]
        again = site.post("/jobs", body, token=token)
        assert (again.status, again.json) == (200, {"id": first, "is_new": False})
        batch = site.post("/jobs/batch", [body, body], token=token)
        assert (batch.json["ids"], batch.json["existing"]) == ([first, first], [1, 2])
        raising = {**body, "unique": {"key": "k", "on_conflict": "raise"}}
        assert site.post("/jobs", raising, token=token).json["existing_id"] == first
        assert site.post("/jobs/batch", [raising], token=token).json["existing_id"] == first

    def test_a_token_for_some_queues_replaces_no_job(self, site: ApiSite) -> None:
        @site.app.job(name="shop.debounced", queue="orders", unique=Unique(key="d", on_conflict="replace"))
        def debounced(value: int = 0) -> None: ...

        replacing = {"key": "k", "on_conflict": "replace"}
        jobs: list[tuple[dict[str, Any], str]] = [
            (
                {"type": "shop.anything", "unique": replacing},
                site.submit("shop.anything", unique="k", queue="secret"),
            ),
            ({"type": "shop.debounced"}, site.submit("shop.debounced", queue="secret")),
        ]
        token = site.token("submit", queues=["orders"])
        for body, existing in jobs:
            before = site.app.get(existing)
            for answer in (
                site.post("/jobs", {**body, "arguments": {"value": 1}}, token=token),
                site.post("/jobs/batch", [{**body, "arguments": {"value": 1}}], token=token),
            ):
                assert (answer.status, answer.problem) == (403, "not-allowed")
                assert "on_conflict" in answer.json["detail"]
            assert site.app.get(existing) == before
            free = site.token("submit", types=[str(body["type"])])  # the key belongs to the type
            answer = site.post("/jobs", {**body, "arguments": {"value": 1}}, token=free)
            assert answer.json == {"id": existing, "is_new": False}
            assert site.app.get(existing).arguments == {"value": 1}

    def test_a_taken_id_tells_nothing_about_its_job(self, site: ApiSite) -> None:
        site.submit("shop.pay", id="taken", arguments={"order_id": 7})
        token = site.token("submit", "read", types=["shop.anything"])
        body = {"type": "shop.anything", "id": "taken"}
        for answer in (
            site.post("/jobs", body, token=token),
            site.post("/jobs/batch", [body], token=token),
        ):
            assert (answer.status, answer.problem) == (409, "duplicate-job")
            assert answer.json["existing_id"] == "taken"
            assert "shop.pay" not in answer.body.decode()
        assert site.app.get("taken").arguments == {"order_id": 7}

    def test_a_retry_names_no_job_of_another_queue(self, site: ApiSite) -> None:
        add_failing_handler(site.app)
        options: dict[str, Any] = {"unique": "k", "retry": {"max_attempts": 1}}
        failed = site.submit("shop.fail", delay=0, queue="orders", **options)
        with site.app.running():
            assert site.app.handle(failed).wait(PATIENCE) is JobStatus.FAILED
        hidden = site.submit("shop.fail", queue="secret", **options)
        assert hidden in site.post(f"/jobs/{failed}/retry").json["detail"]
        answer = site.post(f"/jobs/{failed}/retry", token=site.token("operate", queues=["orders"]))
        assert (answer.status, answer.problem, answer.json["job_status"]) == (409, "invalid-transition", "FAILED")
        assert "unique key" in answer.json["detail"]
        assert hidden not in answer.body.decode()

    def test_a_token_that_may_operate_only_learns_the_status_only(self, site: ApiSite) -> None:
        job_id = site.submit(arguments={"order_id": 7, "reason": "private"})
        token = site.token("operate")
        answer = site.post(f"/jobs/{job_id}/run-now", token=token)
        assert answer.json == {"id": job_id, "status": "PENDING", "is_done": True}
        reader = site.token("read")
        assert site.post(f"/jobs/{job_id}/cancel", token=reader).problem == "not-allowed"

    # -- all jobs that filters choose

    def test_jobs_are_counted_by_the_filters_of_the_list(self, site: ApiSite) -> None:
        for number in range(3):
            site.submit(arguments={"order_id": number}, delay=3600)
        site.submit(queue="other", delay=3600)
        assert site.get("/job-count").json == {"number": 4, "is_exact": True, "scanned": 0}
        assert site.get("/job-count?queue=orders&status=PENDING").json["number"] == 3
        assert site.get("/job-count?status=FAILED").json["number"] == 0
        assert site.get("/job-count?argument.order_id=1").json["number"] == 1
        token = site.token("read", queues=["other"])
        assert site.get("/job-count", token=token).json["number"] == 1
        assert site.get("/job-count?since=yesterday").problem == "invalid-value"

    def test_jobs_are_changed_by_filters_after_a_dry_run(self, site: ApiSite) -> None:
        ids = [site.submit(arguments={"order_id": number}, delay=3600) for number in range(3)]
        other = site.submit(queue="other", delay=3600)
        body = {"action": "cancel", "queue": "orders"}
        dry = site.post("/jobs/change", {**body, "dry_run": True}).json
        assert (dry["is_dry_run"], dry["total"], dry["is_exact"], dry["changed"]) == (True, 3, True, 0)
        later = site.post("/jobs/change", {"action": "reschedule", "queue": "orders", "delay": 7200}).json
        assert (later["changed"], later["next"]) == (3, None)
        assert site.app.get(ids[0]).due - site.app.get(ids[0]).created > HOUR
        changed = 0
        while True:
            answer = site.post("/jobs/change", body).json
            changed += answer["changed"]
            if answer["next"] is None:
                break
            body = {**body, "after": answer["next"]["after"], "until": answer["next"]["until"]}
        assert changed == 3
        assert {site.app.get(job_id).status for job_id in ids} == {JobStatus.CANCELED}
        assert site.app.get(other).status is JobStatus.PENDING

    def test_named_jobs_are_changed_after_a_dry_run(self, site: ApiSite) -> None:
        ids = [site.submit(arguments={"order_id": number}, delay=3600) for number in range(4)]
        other = site.submit(queue="other", delay=3600)
        body = {"action": "cancel", "ids": [ids[2], ids[0], other, "missing"]}
        assert site.post("/jobs/change", {**body, "dry_run": True}).json["total"] == 3
        token = site.token("operate", queues=["orders"])
        assert site.post("/jobs/change", body, token=token).json["changed"] == 2
        canceled = [site.app.get(job_id).status is JobStatus.CANCELED for job_id in [*ids, other]]
        assert canceled == [True, False, True, False, False]
        for wrong in ({"ids": ids, "text": "x"}, {"ids": ["a\nb"]}):
            assert site.post("/jobs/change", {"action": "cancel", **wrong}).problem == "invalid-value"

    def test_a_change_by_filters_keeps_to_the_rights_of_its_token(self, site: ApiSite) -> None:
        kept, gone = site.submit(delay=3600), site.submit(queue="other", delay=3600)
        token = site.token("operate", queues=["other"])
        assert site.post("/jobs/change", {"action": "cancel", "all": True}, token=token).json["changed"] == 1
        assert [site.app.get(each).status for each in (kept, gone)] == [JobStatus.PENDING, JobStatus.CANCELED]
        for guess in ({"text": "x"}, {"argument": {"order_id": "1"}}):
            body = {"action": "cancel", "dry_run": True, **guess}
            assert site.post("/jobs/change", body, token=token).problem == "not-allowed"

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({"action": "cancel"}, "the request chooses no jobs"),
            ({"action": "cancel", "status": "FAILED"}, "PENDING or RUNNING"),
            ({"action": "cancel", "all": True, "delay": 1}, "takes no due time"),
            ({"action": "reschedule", "all": True}, "delay or at"),
            ({"action": "retry", "all": True, "after": "PENDING:1"}, "after must be"),
            ({"action": "cancel", "all": True, "after": "PENDING:x"}, "after must be"),
        ],
    )
    def test_a_wrong_change_by_filters_is_refused(self, site: ApiSite, body: dict[str, Any], words: str) -> None:
        answer = site.post("/jobs/change", body)
        assert (answer.status, answer.problem) == (422, "invalid-value")
        assert words in answer.json["detail"]


def add_failing_handler(app: Mainspring) -> None:
    @app.job(name="shop.fail")
    def fail() -> None:
        raise RuntimeError("no")
