"""The list of jobs, the page of a job, bulk changes, replays and the submit form, without a script."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mainspring import JobStatus, Mainspring, Retry
from mainspring.jobs import bulk_changes
from mainspring.security.asgi_types import AsgiMessage
from mainspring.testing import TimeTravel, time_travel
from mainspring.web.dashboard import jobs_page
from tests.asgi_client import Answer
from tests.dashboard_client import DashboardBrowser, visible_text
from tests.support import PATIENCE

HOUR = 3_600
START = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\u202e\x00"


class Shop:
    """An application with handlers, and the work that their failures are controlled by."""

    def __init__(self, app: Mainspring) -> None:
        self.app = app
        self.is_down = True

        @app.job(name="shop.ship", queue="orders", search="order_id", retry=Retry(max_attempts=1))
        def ship(order_id: int, note: str = "none", secret: str = "") -> int:
            """Ship an order."""
            if self.is_down:
                try:
                    raise KeyError(order_id)
                except KeyError as error:
                    raise ValueError(f"{note} {order_id}") from error
            return order_id * 2

        @app.job(name="mail.send", queue="mail", redact="body")
        def send(to: str, body: str = "") -> None: ...

        self.ship, self.send = ship, send


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Mainspring("memory://") as app:
        yield Shop(app)


@pytest.fixture
def running() -> Iterator[tuple[Shop, TimeTravel]]:
    with Mainspring("memory://") as app:
        shop = Shop(app)
        with time_travel(app, start=START) as travel:
            yield shop, travel


def links_of(answer: Answer) -> list[str]:
    return [unescape(each) for each in re.findall(r'href="([^"]*)"', answer.body.decode())]


def hidden_of(answer: Answer, action: str) -> dict[str, str]:
    """Return the hidden fields of the form with this action."""
    form = re.search(
        rf'<form[^>]*method="post"[^>]*action="{re.escape(action)}".*?</form>', answer.body.decode(), re.DOTALL
    )
    assert form is not None, action
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form[0])
    return {unescape(name): unescape(value) for name, value in found}


# -- the list


def test_jobs_are_listed_newest_first_with_bounded_counts(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        shop.ship.options(delay=HOUR, id=f"order-{number}").submit(number)
    shop.app.cancel("order-1")
    browser = DashboardBrowser(shop.app)
    text = browser.text("/jobs")
    assert text.index('"order_id": 2') < text.index('"order_id": 0')
    assert "All 3 Pending 2 Running 0 Completed 0 Failed 0 Canceled 1" in text
    monkeypatch.setattr(bulk_changes, "MAX_COUNTED", 2)
    assert "All ≥ 2 Pending 2" in browser.text("/jobs")
    assert "order_id" not in browser.text("/jobs?status=COMPLETED")
    oldest = browser.text("/jobs?order=oldest")
    assert oldest.index('"order_id": 0') < oldest.index('"order_id": 2')


def test_pages_follow_each_other_by_position(shop: Shop) -> None:
    shop.ship.options(delay=HOUR).submit_many([{"order_id": number} for number in range(60)])
    browser = DashboardBrowser(shop.app)
    first = browser.get("/jobs?limit=25")
    shop.ship.options(delay=HOUR).submit(99)
    seen = re.findall(r'"order_id": (\d+)', visible_text(first))
    page = first
    while (following := [link for link in links_of(page) if "after=" in link]) != []:
        page = browser.get(following[0])
        seen += re.findall(r'"order_id": (\d+)', visible_text(page))
    assert seen == [str(number) for number in reversed(range(60))]
    assert "First page" in visible_text(page)


def test_filters_are_in_the_address_and_empty_ones_are_not(shop: Shop) -> None:
    for number in range(3):
        shop.ship.options(delay=HOUR).submit(number, "fragile" if number == 1 else "plain")
    shop.send.options(delay=HOUR).submit("a@example.org")
    browser = DashboardBrowser(shop.app)
    sent = "/jobs?status=&text=&type=shop.ship&queue=&since=1h&argument_name=order_id&argument_value=2"
    answer = browser.get(sent)
    assert answer.status == 303
    assert parse_qs(urlsplit(answer.headers["location"]).query) == {
        "type": ["shop.ship"],
        "since": ["1h"],
        "argument.order_id": ["2"],
    }
    found = browser.get(answer.headers["location"])
    assert re.findall(r'"order_id": (\d+)', visible_text(found)) == ["2"]
    assert "/jobs?type=shop.ship&since=1h" in links_of(found)  # removes the filter
    assert re.findall(r'"order_id": (\d+)', browser.text("/jobs?text=FRAGILE")) == ["1"]
    assert "Read 4 jobs" in browser.text("/jobs?text=fragile")
    assert "a@example.org" in browser.text("/jobs?queue=mail")
    assert "No job matches" in browser.text("/jobs?argument.order_id=9")


def test_times_of_filters_are_written_as_people_do(shop: Shop) -> None:
    shop.ship.options(delay=HOUR).submit(1)
    browser = DashboardBrowser(shop.app)
    answer = browser.get("/jobs?since=2020-01-01+12:30&until=5m+ago")
    assert answer.headers["location"] == "/jobs?since=2020-01-01T12%3A30%3A00Z&until=5m"
    assert "No job matches" in browser.text(answer.headers["location"])
    assert "order_id" in browser.text("/jobs?since=2020-01-01T12%3A30%3A00Z")
    assert browser.get("/jobs?since=2020-01-01T12:30:00%2B02:00").status == 200


def test_a_search_says_how_far_it_has_looked(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.jobs.search.MAX_SCANNED", 5)
    shop.ship.options(delay=HOUR).submit(1, "needle")
    shop.ship.options(delay=HOUR).submit_many([{"order_id": number} for number in range(2, 12)])
    browser = DashboardBrowser(shop.app)
    page = browser.get("/jobs?text=needle")
    assert "Nothing found so far The search has read 5 jobs." in visible_text(page)
    (further,) = [link for link in links_of(page) if "after=" in link]
    (further,) = [link for link in links_of(browser.get(further)) if "after=" in link]
    assert '"note": "needle"' in browser.text(further)


@pytest.mark.parametrize("query", ["since=yesterday", "after=nonsense", "status=NONE", "text=%00"])
def test_a_wrong_filter_is_explained_on_the_page(shop: Shop, query: str) -> None:
    answer = DashboardBrowser(shop.app).get(f"/jobs?{query}")
    assert answer.status == 200
    assert 'class="note error"' in answer.body.decode()


def test_empty_lists_say_what_to_do(shop: Shop) -> None:
    assert "There are no jobs yet" in DashboardBrowser(shop.app).text("/jobs")
    text = DashboardBrowser(shop.app, "read").text("/jobs")
    assert "mainspring submit" in text
    assert "Submit a job" not in text


def test_a_restricted_token_sees_its_own_jobs_and_counts(shop: Shop) -> None:
    shop.ship.options(delay=HOUR).submit(1)
    shop.send.options(delay=HOUR).submit("a@example.org")
    text = DashboardBrowser(shop.app, "read", queues=["mail"]).text("/jobs")
    assert "All 1 Pending 1" in text
    assert "shop.ship" not in DashboardBrowser(shop.app, "read", types=["mail.send"]).get("/jobs").body.decode()


# -- a job


def test_a_dead_letter_shows_its_attempts_and_can_be_retried(running: tuple[Shop, TimeTravel]) -> None:
    shop, travel = running
    job_id = shop.ship.submit(7).id
    travel.settle()
    browser = DashboardBrowser(shop.app)
    text = browser.text(f"/jobs/{job_id}")
    for words in (
        "Attempt 1 failed",
        "ValueError: none 7",
        "caused by KeyError: 7",
        "Given up: it is a dead letter",
    ):
        assert words in text
    shop.is_down = False
    assert browser.note(browser.post(f"/jobs/{job_id}/retry", {"next": f"/jobs/{job_id}"})) == (
        f"Job {job_id} runs again."
    )
    travel.settle()
    text = browser.text(f"/jobs/{job_id}")
    assert "Attempt 2 completed" in text
    assert "Result 14" in text
    assert [entry.action for entry in shop.app.audit()][:1] == ["job.retry"]


def test_a_scheduled_job_is_run_rescheduled_and_canceled(shop: Shop) -> None:
    job_id = shop.ship.options(delay=HOUR, id="order/42 é").submit(1).id
    browser = DashboardBrowser(shop.app)
    path = "/jobs/order%2F42%20%C3%A9"
    text = browser.text(path)
    assert "This job is due at" in text
    assert text.index("Run now") < text.index("Cancel")
    assert browser.note(browser.post(f"{path}/reschedule", {"when": "2h", "next": path})).startswith("Rescheduled")
    assert "which is no time" in browser.note(browser.post(f"{path}/reschedule", {"when": "later", "next": path}))
    assert (
        "the new due time is empty"
        in browser.note(browser.post(f"{path}/reschedule", {"when": "", "next": path})).lower()
    )
    assert (shop.app.get(job_id).due - shop.app.get(job_id).created).total_seconds() > 1.9 * HOUR
    assert "is due now" in browser.note(browser.post(f"{path}/run-now", {"next": path}))
    assert "Canceled job" in browser.note(browser.post(f"{path}/cancel", {"next": path}))
    assert "CANCELED" in browser.note(browser.post(f"{path}/run-now", {"next": path}))
    assert "Run now" not in browser.text(path)


def test_a_paused_queue_can_be_resumed_from_the_job(shop: Shop) -> None:
    job_id = shop.ship.submit(1).id
    shop.app.queue("orders").pause()
    browser = DashboardBrowser(shop.app)
    assert "Resume queue orders" in browser.text(f"/jobs/{job_id}")
    assert "paused" in browser.text("/jobs")
    assert browser.note(browser.post(f"/jobs/{job_id}/resume-queue", {"next": f"/jobs/{job_id}"})) == (
        "Resumed queue orders."
    )
    assert not shop.app.queue("orders").is_paused
    assert "no worker is running" in browser.text(f"/jobs/{job_id}")


def test_jobs_are_linked_with_each_other(running: tuple[Shop, TimeTravel]) -> None:
    shop, travel = running
    shop.is_down = False
    job_id = shop.ship.options(then=shop.send.bind(to="a@example.org")).submit(1).id
    travel.settle()
    (follower,) = shop.app.jobs(type="mail.send")
    browser = DashboardBrowser(shop.app)
    assert f"/jobs/{follower.id}" in links_of(browser.get(f"/jobs/{job_id}"))
    assert f"/jobs/{job_id}" in links_of(browser.get(f"/jobs/{follower.id}"))
    restricted = DashboardBrowser(shop.app, "read", types=["shop.ship"])
    assert follower.id not in restricted.get(f"/jobs/{job_id}").body.decode()


def test_redacted_arguments_are_not_shown(shop: Shop) -> None:
    job_id = shop.send.options(delay=HOUR).submit("a@example.org", "very secret").id
    browser = DashboardBrowser(shop.app)
    for path in ("/jobs", f"/jobs/{job_id}", f"/submit?type=mail.send&copy={job_id}"):
        page = browser.get(path).body.decode()
        assert "a@example.org" in page
        assert "very secret" not in page


def test_a_job_that_one_may_not_read_does_not_exist(shop: Shop) -> None:
    job_id = shop.ship.options(delay=HOUR).submit(1).id
    browser = DashboardBrowser(shop.app, "read", "operate", queues=["mail"])
    assert browser.get(f"/jobs/{job_id}").status == browser.get("/jobs/none").status == 404
    browser.get("/jobs")
    browser.post(f"/jobs/{job_id}/cancel", {"next": "/jobs"})
    assert shop.app.get(job_id).status is JobStatus.PENDING


# -- rights and forms of other pages

WRITES = ("cancel", "retry", "run-now", "reschedule", "resume-queue", "replay")


def test_actions_need_the_scope_operate_and_the_csrf_token(shop: Shop) -> None:
    job_id = shop.ship.options(delay=HOUR).submit(1).id
    before = shop.app.get(job_id)
    reader, operator = DashboardBrowser(shop.app, "read"), DashboardBrowser(shop.app, "read", "operate")
    page = reader.get(f"/jobs/{job_id}").body.decode()
    assert "/cancel" not in page
    assert "Reschedule" not in page
    operator.get("/jobs")
    reader.get("/jobs")
    for path in [f"/jobs/{job_id}/{verb}" for verb in WRITES] + ["/bulk", "/submit"]:
        fields = {"when": "1s", "action": "cancel", "type": "shop.ship", "argument.order_id": "1", "do": "replay"}
        assert reader.post(path, fields).status == 403, path
        assert operator.post(path, fields, csrf="0" * 64).status == 403, path
        assert operator.send(path, fields).status == 403, path
    assert operator.post("/submit", {"type": "shop.ship", "argument.order_id": "1"}).status == 403
    assert shop.app.get(job_id) == before
    assert len(shop.app.jobs()) == 1


def test_pages_need_their_scopes(shop: Shop) -> None:
    table = {
        "/jobs": {"read", "admin"},
        "/bulk?action=cancel&queue=x": {"operate", "admin"},
        "/submit": {"submit", "admin"},
    }
    for scope in ("read", "submit", "operate", "work", "admin"):
        browser = DashboardBrowser(shop.app, scope)
        for path, allowed in table.items():
            assert browser.get(path).status == (200 if scope in allowed else 403), (scope, path)


def test_pages_have_no_inline_scripts_and_hostile_content_stays_text(running: tuple[Shop, TimeTravel]) -> None:
    shop, travel = running
    job_id = shop.ship.submit(1, HOSTILE).id
    huge = shop.ship.submit(2, "x" * 1_000_000).id
    travel.settle()
    browser = DashboardBrowser(shop.app)
    paths = ["/jobs", f"/jobs?text={HOSTILE[:20]}", f"/jobs/{job_id}", f"/jobs/{job_id}/replay", f"/jobs/{huge}"]
    paths += [f"/jobs/{huge}/replay", f"/submit?type=shop.ship&copy={job_id}", "/bulk?action=retry&type=shop.ship"]
    for path in paths:
        answer = browser.get(path)
        page = answer.body.decode()
        assert answer.status == 200, path
        assert len(page) < 100_000, path
        assert "<script>" not in page
        assert not re.search(r"<[^>]*\s(style|on\w+)=", page), path
        assert "\x00" not in page
    assert "⟨U+202E⟩" in browser.text(f"/jobs/{job_id}")
    assert "cut: 1,0" in browser.text(f"/jobs/{huge}")
    assert "too long for this form" in browser.text(f"/jobs/{huge}/replay")


# -- bulk changes


def test_a_bulk_change_counts_first_and_then_goes_on_in_steps(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.ship.options(delay=HOUR).submit_many([{"order_id": number} for number in range(7)])
    shop.send.options(delay=HOUR).submit("a@example.org")
    browser = DashboardBrowser(shop.app, "read", "operate")
    (cancel,) = [link for link in links_of(browser.get("/jobs?type=shop.ship")) if "action=cancel" in link]
    page = browser.get(cancel)
    assert "7 jobs would be canceled." in visible_text(page)
    assert shop.app.counts()["CANCELED"] == 0
    late = shop.ship.options(delay=HOUR).submit(99).id
    monkeypatch.setattr(jobs_page, "CHANGE_SECONDS", 0.0)
    monkeypatch.setattr(bulk_changes.change_jobs, "__kwdefaults__", {"due": None, "after": None, "limit": 3})
    seen = []
    for _ in range(5):
        page = browser.send("/bulk", hidden_of(page, "/bulk"))
        assert page.status == 200
        seen.append(re.search(r"(\d+) jobs? (was|were) canceled", visible_text(page))[1])  # type: ignore[index]
        if "Continue" not in visible_text(page):
            break
        assert "data-continue" in page.body.decode()
    assert (seen, visible_text(page).count("Done")) == (["3", "6", "7"], 1)
    assert shop.app.get(late).status is JobStatus.PENDING
    assert shop.app.counts() == {"PENDING": 2, "RUNNING": 0, "COMPLETED": 0, "FAILED": 0, "CANCELED": 7}


def test_a_bulk_reschedule_needs_a_time(shop: Shop) -> None:
    job_id = shop.ship.options(delay=HOUR).submit(1).id
    browser = DashboardBrowser(shop.app)
    fields = hidden_of(browser.get("/bulk?action=reschedule&queue=orders"), "/bulk")
    answer = browser.send("/bulk", {**fields, "when": ""})
    assert (answer.status, "the new due time is empty" in visible_text(answer)) == (422, True)
    assert "Reschedule 1 job" in visible_text(answer)
    answer = browser.send("/bulk", {**fields, "when": "2031-01-02T03:04Z"})
    assert "1 job was rescheduled" in visible_text(answer)
    assert shop.app.get(job_id).due.year == 2031


def test_a_bulk_change_keeps_to_rights_and_unknown_actions_are_refused(shop: Shop) -> None:
    shop.ship.options(delay=HOUR).submit(1)
    shop.send.options(delay=HOUR).submit("a@example.org")
    browser = DashboardBrowser(shop.app, "read", "operate", queues=["mail"])
    page = browser.get("/bulk?action=cancel&since=1d")
    fields = hidden_of(page, "/bulk")
    since, until = (datetime.fromisoformat(fields[name]) for name in ("since", "until"))
    assert (until - since).total_seconds() == pytest.approx(86_400, abs=1)  # later steps see the same jobs
    assert "1 job would be canceled" in visible_text(page)
    browser.send("/bulk", hidden_of(page, "/bulk"))
    assert shop.app.counts()["CANCELED"] == 1
    assert browser.get("/bulk?action=explode").status == 422
    assert "No job would be retried" in browser.text("/bulk?action=retry&queue=mail")


def test_selected_jobs_are_counted_first_and_then_changed(shop: Shop) -> None:
    ids = shop.ship.options(delay=HOUR).submit_many([{"order_id": number} for number in range(5)])
    done = shop.ship.options(delay=HOUR).submit(9).id
    shop.app.cancel(done)
    browser = DashboardBrowser(shop.app, "read", "operate")
    page = browser.get("/jobs?type=shop.ship&order=oldest")
    boxes = re.findall(r'<input type="checkbox" name="id" value="([^"]*)" form="selected"', page.body.decode())
    assert boxes == [*ids, done]
    fields = hidden_of(page, "/bulk")
    assert fields.pop("do") == "check"
    chosen = [ids[0], ids[3], done, "no-such-job"]
    page = browser.send("/bulk", {**fields, "do": "check", "action": "cancel", "id": chosen})
    text = visible_text(page)
    assert "Cancel 4 selected jobs" in text
    assert "2 jobs would be canceled" in text
    assert "The other 2 of the selected jobs" in text
    assert shop.app.counts()["CANCELED"] == 1
    assert not [entry for entry in shop.app.audit() if entry.actor == browser.name]
    form = hidden_of(page, "/bulk")
    assert form["of"] == "selected"
    page = browser.send("/bulk", {**form, "id": chosen})
    assert "2 jobs were canceled" in visible_text(page)
    assert "/jobs?type=shop.ship&order=oldest" in links_of(page)  # the way back
    canceled = [job.id for job in shop.app.jobs(status="CANCELED")]
    assert set(canceled) == {ids[0], ids[3], done}
    (entry,) = [entry for entry in shop.app.audit() if entry.actor == browser.name]
    assert (entry.action, entry.count, entry.details["selected"]) == ("job.cancel", 2, 4)


def test_selected_jobs_are_rescheduled_with_a_time(shop: Shop) -> None:
    ids = shop.ship.options(delay=HOUR).submit_many([{"order_id": number} for number in range(3)])
    browser = DashboardBrowser(shop.app)
    page = browser.post("/bulk", {"do": "check", "action": "reschedule", "id": ids[:2]})
    fields = {**hidden_of(page, "/bulk"), "id": ids[:2]}
    answer = browser.send("/bulk", {**fields, "when": "soon"})
    assert (answer.status, hidden_of(answer, "/bulk")["of"]) == (422, "selected")
    assert "2 jobs were rescheduled" in visible_text(
        browser.send("/bulk", {**fields, "when": "2031-01-02T03:04Z"})
    )
    assert [shop.app.get(each).due.year == 2031 for each in ids] == [True, True, False]


def test_a_selection_without_jobs_changes_nothing(shop: Shop) -> None:
    shop.ship.options(delay=HOUR).submit(1)
    browser = DashboardBrowser(shop.app)
    note = browser.note(browser.post("/bulk", {"do": "check", "action": "cancel", "back": "queue=orders&x=1"}))
    assert note == "No job was selected. Check the boxes of some jobs first."
    answer = browser.post("/bulk", {"of": "selected", "action": "cancel", "until": "2100-01-01T00:00Z"})
    assert "select the jobs again" in browser.note(answer)
    assert shop.app.counts()["CANCELED"] == 0


def test_a_selection_keeps_to_the_rights_of_its_token(shop: Shop) -> None:
    ship = shop.ship.options(delay=HOUR).submit(1).id
    mail = shop.send.options(delay=HOUR).submit("a@example.org").id
    browser = DashboardBrowser(shop.app, "read", "operate", queues=["mail"])
    page = browser.post("/bulk", {"do": "check", "action": "cancel", "id": [ship, mail]})
    assert "1 job would be canceled" in visible_text(page)
    assert "shop.ship" not in visible_text(page)
    browser.post("/bulk", {"of": "selected", "action": "cancel", "id": [ship, mail]})
    assert [shop.app.get(each).status for each in (ship, mail)] == [JobStatus.PENDING, JobStatus.CANCELED]
    reader = DashboardBrowser(shop.app, "read")
    assert 'type="checkbox"' not in reader.get("/jobs").body.decode()
    assert reader.post("/bulk", {"do": "check", "action": "cancel", "id": [ship]}).status == 403


# -- edit and replay


def test_a_dead_letter_is_edited_checked_and_replayed(running: tuple[Shop, TimeTravel]) -> None:
    shop, travel = running
    letter = shop.ship.submit(7, "first").id
    travel.settle()
    shop.is_down = False
    browser = DashboardBrowser(shop.app)
    path = f"/jobs/{letter}/replay"
    page = browser.text(path)
    assert "Edit and replay" in page
    wrong = browser.post(path, {"argument.order_id": "many", "argument.note": "x", "do": "check"})
    assert wrong.status == 422
    assert re.search(r'aria-invalid="true"', wrong.body.decode())
    assert "Expected `int`, got `str`" in visible_text(wrong)
    fields = {"argument.order_id": "8", "argument.note": ""}
    dry = browser.post(path, {**fields, "do": "check"})
    assert "Changed: order_id . Removed: note . Nothing was stored." in visible_text(dry)
    assert shop.app.get(letter).replayed_as is None
    note = browser.note(browser.post(path, {**fields, "do": "replay"}))
    new_id = shop.app.get(letter).replayed_as
    assert new_id is not None
    assert note == f"Replayed job {letter} as {new_id}."
    assert shop.app.get(new_id).arguments == {"order_id": 8}
    assert "cannot be replayed" in browser.text(path)
    assert f"/jobs/{new_id}" in links_of(browser.get(f"/jobs/{letter}"))


# -- submit


def test_a_job_is_submitted_from_a_form_of_its_handler(shop: Shop) -> None:
    browser = DashboardBrowser(shop.app, "submit", "read")
    assert "Choose a type" in browser.text("/submit")
    page = browser.text("/submit?type=shop.ship")
    assert "Ship an order." in page
    assert "order_id * int" in page
    fields = {
        "type": "shop.ship",
        "argument.order_id": "42",
        "argument.note": "a < b",
        "when": "1h",
        "queue": "urgent",
        "priority": "USER_BLOCKING",
        "id": "order-42",
        "sequence": "s",
    }
    answer = browser.post("/submit", fields)
    assert answer.headers["location"] == "/jobs/order-42"
    job = shop.app.get("order-42")
    assert (job.arguments, job.queue, job.priority.name, job.sequence) == (
        {"order_id": 42, "note": "a < b"},
        "urgent",
        "USER_BLOCKING",
        "s",
    )
    again = browser.post("/submit", fields)
    assert again.status == 409
    assert "/jobs/order-42" in links_of(again)
    assert 'value="a &lt; b"' in again.body.decode()


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"argument.order_id": "x"}, "a-order_id", "Expected `int`, got `str`"),
        ({}, "a-order_id", "missing required field"),
        ({"argument.order_id": "1", "when": "soon"}, "o-when", "which is no time"),
        ({"argument.order_id": "1", "id": "x" * 300}, "o-id", "300"),
    ],
)
def test_errors_of_a_submit_are_at_their_fields(
    shop: Shop, fields: dict[str, str], place: str, words: str
) -> None:
    browser = DashboardBrowser(shop.app)
    answer = browser.post("/submit", {"type": "shop.ship", **fields})
    page = answer.body.decode()
    assert answer.status == 422
    field = page[page.index(f'id="{place}"') :].partition("</div>")[0]
    assert 'role="alert"' in field
    assert words in unescape(field)
    assert shop.app.jobs() == []


def test_a_form_never_repeats_a_redacted_value(shop: Shop) -> None:
    browser = DashboardBrowser(shop.app)
    answer = browser.post("/submit", {"type": "mail.send", "argument.body": "hunter2", "when": "soon"})
    assert answer.status == 422
    assert "hunter2" not in answer.body.decode()


def test_only_handlers_that_one_may_submit_are_offered(shop: Shop) -> None:
    browser = DashboardBrowser(shop.app, "submit", types=["mail.send"])
    page = browser.get("/submit").body.decode()
    assert "mail.send" in page
    assert "shop.ship" not in page
    assert browser.post("/submit", {"type": "shop.ship", "argument.order_id": "1"}).status in (303, 403)
    assert browser.post("/submit", {"type": "mail.send", "argument.to": "x", "queue": "orders"}).status == 303
    with Mainspring("memory://") as empty:
        assert "knows no handlers" in DashboardBrowser(empty).text("/submit")


def test_pages_work_below_another_path(shop: Shop) -> None:
    job_id = shop.ship.options(delay=HOUR).submit(1).id
    browser = DashboardBrowser(shop.app, root_path="/admin/queue")
    for path in ("/jobs", f"/jobs/{job_id}", "/submit?type=shop.ship"):
        answer = browser.get(path)
        assert answer.status == 200, path
        assert [link for link in links_of(answer) if link.startswith("/") and "/admin/queue/" not in link] == []


# -- updates of open pages


async def _first_update(browser: DashboardBrowser, path: str) -> dict[str, str]:
    """Return the blocks of the first update of a page, as its script gets them."""
    blocks: dict[str, str] = {}
    is_done = asyncio.Event()

    async def receive() -> AsgiMessage:
        await is_done.wait()
        return {"type": "http.disconnect"}

    async def send(message: AsgiMessage) -> None:
        found = re.search(rb"event: blocks\ndata: (.*)\n", message.get("body", b""))
        if found is not None:
            blocks.update(json.loads(found[1]))
            is_done.set()

    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    url = urlsplit(path)
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/live{url.path}",
        "raw_path": f"/live{url.path}".encode(),
        "root_path": "",
        "query_string": url.query.encode(),
        "headers": [(b"host", b"testserver"), (b"cookie", cookie.encode())],
    }
    async with asyncio.timeout(PATIENCE):
        await browser.asgi(scope, receive, send)
    return blocks


def test_open_pages_are_updated_by_blocks(shop: Shop) -> None:
    job_id = shop.ship.options(delay=HOUR, id="order-1").submit(1).id
    browser = DashboardBrowser(shop.app)
    rows = asyncio.run(_first_update(browser, "/jobs"))
    assert set(rows) == {"tabs", "rows"}
    assert f'href="/jobs/{job_id}"' in rows["rows"]
    found = asyncio.run(_first_update(browser, "/jobs?text=order-1"))
    assert "Read 1 job," in found["rows"]
    state = asyncio.run(_first_update(browser, f"/jobs/{job_id}"))
    assert set(state) == {"state", "history", "outcome", "facts"}
    csrf = re.findall(r'name="csrf" value="([0-9a-f]{64})"', state["state"])
    assert csrf
    assert "Canceled job" in browser.note(
        browser.send(f"/jobs/{job_id}/cancel", {"csrf": csrf[0], "next": f"/jobs/{job_id}"})
    )
