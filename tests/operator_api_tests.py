"""What the endpoints for operators do on every engine. `tests/unit/web` and `tests/nats` run these tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from mainspring import Mainspring, Rate, Retry
from mainspring.jobs.dead_letters import plan_replay
from mainspring.web.api import dead_letters
from tests.api_site import JSON, ApiSite, add_handlers
from tests.asgi_client import Answer, request
from tests.support import PATIENCE

NIGHTLY = {"kind": "cron", "expression": "30 2 * * *", "tz": "Europe/Berlin"}
ORDERS = {"types": ["shop.charge", "shop.cancel_order"], "queues": ["orders"]}


def add_operator_handlers(app: Mainspring) -> None:
    """Register the handlers of a small shop. Two of them fail at once."""
    add_handlers(app)
    once = Retry(max_attempts=1)

    @app.job(name="shop.charge", queue="orders", retry=once)
    def charge(order_id: int, reason: str = "unpaid") -> None:
        raise ConnectionError("the bank is closed")

    @app.job(name="shop.greet", queue="mail", retry=once)
    def greet(name: str) -> None:
        raise ConnectionError("no mail today")


def send(site: ApiSite, method: str, path: str, body: Any = None, **options: Any) -> Answer:
    """Send a request with more headers, each given as an option: `if_match='"1"'`."""
    token = options.pop("token", None) or site.admin
    headers = [JSON, *((name.replace("_", "-"), value) for name, value in options.items())]
    raw = b"" if body is None else json.dumps(body).encode()
    return request(site.asgi, f"/api/v1{path}", method=method, token=token, headers=headers, body=raw)


def put(site: ApiSite, name: str, body: dict[str, Any] | None = None, **options: Any) -> Answer:
    """Store a schedule."""
    given = {"type": "shop.cancel_order", "arguments": {"order_id": 1}, "rule": NIGHTLY} | (body or {})
    return send(site, "PUT", f"/schedules/{quote(name, safe='')}", given, **options)


def fail(site: ApiSite, *jobs: tuple[str, dict[str, Any]]) -> list[str]:
    """Submit jobs that fail for good, and return their ids in the order of failure."""
    with site.app.running():
        ids = []
        for type_, arguments in jobs:
            job_id = site.submit(type_, arguments=arguments, delay=0)
            assert site.app.handle(job_id).wait(PATIENCE) == "FAILED"
            ids.append(job_id)
    return ids


def charges(numbers: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    return [("shop.charge", {"order_id": number}) for number in numbers]


def without_request_id(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in answer.json.items() if name != "request_id"}


class ScheduleApiTests:
    """The tests of schedules. A subclass has the fixture `site`."""

    def test_a_stored_schedule_can_be_read_changed_and_deleted(self, site: ApiSite) -> None:
        stored = put(site, "night", {"priority": "BEST_EFFORT", "queue": "slow", "jitter": 2.5})
        assert stored.status == 201
        assert stored.json["is_new"]
        found = site.get("/schedules/night")
        assert found.headers["etag"] == stored.headers["etag"]
        schedule = found.json
        assert schedule["rule"] == {**NIGHTLY, "dst_gap": "shift", "dst_fold": "first"}
        assert (schedule["type"], schedule["queue"], schedule["priority"]) == (
            "shop.cancel_order",
            "slow",
            "BEST_EFFORT",
        )
        assert (schedule["arguments"], schedule["jitter"]) == ({"order_id": 1}, 2.5)
        assert (schedule["misfire"], schedule["overlap"], schedule["is_paused"]) == ("once", "skip", False)
        info = site.app.schedules.get("night")
        assert datetime.fromisoformat(schedule["next_due"]) == info.next_due
        assert [datetime.fromisoformat(date) for date in schedule["upcoming"]] == info.upcoming(3)
        again = put(site, "night", {"priority": "BEST_EFFORT", "queue": "slow", "jitter": 2.5})
        assert (again.status, again.headers["etag"]) == (200, stored.headers["etag"])
        assert not again.json["is_new"]
        every = {"kind": "every", "interval": 10.5, "anchor": "2026-01-01T00:00:00Z"}
        changed = put(site, "night", {"rule": every, "misfire": "catch-up", "catch_up": 7, "overlap": "queue"})
        assert changed.status == 200
        assert changed.headers["etag"] != stored.headers["etag"]
        schedule = site.get("/schedules/night").json
        assert (schedule["rule"], schedule["misfire"], schedule["catch_up"]) == (every, "catch-up", 7)
        assert send(site, "DELETE", "/schedules/night").json == {"name": "night", "is_changed": True}
        for answer in (site.get("/schedules/night"), send(site, "DELETE", "/schedules/night")):
            assert (answer.status, answer.problem) == (404, "schedule-not-found")

    def test_what_is_read_can_be_stored_again(self, site: ApiSite) -> None:
        fields = ("type", "arguments", "rule", "misfire", "catch_up", "overlap", "jitter", "start", "end", "queue")
        for rule in (NIGHTLY, {"kind": "every", "interval": 90.25}):
            stored = put(site, "night", {"rule": rule, "start": "2031-01-01T00:00:00+08:00"})
            schedule = site.get("/schedules/night").json
            again = send(site, "PUT", "/schedules/night", {name: schedule[name] for name in fields})
            assert (again.status, again.headers["etag"]) == (200, stored.headers["etag"])

    def test_lists_have_pages_and_filters(self, site: ApiSite) -> None:
        for number in range(5):
            type_ = "shop.cancel_order" if number % 2 else "shop.pay"
            assert put(site, f"s{number}", {"type": type_}).status == 201
        first = site.get("/schedules?limit=2").json
        assert [each["name"] for each in first["schedules"]] == ["s0", "s1"]
        rest = site.get(f"/schedules?limit=3&after={first['next']}").json
        assert [each["name"] for each in rest["schedules"]] == ["s2", "s3", "s4"]
        assert rest["next"] is None
        assert [each["name"] for each in site.get("/schedules?type=shop.pay").json["schedules"]] == [
            "s0",
            "s2",
            "s4",
        ]
        assert site.get("/schedules?queue=orders&type=shop.pay").json == {"schedules": [], "next": None}

    def test_a_schedule_is_paused_resumed_and_triggered(self, site: ApiSite) -> None:
        put(site, "night")
        for verb, is_paused in (("pause", True), ("resume", False)):
            for is_changed in (True, False):
                answer = send(site, "POST", f"/schedules/night/{verb}")
                assert answer.json == {"name": "night", "is_changed": is_changed}
            assert site.app.schedules.get("night").is_paused is is_paused
        send(site, "POST", "/schedules/night/pause")
        assert put(site, "night", {"overlap": "allow"}).json["is_paused"]
        triggered = send(site, "POST", "/schedules/night/trigger")
        assert triggered.status == 201
        job = request(site.asgi, triggered.headers["location"], token=site.admin).json
        assert (job["id"], job["schedule"]) == (triggered.json["id"], "night")
        put(site, "night", {"overlap": "skip"})
        key = {"idempotency_key": "trigger-1"}
        put(site, "other", {"overlap": "allow"})
        first, second = (send(site, "POST", "/schedules/other/trigger", **key) for _ in range(2))
        assert (first.status, first.json) == (second.status, second.json) == (201, first.json)
        assert [entry["job_id"] for entry in site.get("/schedules/other/history").json["history"]] == [
            first.json["id"]
        ]
        busy = send(site, "POST", "/schedules/night/trigger")
        assert (busy.status, busy.problem) == (409, "schedule-busy")
        history = site.get("/schedules/night/history").json["history"]
        assert [entry["kind"] for entry in history] == ["skipped", "trigger"]
        assert history[1]["job_id"] == job["id"]
        assert len(site.get("/schedules/night/history?limit=1").json["history"]) == 1

    @pytest.mark.parametrize(
        "rule", [{"kind": "every", "interval": 9.5}, {"kind": "cron", "expression": "* * * * * */5"}]
    )
    def test_a_schedule_that_recurs_too_often_is_refused(self, site: ApiSite, rule: dict[str, Any]) -> None:
        answer = put(site, "busy", {"rule": rule})
        assert (answer.status, answer.problem) == (422, "schedule-too-dense")
        assert "the least time over HTTP is 10 s" in answer.json["detail"]
        assert site.get("/schedules").json["schedules"] == []

    def test_a_change_can_be_made_conditional(self, site: ApiSite) -> None:
        refused = put(site, "night", if_match='"1-1"')
        assert (refused.status, refused.problem) == (412, "precondition-failed")
        assert put(site, "night", if_match="*").problem == "precondition-failed"
        first = put(site, "night", if_none_match="*").headers["etag"]
        assert put(site, "night", {"jitter": 1}, if_none_match="*").problem == "precondition-failed"
        second = put(site, "night", {"jitter": 1}, if_match=f'"x", {first}').headers["etag"]
        assert put(site, "night", {"jitter": 2}, if_match=first).problem == "precondition-failed"
        assert put(site, "night", {"jitter": 2}, if_match=f"W/{second}").problem == "precondition-failed"
        assert site.get("/schedules/night").json["jitter"] == 1
        send(site, "POST", "/schedules/night/pause")
        assert site.get("/schedules/night").headers["etag"] == second
        assert send(site, "DELETE", "/schedules/night", if_match=first).problem == "precondition-failed"
        assert send(site, "DELETE", "/schedules/night", if_match=second).status == 200
        site.app.schedules.list()
        third = put(site, "night").headers["etag"]
        assert third != first  # the same definition, and another schedule

    def test_a_schedule_that_another_caller_changes_meanwhile_is_checked_again(
        self, site: ApiSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the check and the change, the schedule becomes one that the caller may not change."""
        put(site, "night", {"type": "shop.charge"})
        token = site.token("operate", "read", **ORDERS)
        manager = site.app.manager()
        arrange, raced = manager.arrange, list[str]()

        def race(arrangements: Sequence[Any]) -> list[bool]:
            if not raced:
                raced.append("once")
                put(site, "night", {"type": "shop.pay"})
            return arrange(arrangements)

        for method, path in (
            ("POST", "/schedules/night/pause"),
            ("DELETE", "/schedules/night"),
            ("PUT", "/schedules/night"),
        ):
            assert put(site, "night", {"type": "shop.charge"}).status == 200
            raced.clear()
            body = {"type": "shop.charge", "arguments": {"order_id": 2}, "rule": NIGHTLY}
            with monkeypatch.context() as patch:
                patch.setattr(manager, "arrange", race)
                answer = send(site, method, path, body if method == "PUT" else None, token=token)
            assert raced
            assert answer.problem == ("not-allowed" if method == "PUT" else "schedule-not-found")
            schedule = site.get("/schedules/night").json
            assert (schedule["type"], schedule["is_paused"]) == ("shop.pay", False)

    def test_a_schedule_of_others_is_like_a_missing_one(self, site: ApiSite) -> None:
        put(site, "money", {"type": "shop.pay"})
        put(site, "orders", {"type": "shop.charge"})
        put(site, "elsewhere", {"type": "shop.charge", "queue": "other"})
        token = site.token("read", "operate", **ORDERS)
        listed = site.get("/schedules", token=token).json["schedules"]
        assert [each["name"] for each in listed] == ["orders"]
        calls = [
            ("GET", ""),
            ("GET", "/history"),
            ("DELETE", ""),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("POST", "/trigger"),
        ]
        for method, rest in calls:
            for hidden, missing in (("money", "monex"), ("elsewhere", "elsewhera")):
                answers = [
                    send(site, method, f"/schedules/{name}{rest}", token=token) for name in (hidden, missing)
                ]
                assert [answer.status for answer in answers] == [404, 404]
                texts = [json.dumps(without_request_id(answer)) for answer in answers]
                assert texts[0].replace(hidden, "X") == texts[1].replace(missing, "X")
        for name in ("money", "monex"):
            preview = site.get(f"/schedules/preview?name={name}", token=token)
            assert (preview.status, preview.problem) == (404, "schedule-not-found")
        assert [schedule.name for schedule in site.app.schedules.list()] == ["elsewhere", "money", "orders"]
        assert not any(schedule.is_paused for schedule in site.app.schedules.list())

    def test_a_schedule_is_stored_only_within_the_rights_of_the_token(self, site: ApiSite) -> None:
        put(site, "money", {"type": "shop.pay"})
        before = site.app.schedules.get("money")
        token = site.token("operate", **ORDERS)
        for name, body in (
            ("new", {"type": "shop.pay"}),
            ("new", {"type": "shop.charge", "queue": "money"}),
            ("new", {"type": "shop.unheard"}),
            ("money", {"type": "shop.charge"}),
        ):
            answer = put(site, name, body, token=token)
            assert (answer.status, answer.problem) == (403, "not-allowed"), answer.body
            assert "shop.pay" not in answer.json["detail"] or body["type"] == "shop.pay"
        assert site.app.schedules.get("money") == before
        assert put(site, "new", {"type": "shop.charge"}, token=token).status == 201
        reader = site.token("read", **ORDERS)
        assert put(site, "new", {"type": "shop.charge"}, token=reader).problem == "not-allowed"

    def test_a_token_of_one_queue_does_not_learn_which_types_exist(self, site: ApiSite) -> None:
        token = site.token("operate", queues=["orders"])
        answers = [
            put(site, "new", {"type": type_, "queue": "money"}, token=token) for type_ in ("shop.pay", "shop.pax")
        ]
        assert [(answer.status, answer.problem) for answer in answers] == [(403, "not-allowed")] * 2
        texts = [json.dumps(without_request_id(answer)) for answer in answers]
        assert texts[0].replace("shop.pay", "X") == texts[1].replace("shop.pax", "X")
        own = put(site, "new", {"type": "shop.pay"}, token=token)
        assert (own.problem, "money" in own.json["detail"]) == ("not-allowed", False)

    def test_a_wrong_definition_is_a_problem_with_a_remedy(self, site: ApiSite) -> None:
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({"type": "shop.cancel_ordr"}, "unknown-handler", "shop.cancel_order"),
            ({"arguments": {"order_id": "x"}}, "invalid-arguments", "order_id"),
            ({"arguments": {}}, "invalid-arguments", "order_id"),
            ({"rule": {"kind": "cron", "expression": "0 25 * * *"}}, "schedule-invalid", "hour is '25'"),
            ({"rule": {"kind": "cron", "expression": "@daily", "tz": "berlin"}}, "schedule-invalid", "berlin"),
            (
                {"rule": {"kind": "cron", "expression": "@daily", "tz": "../../etc/passwd"}},
                "schedule-invalid",
                "zone",
            ),
            ({"rule": {"kind": "cron", "expression": "1," * 600}}, "invalid-body", "rule.expression"),
            ({"rule": {"kind": "every", "interval": 0}}, "schedule-invalid", "interval"),
            ({"rule": {"kind": "every", "interval": 1e300}}, "invalid-value", ""),
            ({"rule": {"kind": "every"}}, "invalid-body", "interval"),
            ({"rule": "0 2 * * *"}, "invalid-body", "rule"),
            ({"misfire": "catch-up"}, "invalid-value", "catch_up"),
            ({"catch_up": 3}, "invalid-value", "catch_up"),
            ({"misfire": "catch-up", "catch_up": 10**9}, "invalid-value", "10,000"),
            ({"jitter": 1e300}, "invalid-body", "jitter"),
            ({"start": "2027-01-01T00:00:00"}, "invalid-body", "start"),
            (
                {"start": "2027-01-02T00:00:00Z", "end": "2027-01-01T00:00:00Z"},
                "invalid-value",
                "end must not be before",
            ),
            ({"queue": "a\0b"}, "invalid-value", "queue"),
            ({"queue": "q" * 201}, "invalid-value", "queue"),
            ({"interval": 5}, "invalid-body", "interval"),
        ]
        for body, problem, words in cases:
            answer = put(site, "night", body)
            assert answer.problem == problem, (body, answer.body)
            assert answer.status == 422
            assert words in answer.json["detail"], (body, answer.json["detail"])
        assert site.app.schedules.list() == []

    @pytest.mark.parametrize(
        "name",
        [
            "a/b",
            "..",
            "a.b.*.>",
            "100%",
            "%2F",
            "déjà vu",
            "a b?c#d&e=f",
            "<script>",
            "'; DROP TABLE schedules; --",
            "日本",
            "x" * 200,
        ],
    )
    def test_every_name_that_the_library_accepts_can_be_in_a_path(self, site: ApiSite, name: str) -> None:
        path = f"/schedules/{quote(name, safe='').replace('.', '%2E')}"
        assert put(site, name).json["name"] == name
        assert site.get(path).json["name"] == name
        assert site.get(f"{path}/history").json == {"name": name, "history": []}
        assert [each["name"] for each in site.get("/schedules").json["schedules"]] == [name]
        for verb in ("pause", "resume", "trigger"):
            assert send(site, "POST", f"{path}/{verb}").json["name"] == name
        assert send(site, "DELETE", path).status == 200
        assert site.app.schedules.list() == []

    @pytest.mark.parametrize("name", ["%00", "a%00b", "x" * 201, "%7F", "%C2%85"])
    def test_a_name_that_no_schedule_can_have_is_missing_and_cannot_be_stored(
        self, site: ApiSite, name: str
    ) -> None:
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/trigger")):
            answer = send(site, method, f"/schedules/{name}{rest}")
            assert (answer.status, answer.problem) == (404, "schedule-not-found")
        body = {"type": "shop.cancel_order", "arguments": {"order_id": 1}, "rule": NIGHTLY}
        assert send(site, "PUT", f"/schedules/{name}", body).problem == "invalid-value"

    def test_a_path_that_is_no_text_is_refused(self, site: ApiSite) -> None:
        assert (site.get("/schedules/%FF").status, site.get("/schedules/%FF").problem) == (400, "invalid-path")
        assert site.get("/schedules//history").problem == "not-found"

    def test_a_schedule_may_be_named_like_the_preview(self, site: ApiSite) -> None:
        assert put(site, "preview").status == 201
        assert site.get("/schedules/preview").problem == "invalid-value"
        assert [each["name"] for each in site.get("/schedules").json["schedules"]] == ["preview"]
        assert site.get("/schedules/preview?name=preview&count=1").status == 200
        assert send(site, "DELETE", "/schedules/preview").status == 200
        assert request(
            site.asgi, "/api/v1/schedules/preview", method="PATCH", token=site.admin, headers=[JSON]
        ).headers["allow"] == ("DELETE, GET, HEAD, PUT")

    # -- previews

    def test_a_preview_marks_the_night_with_a_gap_and_that_with_a_fold(self, site: ApiSite) -> None:
        night = "/schedules/preview?expression=30+2+*+*+*&tz=Europe/Berlin&count=2"
        gap = site.get(f"{night}&from=2027-03-28").json
        assert gap["dates"] == [
            {
                "local": "2027-03-28T03:30:00+02:00",
                "utc": "2027-03-28T01:30:00Z",
                "note": "moved by a DST gap from 02:30",
                "is_skipped": False,
            },
            {
                "local": "2027-03-29T02:30:00+02:00",
                "utc": "2027-03-29T00:30:00Z",
                "note": None,
                "is_skipped": False,
            },
        ]
        assert gap["rule"] == {**NIGHTLY, "dst_gap": "shift", "dst_fold": "first"}
        skipped = site.get(f"{night}&from=2027-03-27T12:00:00Z&dst_gap=skip").json["dates"]
        assert [(date["local"][:10], date["is_skipped"]) for date in skipped] == [
            ("2027-03-28", True),
            ("2027-03-29", False),
            ("2027-03-30", False),
        ]
        assert skipped[0]["note"] == "skipped: there is no 02:30"
        fold = site.get(f"{night}&from=2027-10-31&dst_fold=both").json["dates"]
        assert [(date["utc"], date["note"]) for date in fold] == [
            ("2027-10-31T00:30:00Z", "first of two 02:30"),
            ("2027-10-31T01:30:00Z", "second of two 02:30"),
        ]

    def test_a_preview_of_a_stored_schedule_has_its_bounds(self, site: ApiSite) -> None:
        put(
            site,
            "week",
            {
                "rule": {"kind": "every", "interval": 3600},
                "start": "2031-01-01T00:00:00Z",
                "end": "2031-01-01T02:30:00Z",
            },
        )
        preview = site.get("/schedules/preview?name=week").json
        assert [date["utc"] for date in preview["dates"]] == [f"2031-01-01T0{hour}:00:00Z" for hour in range(3)]
        assert preview["rule"] == {"kind": "every", "interval": 3600.0, "anchor": "2031-01-01T00:00:00Z"}
        assert not preview["is_paused"]
        send(site, "POST", "/schedules/week/pause")
        assert site.get("/schedules/preview?name=week&count=1").json["is_paused"]
        assert site.get("/schedules/preview?name=week&from=2032-01-01").json["dates"] == []

    def test_a_wrong_preview_is_a_problem(self, site: ApiSite) -> None:
        cases = {
            "": "invalid-value",
            "?expression=*+*+*+*+*&name=x": "invalid-value",
            "?name=x&tz=UTC": "invalid-value",
            "?name=x": "schedule-not-found",
            "?name=%0A": "invalid-value",
            "?expression=61+*+*+*+*": "schedule-invalid",
            "?expression=0+0+30+2+*": "schedule-invalid",
            "?expression=@daily&tz=Mars/Olympus": "schedule-invalid",
            "?expression=@daily&count=0": "invalid-query",
            "?expression=@daily&count=501": "invalid-query",
            "?expression=@daily&from=tomorrow": "invalid-value",
            "?expression=@daily&from=2027-03-28T00:00:00": "invalid-value",
            "?expression=@daily&dst_gap=both": "invalid-query",
            "?expresion=@daily": "invalid-query",
        }
        for query, problem in cases.items():
            assert site.get(f"/schedules/preview{query}").problem == problem, query
        assert "did you mean 'expression'" in site.get("/schedules/preview?expresion=1").json["detail"]

    def test_a_preview_at_the_end_of_time_has_no_dates(self, site: ApiSite) -> None:
        for since in ("9999-12-31", "9999-12-31T23:59:59-14:00"):
            answer = site.get(f"/schedules/preview?expression=@yearly&from={since}")
            assert answer.status in (200, 422), answer.body
            assert answer.status == 422 or answer.json["dates"] == []
        first = site.get("/schedules/preview?expression=@yearly&from=0001-01-01")
        assert first.status in (200, 422)


