"""The pages of schedules: list, calendar, coming dates, form with a preview, actions and rights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest

from mainspring import Cron, Every, Mainspring, Retry
from mainspring.testing import time_travel
from mainspring.testing.time_travel import TimeTravel
from tests.asgi_client import Answer
from tests.dashboard_client import DashboardBrowser, visible_text

START = datetime(2027, 3, 26, 12, tzinfo=UTC)
NEW = {
    "name": "nightly",
    "type": "shop.report",
    "kind": "cron",
    "expression": "30 2 * * *",
    "tz": "Europe/Berlin",
    "arguments": '{"customer": "ann"}',
}


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


@pytest.fixture(autouse=True)
def travel(app: Mainspring) -> Iterator[TimeTravel]:
    @app.job(name="shop.report", queue="reports", retry=Retry(max_attempts=1))
    def report(customer: str = "all") -> None:
        if customer == "eve":
            raise ValueError("<b>no eve</b>")

    @app.job(name="shop.pay", queue="money", redact=("card",))
    def pay(card: str = "") -> None: ...

    with time_travel(app, start=START) as travel:
        app.schedules.put("nightly-report", report, Cron("30 2 * * *", tz="Europe/Berlin"))
        app.schedules.put("broken", report, Every(3600), arguments={"customer": "eve"})
        app.schedules.put("payments", pay, Every(1800), arguments={"card": "4111-1111"})
        yield travel


def problem_of(answer: Answer) -> str:
    found = re.search(r'<div class="note error" role="alert">(.*?)</div>', answer.body.decode(), re.DOTALL)
    return "" if found is None else found[1]


def test_the_list_has_next_dates_and_strips(app: Mainspring, travel: TimeTravel) -> None:
    travel.fast_forward(hours=3)
    browser = DashboardBrowser(app)
    page = browser.get("/schedules").body.decode()
    text = visible_text(browser.get("/schedules"))
    assert "nightly-report 30 2 * * * Europe/Berlin in 10 h Sat 03-27 02:30 CET none yet" in text
    assert page.count('class="outcome failed"') == 3
    assert page.count('class="outcome completed"') == 6
    assert "No schedules match" in browser.text("/schedules?type=shop.nothing")
    assert "broken" not in browser.text("/schedules?queue=money")


def test_a_schedule_shows_dates_in_both_zones_with_marks_and_a_calendar(
    app: Mainspring, travel: TimeTravel
) -> None:
    travel.fast_forward(days=1)
    browser = DashboardBrowser(app)
    text = browser.text("/schedules/nightly-report?zone=America%2FNew_York")
    assert "America/New_York (yours)" in text
    assert "Sun 03-28 03:30 CEST moved by a DST gap from 02:30 Sat 03-27 21:30 EDT" in text
    assert "Sun 03-28 DST" in text
    assert "1 completed" in text
    assert "1 planned" in text
    browser.cookies["mainspring_zone"] = "Asia%2FTaipei"
    assert "Asia/Taipei (yours)" in browser.text("/schedules/nightly-report")
    browser.cookies["mainspring_zone"] = "No%2FWhere"
    assert "UTC (yours)" in browser.text("/schedules/nightly-report")


def test_the_history_names_the_error_and_escapes_it(app: Mainspring, travel: TimeTravel) -> None:
    travel.fast_forward(hours=2)
    body = DashboardBrowser(app).get("/schedules/broken").body.decode()
    assert "ValueError: &lt;b&gt;no eve&lt;/b&gt;" in body
    assert "<b>no eve" not in body


def test_actions_change_the_schedule_and_are_audited(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    base = "/schedules/nightly-report"
    assert browser.note(browser.post(f"{base}/pause", {"next": base})) == "Paused schedule nightly-report."
    assert browser.note(browser.post(f"{base}/pause")) == "Schedule nightly-report was paused already."
    assert "once it is resumed" in browser.text(base)
    assert browser.note(browser.post(f"{base}/resume")) == "Resumed schedule nightly-report."
    assert browser.note(browser.post(f"{base}/resume")) == "Schedule nightly-report was not paused."
    note = browser.note(browser.post(f"{base}/trigger"))
    assert app.get(note.split()[-1].rstrip(".")).schedule == "nightly-report"
    assert "Remove nightly-report?" in browser.text(f"{base}/remove")
    assert [schedule.name for schedule in app.schedules.list()] == ["broken", "nightly-report", "payments"]
    assert browser.note(browser.post(f"{base}/remove")) == "Removed schedule nightly-report. Its jobs stay."
    assert [schedule.name for schedule in app.schedules.list()] == ["broken", "payments"]
    assert browser.get(base).status == 404
    actions = [entry.action for entry in app.audit()]
    assert actions == ["schedule.remove", "schedule.trigger", "schedule.resume", "schedule.pause"]
    assert {entry.actor for entry in app.audit()} == {browser.name}


def test_the_form_stores_a_schedule(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    assert "shop.report" in browser.get("/new-schedule").body.decode()
    answer = browser.post("/new-schedule", {**NEW, "overlap": "queue", "jitter": "5", "start": "2027-04-01T00:00"})
    assert answer.headers["location"] == "/schedules/nightly"
    assert browser.note(answer) == "Stored schedule nightly."
    stored = app.schedules.get("nightly")
    assert stored.rule == Cron("30 2 * * *", tz="Europe/Berlin")
    assert (stored.arguments, str(stored.overlap)) == ({"customer": "ann"}, "queue")
    assert stored.jitter.total_seconds() == 5
    assert stored.start == datetime(2027, 4, 1, tzinfo=UTC)
    again = browser.post("/new-schedule", NEW)
    assert again.status == 422
    assert "If-None-Match excludes it" in problem_of(again)
    answer = browser.post("/new-schedule", {**NEW, "name": "often", "kind": "every", "interval": "90"})
    assert browser.note(answer) == "Stored schedule often."
    assert app.schedules.get("often").rule == Every(90, anchor=app.schedules.get("often").rule.anchor)  # type: ignore[union-attr]


def test_the_form_of_a_stored_schedule_has_its_values_and_notices_other_changes(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    body = browser.get("/schedules/broken/edit").body.decode()
    assert 'name="interval" type="text" value="3600"' in body
    assert "&#34;customer&#34;: &#34;eve&#34;" in body
    found = re.search(r'name="version" value="([^"]*)"', body)
    assert found is not None
    version = found[1].replace("&#34;", '"')
    fields = {"type": "shop.report", "kind": "every", "interval": "7200", "version": version}
    assert browser.note(browser.post("/schedules/broken/edit", fields)) == "Changed schedule broken."
    assert app.schedules.get("broken").rule.interval.total_seconds() == 7200  # type: ignore[union-attr]
    late = browser.post("/schedules/broken/edit", fields)
    assert late.status == 422
    assert "was changed or removed meanwhile" in problem_of(late)


def test_the_form_of_a_stored_schedule_sends_its_values_back_unchanged(app: Mainspring) -> None:
    customer = "eve \u2764\ufe0f \u202e\x07" + "x" * 30_000

    @app.job(name="shop.long")
    def long(customer: str) -> None: ...

    app.schedules.put("long", long, Every(1_234_567.25), arguments={"customer": customer}, jitter=1_234_567)
    browser = DashboardBrowser(app)
    body = browser.get("/schedules/long/edit").body.decode()
    inputs = re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]*)"', body)
    sent = {name: unescape(value) for name, value in inputs if name in ("version", "interval", "jitter")}
    found = re.search(r'<textarea[^>]* name="arguments"[^>]*>(.*?)</textarea>', body, re.DOTALL)
    assert found is not None
    before = app.schedules.get("long")
    fields = {"type": "shop.long", "kind": "every", "arguments": unescape(found[1]), **sent}
    assert browser.note(browser.post("/schedules/long/edit", fields)) == "Changed schedule long."
    after = app.schedules.get("long")
    assert after.arguments == before.arguments == {"customer": customer}
    assert after.jitter == before.jitter
    assert after.rule.interval == before.rule.interval  # type: ignore[union-attr]


WRONG: list[tuple[dict[str, str], str]] = [
    ({"name": ""}, "The schedule has no name; write one"),
    ({"type": "shop.unknown"}, "shop.unknown"),
    ({"expression": "61 * * * *"}, "minute is"),
    ({"expression": "* * * * * *"}, "the least time over HTTP"),
    ({"tz": "Europe/Berlinn"}, "Europe/Berlin"),
    ({"arguments": "{"}, "The arguments are no JSON"),
    ({"arguments": '{"stranger": 1}'}, "stranger"),
    ({"kind": "every"}, "The interval is empty"),
    ({"kind": "every", "interval": "-1"}, "write a positive number"),
    ({"misfire": "catch-up"}, "catch_up"),
    ({"jitter": "much"}, "The jitter is"),
    ({"start": "tomorrow"}, "The start is"),
    ({"name": "bad\x00name"}, "name"),
]
"""Wrong values of fields, and a part of the error."""


def test_a_wrong_form_is_shown_again_with_what_was_typed(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    for fields, problem in WRONG:
        answer = browser.post("/new-schedule", {**NEW, **fields})
        assert answer.status == 422, (fields, answer.body[-2000:])
        assert problem in problem_of(answer), fields
        assert 'value="Europe/Berlin' in answer.body.decode()
    assert len(app.schedules.list()) == 3


def test_a_preview_works_without_the_script_and_alone(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    answer = browser.post("/new-schedule", {**NEW, "do": "preview"})
    assert answer.status == 200
    assert "Sat 03-27 02:30 CET" in visible_text(answer)
    assert "moved by a DST gap from 02:30" in visible_text(answer)
    assert len(app.schedules.list()) == 3
    part = browser.get("/schedule-preview?expression=30+2+*+*+*&tz=Europe/Berlin")
    assert "<html" not in part.body.decode()
    assert "moved by a DST gap" in visible_text(part)
    assert "there is no time zone" in browser.text("/schedule-preview?expression=30+2+*+*+*&tz=Mars")
    assert "Write an expression" in browser.text("/schedule-preview?expression=+")
    assert DashboardBrowser(app, "read").get("/schedule-preview?expression=@daily").status == 200


HOSTILE = [
    ",".join(["0-59/1"] * 200) + " * * * *",
    "0-99999999999 * * * *",
    "0/1 0/1 1-31/1 JAN-DEC/1 SUN-SAT/1",
    "* * " * 50_000,
    "0 0 30 2 *",
    "9" * 900 + " * * * *",
    "<script>alert(1)</script> * * * *",
    "0 0 29 2 MON",
]


@pytest.mark.long
def test_a_hostile_expression_is_answered_shortly(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    for expression in HOSTILE:
        for fields in ({"do": "preview"}, {"name": ""}):
            answer = browser.post("/new-schedule", {**NEW, "expression": expression, **fields})
            assert answer.status in (200, 422), expression[:50]
            assert "<script>alert" not in answer.body.decode()
            assert len(answer.body) < 3 * len(expression) + 100_000


def test_rights_are_checked_where_the_action_is_done(app: Mainspring) -> None:
    reader = DashboardBrowser(app, "read")
    assert "Trigger" not in reader.text("/schedules")
    assert "New schedule" not in reader.text("/schedules")
    assert "Trigger now" not in reader.text("/schedules/broken")
    assert reader.get("/new-schedule").status == 403
    for action in ("pause", "resume", "trigger", "remove", "edit"):
        assert reader.post(f"/schedules/broken/{action}", {"do": "store"}).status == 403
    own = DashboardBrowser(app, "read", "operate", types=["shop.pay"])
    assert "broken" not in own.text("/schedules")
    assert own.get("/schedules/broken").status == 404
    assert own.get("/schedules/broken/edit").status == 404
    for action in ("pause", "trigger", "remove"):
        assert "There is no schedule" in own.note(own.post(f"/schedules/broken/{action}"))
    answer = own.post("/new-schedule", {**NEW, "name": "mine"})
    assert answer.status == 422
    assert not app.schedules.get("broken").is_paused
    operator = DashboardBrowser(app, "operate")
    assert operator.get("/schedules").status == 403
    assert len(app.schedules.list()) == 3
    assert not app.audit()


def test_redacted_arguments_do_not_appear(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    for path in ("/schedules", "/schedules/payments", "/schedules/payments/edit"):
        assert "4111" not in browser.get(path).body.decode()
    assert "[redacted]" in browser.text("/schedules/payments")


def test_forms_without_the_csrf_token_change_nothing(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/new-schedule", NEW),
        *[(f"/schedules/broken/{action}", {}) for action in ("pause", "trigger", "remove", "edit")],
    ]
    for path, fields in calls:
        assert browser.post(path, fields, csrf="").status == 403
    assert [schedule.is_paused for schedule in app.schedules.list()] == [False] * 3
    assert not app.audit()


def test_names_with_slashes_and_markup_have_pages(app: Mainspring) -> None:
    name = 'a/b?c="<i>&#38;'
    browser = DashboardBrowser(app, root_path="/ops")
    answer = browser.post("/new-schedule", {**NEW, "name": name})
    assert answer.headers["location"].startswith("/ops/schedules/a%2Fb%3Fc")
    page = browser.get(answer.headers["location"].removeprefix("/ops"))
    assert page.status == 200
    assert "<i>" not in page.body.decode().replace("<i class", "")
    assert browser.note(browser.post("/schedules/a%2Fb%3Fc=%22%3Ci%3E&%2338;/pause")) == f"Paused schedule {name}."


def test_an_empty_store_says_what_to_do() -> None:
    with Mainspring("memory://") as app:
        browser = DashboardBrowser(app)
        assert "A schedule submits a job again and again" in browser.text("/schedules")
        assert "No handler to schedule" in browser.text("/new-schedule")