class QueueApiTests:
    """The tests of queues, workers, statistics and doctor. A subclass has the fixture `site`."""

    def test_queues_are_listed_paused_and_resumed(self, site: ApiSite) -> None:
        site.app.queue("orders", max_depth=500, submit_rate=Rate(100, per=60))
        site.submit()
        site.submit(delay=0)
        queues = {queue["name"]: queue for queue in site.get("/queues").json["queues"]}
        assert list(queues) == sorted({"mail", "money", "orders"})
        orders = queues["orders"]
        assert (orders["due"], orders["scheduled"], orders["blocked"]) == (1, 1, 0)
        assert orders["oldest_due"] >= 0
        assert (orders["max_depth"], orders["submit_rate"]) == (500, {"n": 100, "per": 60.0})
        assert (queues["money"]["due"], queues["money"]["oldest_due"], queues["money"]["max_depth"]) == (
            0,
            None,
            None,
        )
        for verb, is_paused in (("pause", True), ("resume", False)):
            for is_changed in (True, False):
                assert send(site, "POST", f"/queues/orders/{verb}").json == {
                    "name": "orders",
                    "is_paused": is_paused,
                    "is_changed": is_changed,
                }
            listed = {queue["name"]: queue for queue in site.get("/queues").json["queues"]}["orders"]
            assert (listed["is_paused"], listed["blocked"]) == (is_paused, int(is_paused))

    @pytest.mark.parametrize("name", ["a/b", "..", "ü*.>", "%2F", "q" * 200])
    def test_every_name_of_a_queue_can_be_in_a_path(self, site: ApiSite, name: str) -> None:
        path = f"/queues/{quote(name, safe='').replace('.', '%2E')}"
        assert send(site, "POST", f"{path}/pause").json["name"] == name
        assert name in [queue["name"] for queue in site.get("/queues").json["queues"]]
        assert send(site, "POST", f"{path}/resume").json["is_changed"]

    @pytest.mark.parametrize("name", ["%00", "q" * 201, "%7F"])
    def test_a_name_that_no_queue_can_have_is_refused(self, site: ApiSite, name: str) -> None:
        assert send(site, "POST", f"/queues/{name}/pause").problem == "invalid-value"
        assert site.app.manager().engine.paused_queues() == ()

    def test_a_restricted_token_sees_and_pauses_only_its_own(self, site: ApiSite) -> None:
        site.submit("shop.cancel_order", delay=0)
        site.submit("shop.anything", delay=0)
        site.submit("shop.pay", arguments={"order_id": 1})
        site.app.queue("money").pause()
        of_type = site.token("read", "operate", types=["shop.cancel_order"])
        of_queue = site.token("read", "operate", queues=["orders"])
        for token, due in ((of_type, 1), (of_queue, 2)):
            (queue,) = site.get("/queues", token=token).json["queues"]
            assert (queue["name"], queue["due"]) == ("orders", due)
            statistics = site.get("/statistics", token=token).json
            assert statistics["due"] == sum(group["due"] for group in statistics["groups"]) == due
            assert {group["queue"] for group in statistics["groups"]} == {"orders"}
            assert (statistics["paused_queues"], statistics["scheduled"]) == ([], 0)
            assert (statistics["fullest_slot"], statistics["workers"], statistics["process"]) == (None,) * 3
        assert send(site, "POST", "/queues/orders/pause", token=of_queue).json["is_changed"]
        assert site.get("/statistics", token=of_queue).json["paused_queues"] == ["orders"]
        for token, name in ((of_type, "orders"), (of_queue, "money"), (of_queue, "unheard"), (of_queue, "%00")):
            for verb in ("pause", "resume"):
                answer = send(site, "POST", f"/queues/{name}/{verb}", token=token)
                assert (answer.status, answer.problem) == (403, "not-allowed")
        assert site.app.manager().engine.paused_queues() == ("money", "orders")

    def test_statistics_count_what_the_library_counts(self, site: ApiSite) -> None:
        site.submit(delay=0)
        site.submit("shop.pay", arguments={"order_id": 1})
        fail(site, ("shop.greet", {"name": "ann"}))
        found = site.get("/statistics").json
        own = site.app.statistics()
        assert [(group["queue"], group["type"]) for group in found["groups"]] == [
            (group.queue, group.type) for group in own.groups
        ]
        for name in ("scheduled", "running", "dead_letters", "is_exact"):
            assert found[name] == getattr(own, name)
        assert (found["dead_letters"], found["scheduled"]) == (1, 1)
        assert found["fullest_slot"]["type"] == "shop.pay"
        assert found["workers"] == 0
        assert [pool["name"] for pool in found["process"]["pools"]]

    def test_workers_are_listed_within_the_rights(self, site: ApiSite) -> None:
        assert site.get("/workers").json == {"workers": []}
        with site.app.running():
            (worker,) = site.get("/workers").json["workers"]
            (own,) = site.app.workers()
            assert (worker["number"], worker["name"], worker["state"]) == (own.number, own.name, "alive")
            assert worker["types"] == sorted(own.types)
            assert worker["queues"] is None
            (seen,) = site.get("/workers", token=site.token("read", types=["shop.pay"])).json["workers"]
            assert seen["types"] == ["shop.pay"]
            assert site.get("/workers", token=site.token("read", types=["other"])).json == {"workers": []}
            assert site.get("/statistics").json["workers"] == 1

    def test_doctor_answers_tokens_that_may_operate_on_everything(self, site: ApiSite) -> None:
        fail(site, ("shop.greet", {"name": "ann"}))
        report = site.get("/doctor", token=site.token("operate")).json
        checks = {finding["check"]: finding for finding in report["findings"]}
        assert {"python", "time-zones"} <= set(checks)
        assert report["worst"] in ("ok", "info", "warning", "error")
        if not report["store"].startswith("memory:"):
            assert "mainspring dlq list" in checks["dead-letters"]["commands"]
        for token in (
            site.token("read"),
            site.token("operate", types=["shop.pay"]),
            site.token("operate", "read", queues=["orders"]),
        ):
            answer = site.get("/doctor", token=token)
            assert (answer.status, answer.problem) == (403, "not-allowed")


class AuditApiTests:
    """The tests of the audit trail. A subclass has the fixture `site`."""

    def test_each_change_over_http_has_an_entry(self, site: ApiSite) -> None:
        (letter,) = fail(site, *charges([1]))
        operator = site.app.tokens.create("ann", scopes=["operate"])
        calls: list[tuple[str, str, Any, str]] = [
            ("PATCH", f"/dead-letters/{letter}", {"changes": {"order_id": 2}}, "dead_letter.edit"),
            ("POST", "/dead-letters/replay", {"type": "shop.charge", "rate": 5}, "dead_letter.replay"),
            ("POST", "/queues/mail/pause", None, "queue.pause"),
            ("POST", "/queues/mail/resume", None, "queue.resume"),
            ("PUT", "/schedules/night", {"type": "shop.pay", "arguments": {"order_id": 1}, "rule": NIGHTLY}, ""),
            ("POST", "/schedules/night/pause", None, "schedule.pause"),
            ("POST", "/schedules/night/resume", None, "schedule.resume"),
            ("POST", "/schedules/night/trigger", None, "schedule.trigger"),
            ("DELETE", "/schedules/night", None, "schedule.remove"),
        ]
        for method, path, body, action in calls:
            answer = send(site, method, path, body, token=operator.secret)
            assert answer.status in (200, 201), answer.body
            entry = site.get("/audit?limit=1", token=operator.secret).json["entries"][0]
            assert entry["action"] == (action or "schedule.put")
            assert (entry["actor"], entry["source"]) == ("ann", "http")
            assert entry["token"] == operator.info.id
            assert entry["request_id"] == answer.headers["x-request-id"]
        count = len(site.get("/audit").json["entries"])
        for path, body in (
            ("/dead-letters/replay", {"type": "shop.charge", "dry_run": True}),
            ("/dead-letters/replay", {"ids": [letter]}),
            ("/queues/mail/resume", None),
            ("/schedules/night/trigger", None),
        ):
            send(site, "POST", path, body, token=operator.secret)  # changes nothing
        assert len(site.get("/audit").json["entries"]) == count

    def test_the_audit_trail_is_filtered_and_restricted(self, site: ApiSite) -> None:
        orders, money = site.submit(), site.submit("shop.pay", arguments={"order_id": 1})
        for job_id in (orders, money):
            assert send(site, "POST", f"/jobs/{job_id}/cancel").status == 200
        send(site, "POST", "/queues/orders/pause")
        send(site, "POST", "/queues/money/pause")

        def targets(query: str = "", token: str | None = None) -> list[str]:
            answer = site.get(f"/audit{query}", token=token)
            assert answer.status == 200, answer.body
            return [entry["target"] for entry in answer.json["entries"]]

        assert targets() == ["money", "orders", money, orders]
        page = site.get("/audit?limit=3").json
        assert [entry["target"] for entry in page["entries"]] == ["money", "orders", money]
        assert targets(f"?limit=1&after={page['next']}") == [orders]
        assert site.get("/audit?limit=4").json["next"] is None
        assert targets("?action=queue") == targets("?action=queue.pause") == ["money", "orders"]
        assert targets(f"?job={orders}") == [orders]
        assert targets("?actor=token+1&since=1h") == ["money", "orders", money, orders]
        assert targets("?actor=eve") == targets("?until=1h") == []
        assert targets(token=site.token("operate", queues=["orders"])) == ["orders", orders]
        assert targets(token=site.token("operate", types=["shop.pay"])) == [money]
        assert targets("?limit=1", token=site.token("operate", types=["shop.cancel_order"])) == [orders]
        for query in ("?action=job.cancl", "?since=yesterday", "?limit=0", "?actors=x"):
            assert site.get(f"/audit{query}").status == 422
        assert "did you mean 'job.cancel'" in site.get("/audit?action=job.cancl").json["detail"]
        assert site.get("/audit", token=site.token("read")).problem == "not-allowed"


class DeadLetterApiTests:
    """The tests of dead letters. A subclass has the fixture `site`."""

    def test_dead_letters_are_listed_in_pages(self, site: ApiSite) -> None:
        ids = fail(site, *charges(range(3)), ("shop.greet", {"name": "ann"}))
        site.submit()

        def listed(query: str = "", token: str | None = None) -> list[str]:
            return [job["id"] for job in site.get(f"/dead-letters{query}", token=token).json["jobs"]]

        assert listed() == ids
        assert listed("?newest_first=true") == ids[::-1]
        assert listed("?type=shop.charge") == ids[:3]
        assert listed("?queue=mail") == ids[3:]
        page = site.get("/dead-letters?limit=3").json
        assert listed(f"?limit=3&after={page['next']}") == ids[3:]
        assert listed(token=site.token("read", types=["shop.greet"])) == ids[3:]
        assert listed(token=site.token("read", queues=["orders"])) == ids[:3]
        assert listed("?queue=mail", token=site.token("read", queues=["orders"])) == []
        site.app.dead_letters.replay(ids[0])
        assert (listed(), listed("?replayed=yes"), listed("?replayed=all")) == (ids[1:], ids[:1], ids)
        letter = site.get(f"/dead-letters/{ids[1]}").json
        assert letter["error"].startswith("ConnectionError: the bank is closed")
        assert site.get("/dead-letters?after=x").problem == "invalid-value"

    def test_only_a_failed_job_is_a_dead_letter(self, site: ApiSite) -> None:
        job_id = site.submit()
        for answer in (
            site.get(f"/dead-letters/{job_id}"),
            send(site, "PATCH", f"/dead-letters/{job_id}", {"changes": {"order_id": 2}}),
            send(site, "POST", "/dead-letters/replay", {"ids": [job_id]}),
        ):
            assert (answer.status, answer.problem) == (409, "invalid-transition")
        for path in ("unheard", "%00", "x" * 300):
            assert site.get(f"/dead-letters/{path}").problem == "job-not-found"
            assert send(site, "PATCH", f"/dead-letters/{path}", {"without": ["x"]}).problem == "job-not-found"
        for unheard in ("unheard", "\0", "x" * 300):
            answer = send(site, "POST", "/dead-letters/replay", {"ids": [unheard]})
            assert (answer.status, answer.problem) == (404, "job-not-found")

    def test_a_dead_letter_is_edited_and_replayed(self, site: ApiSite) -> None:
        (letter,) = fail(site, *charges([1]))
        wrong = send(site, "PATCH", f"/dead-letters/{letter}", {"changes": {"order_id": "x"}})
        assert (wrong.problem, wrong.json["parameter"]) == ("invalid-arguments", "order_id")
        without_changes: list[dict[str, Any]] = [{}, {"changes": {}, "without": []}]
        for empty in without_changes:
            assert send(site, "PATCH", f"/dead-letters/{letter}", empty).problem == "invalid-value"
        assert send(site, "PATCH", f"/dead-letters/{letter}", {"change": {}}).problem == "invalid-body"
        assert site.get(f"/dead-letters/{letter}").json["arguments"] == {"order_id": 1}
        body = {"changes": {"order_id": 2, "reason": "late"}}
        edited = send(site, "PATCH", f"/dead-letters/{letter}", body)
        assert edited.json == {"id": letter, "changed": ["order_id", "reason"], "removed": []}
        edited = send(site, "PATCH", f"/dead-letters/{letter}", {"without": ["reason"]})
        assert edited.json == {"id": letter, "changed": [], "removed": ["reason"]}
        replayed = send(site, "POST", "/dead-letters/replay", {"ids": [letter]}).json
        ((pair),) = replayed["replayed"]
        assert (replayed["count"], pair["letter"], replayed["next"]) == (1, letter, None)
        job = site.get(f"/jobs/{pair['job']}").json
        assert (job["arguments"], job["origin"]) == ({"order_id": 2}, letter)
        again = send(site, "POST", "/dead-letters/replay", {"ids": [letter]})
        assert (again.status, again.problem) == (409, "invalid-transition")

    def test_a_dry_run_counts_checks_and_replays_nothing(self, site: ApiSite) -> None:
        ids = fail(site, *charges(range(3)), ("shop.greet", {"name": "ann"}))
        body = {"type": "shop.charge", "limit": 2, "changes": {"reason": "late"}, "dry_run": True}
        found = send(site, "POST", "/dead-letters/replay", body).json
        assert (found["is_dry_run"], found["count"], found["total"], found["is_exact"]) == (True, 2, 3, True)
        assert found["letters"] == [
            {
                "letter": ids[number],
                "type": "shop.charge",
                "queue": "orders",
                "arguments": {"order_id": number, "reason": "late"},
            }
            for number in range(2)
        ]
        until = {**body, "until": "2999-01-01T00:00:00Z"}
        assert send(site, "POST", "/dead-letters/replay", until).json["is_exact"] is False
        everything = send(site, "POST", "/dead-letters/replay", {"all": True, "dry_run": True}).json
        assert (everything["count"], everything["total"]) == (4, 4)
        wrong = {"all": True, "changes": {"order_id": 1}, "dry_run": True}  # shop.greet has no such parameter
        assert send(site, "POST", "/dead-letters/replay", wrong).problem == "invalid-arguments"
        assert send(site, "POST", "/dead-letters/replay", {**wrong, "dry_run": False}).status == 422
        operator = site.token("operate")
        assert send(site, "POST", "/dead-letters/replay", body, token=operator).json["letters"] is None
        assert site.app.dead_letters.count() == 4
        assert site.app.counts()["PENDING"] == 0

    def test_a_bulk_replay_goes_on_where_it_stopped_at_the_same_rate(self, site: ApiSite) -> None:
        fail(site, *charges(range(5)))
        body: dict[str, Any] = {"type": "shop.charge", "limit": 2, "rate": 0.1}
        pairs, requests = list[dict[str, str]](), 0
        following: dict[str, Any] | None = {}
        while following is not None:
            answer = send(site, "POST", "/dead-letters/replay", body | following)
            assert answer.status == 200, answer.body
            pairs += answer.json["replayed"]
            following, requests = answer.json["next"], requests + 1
        assert requests == 3
        assert len({pair["letter"] for pair in pairs}) == len({pair["job"] for pair in pairs}) == 5
        dues = [site.app.get(pair["job"]).due for pair in pairs]
        assert [later - dues[0] for later in dues] == [timedelta(seconds=10 * number) for number in range(5)]
        assert site.app.dead_letters.count() == 0

    def test_a_continued_replay_does_not_replay_its_own_jobs(self, site: ApiSite) -> None:
        fail(site, *charges(range(2)))
        first = send(site, "POST", "/dead-letters/replay", {"type": "shop.charge", "limit": 1}).json
        with site.app.running():
            assert site.app.handle(first["replayed"][0]["job"]).wait(PATIENCE) == "FAILED"
        body = {"type": "shop.charge", **first["next"]}
        second = send(site, "POST", "/dead-letters/replay", body).json
        assert (second["count"], second["next"]) == (1, None)
        assert send(site, "POST", "/dead-letters/replay", body).json["count"] == 0
        assert site.app.dead_letters.count() == 1

    def test_a_replay_needs_a_choice_and_sensible_numbers(self, site: ApiSite) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "invalid-value"),
            ({"dry_run": True}, "invalid-value"),
            ({"ids": ["x"], "all": True}, "invalid-value"),
            ({"ids": ["x"], "limit": 1}, "invalid-value"),
            ({"ids": ["x"], "type": "shop.charge"}, "invalid-value"),
            ({"ids": ["x"] * (dead_letters.MAX_REPLAYED + 1)}, "invalid-body"),
            ({"all": True, "limit": 0}, "invalid-body"),
            ({"all": True, "limit": dead_letters.MAX_REPLAYED + 1}, "invalid-body"),
            ({"all": True, "rate": 0}, "invalid-body"),
            ({"all": True, "rate": -1}, "invalid-body"),
            ({"all": True, "start": "2027-01-01"}, "invalid-body"),
            ({"all": True, "start": "9999-12-31T23:59:59Z"}, "invalid-value"),
        ]
        for body, problem in cases:
            answer = send(site, "POST", "/dead-letters/replay", body)
            assert (answer.status, answer.problem) == (422, problem), (body, answer.body)
        assert send(site, "POST", "/dead-letters/replay", {"all": True}).json["count"] == 0

    def test_a_restricted_token_replays_only_its_own(self, site: ApiSite) -> None:
        mine, other = fail(site, *charges([1]), ("shop.greet", {"name": "ann"}))
        token = site.token("operate", "read", **ORDERS)
        hidden = site.get(f"/dead-letters/{other}", token=token)
        missing = site.get("/dead-letters/unheard", token=token)
        assert (hidden.status, hidden.problem) == (missing.status, missing.problem) == (404, "job-not-found")
        for body in ({"ids": [other]}, {"ids": [mine, other]}):
            answer = send(site, "POST", "/dead-letters/replay", body, token=token)
            assert (answer.status, answer.problem) == (404, "job-not-found")
        edit = {"changes": {"name": "eve"}}
        assert send(site, "PATCH", f"/dead-letters/{other}", edit, token=token).problem == "job-not-found"
        reader = site.token("read")
        assert send(site, "PATCH", f"/dead-letters/{other}", edit, token=reader).problem == "not-allowed"
        assert send(site, "POST", "/dead-letters/replay", {"all": True}, token=reader).problem == "not-allowed"
        dry = send(site, "POST", "/dead-letters/replay", {"all": True, "dry_run": True}, token=token).json
        assert (dry["count"], dry["total"]) == (1, 1)
        for filters in ({"queue": "mail"}, {"type": "shop.greet"}, {"type": "greet"}):
            answer = send(site, "POST", "/dead-letters/replay", filters, token=token)
            assert (answer.status, answer.json["count"]) == (200, 0)
        assert site.app.dead_letters.count() == 2
        done = send(site, "POST", "/dead-letters/replay", {"all": True}, token=token).json
        assert [pair["letter"] for pair in done["replayed"]] == [mine]
        assert site.app.get(other).replayed_as is None

    def test_a_purge_deletes_failed_jobs_that_the_token_may_change(self, site: ApiSite) -> None:
        first, second, other = fail(site, *charges([1, 2]), ("shop.greet", {"name": "ann"}))
        pending = site.submit()
        token = site.token("operate", "read", **ORDERS)
        for ids, given, problem in (
            ([other], token, "job-not-found"),
            ([first, other], token, "job-not-found"),
            (["unheard"], None, "job-not-found"),
            (["\0"], None, "job-not-found"),
            ([first, pending], None, "invalid-transition"),
            ([first], site.token("read"), "not-allowed"),
        ):
            assert send(site, "POST", "/dead-letters/purge", {"ids": ids}, token=given).problem == problem
        assert send(site, "POST", "/dead-letters/purge", {"ids": []}).status == 422
        assert send(site, "POST", "/dead-letters/purge", {"ids": ["x"] * 501}).status == 422
        assert site.app.dead_letters.count() == 3
        purged = send(site, "POST", "/dead-letters/purge", {"ids": [first, second, first]}, token=token)
        assert purged.json == {"count": 2}
        assert site.get(f"/jobs/{first}").problem == "job-not-found"
        assert site.app.dead_letters.count() == 1
        assert site.get("/audit?action=dead_letter.purge").json["entries"][0]["count"] == 2

    def test_a_letter_that_another_caller_has_replayed_meanwhile_is_named(
        self, site: ApiSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = fail(site, *charges([1, 2]))
        plan = plan_replay

        def race(*args: Any, **options: Any) -> Any:
            found = plan(*args, **options)
            site.app.dead_letters.replay(first)
            return found

        monkeypatch.setattr(dead_letters, "plan_replay", race)
        answer = send(site, "POST", "/dead-letters/replay", {"ids": [first, second]}).json
        assert (answer["count"], answer["left_out"]) == (1, [first])
        assert answer["replayed"][0]["letter"] == second
