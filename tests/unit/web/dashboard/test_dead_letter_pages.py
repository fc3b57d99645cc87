"""The pages of dead letters: groups, replay with a dry run, purge; rights, forms of others, hostile content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from mainspring import InvalidTransition, JobFunction, Mainspring, Retry
from mainspring.jobs.dead_letters import plan_replay
from mainspring.web.api import dead_letters
from mainspring.web.dashboard import dead_letter_pages, letter_groups
from tests.dashboard_client import DashboardBrowser, visible_text
from tests.support import PATIENCE

ONCE = Retry(max_attempts=1)
HOSTILE = "<script>alert(1)</script>\u202e\x00\x1b[31m" + "x" * 100_000


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://", grace=0) as app:

        @app.job(name="shop.charge", queue="orders", retry=ONCE, redact=("card",))
        def charge(order: int, card: str = "-", reason: str = "unpaid") -> None:
            raise ConnectionError(f"order {order}: no answer")

        @app.job(name="shop.mail", queue="mail", retry=ONCE)
        def mail(to: str) -> None:
            raise ValueError(to)

        with app.running():
            for number in range(3):  # one after the other, so that they fail in this order
                assert charge.submit(number, card="4111-1111").wait(PATIENCE) == "FAILED"
            assert mail.submit("nowhere").wait(PATIENCE) == "FAILED"
        yield app


def fail(app: Mainspring, type_: str, **arguments: Any) -> None:
    """Run a job that fails for good."""
    handler = app.registry.get(type_)
    function: JobFunction[..., Any] = JobFunction(handler, handler.function, app)
    with app.running():
        assert function.submit(**arguments).wait(PATIENCE) == "FAILED"


def key_of(browser: DashboardBrowser, text: str = "ConnectionError") -> str:
    """Return the key of the group whose link has this text."""
    found = re.search(
        rf'href="[^"]*/dead-letters/([0-9a-f]{{16}})[^"]*"><span class="error-type">{text}<',
        browser.get("/dead-letters").body.decode(),
    )
    assert found is not None
    return found[1]


def until_of(browser: DashboardBrowser, path: str) -> str:
    found = re.search(r'name="until" value="([0-9]+)"', browser.get(path).body.decode())
    assert found is not None
    return found[1]


def test_the_list_has_groups_with_counts(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    text = browser.text("/dead-letters")
    assert "2 kinds of error all 4 dead letters" in text
    assert "ConnectionError order #: no answer" in text
    assert "test_dead_letter_pages.py in charge" in text
    assert "shop.mail" not in browser.text("/dead-letters?queue=orders")
    assert "No dead letters match" in browser.text("/dead-letters?type=shop.nothing")


def test_the_list_says_how_far_it_looked(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = letter_groups.scan_letters
    monkeypatch.setattr(
        dead_letter_pages, "scan_letters", lambda *args, **options: scan(*args, **options, limit=2)
    )
    assert "the latest 2 dead letters, back to" in DashboardBrowser(app).text("/dead-letters")


def test_a_group_has_its_error_and_its_letters_without_redacted_values(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    text = browser.text(f"/dead-letters/{key_of(browser)}")
    assert "in charge raise ConnectionError" in text
    assert text.count('"order":') == 3
    assert "[redacted]" in text
    assert "4111" not in text
    assert "Replay …" in text
    assert "No dead letter with this error is left" in browser.text("/dead-letters/0123456789abcdef")


def test_a_dry_run_changes_nothing_and_a_replay_does_what_it_said(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    key = key_of(browser)
    until = until_of(browser, f"/dead-letters/{key}/replay")
    form = {"until": until, "rate": "2", "changes": '{"reason": "late"}', "limit": "2"}
    page = browser.post(f"/dead-letters/{key}/replay", {**form, "do": "check"})
    assert page.status == 200
    body = page.body.decode()
    assert "2 new jobs would be submitted, spread over 1 s" in " ".join(re.sub(r"<[^>]+>", " ", body).split())
    assert "&#34;reason&#34;: &#34;late&#34;" in body
    assert 'value="2"' in body  # what was typed stays
    assert app.dead_letters.count() == 4
    assert not app.audit()
    note = browser.note(browser.post(f"/dead-letters/{key}/replay", {**form, "do": "replay"}))
    assert note == "Replayed 2 dead letters."
    replayed = [job for job in app.dead_letters.list(replayed=True) if job.replayed_as is not None]
    assert sorted(job.arguments["order"] for job in replayed) == [0, 1]  # those that failed first
    jobs = [app.get(str(job.replayed_as)) for job in replayed]
    assert {job.arguments["reason"] for job in jobs} == {"late"}
    dues = sorted(job.due for job in jobs)
    assert (dues[1] - dues[0]).total_seconds() == pytest.approx(0.5)
    (entry,) = app.audit()
    assert (entry.action, entry.actor, entry.source) == ("dead_letter.replay", browser.name, "http")


def test_a_large_group_is_replayed_in_parts_that_follow_one_another(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_pages, "MAX_REPLAYED", 2)
    browser = DashboardBrowser(app)
    key = key_of(browser)
    until = until_of(browser, f"/dead-letters/{key}/replay")
    browser.post(f"/dead-letters/{key}/replay", {"until": until, "rate": "0.01", "do": "replay"})
    dues = sorted(app.get(str(job.replayed_as)).due for job in app.dead_letters.list(replayed=True))
    assert [round((due - dues[0]).total_seconds()) for due in dues] == pytest.approx([0, 100, 200], abs=2)


WRONG = [
    ({"rate": "fast"}, "The rate is &#39;fast&#39;; write a positive number."),
    ({"rate": "0"}, "write a positive number"),
    ({"rate": "nan"}, "write a positive number"),
    ({"limit": "1.5"}, "write a positive whole number"),
    ({"changes": "{"}, "The new values are no JSON"),
    ({"changes": "[1]"}, "The new values are list, not an object"),
    ({"changes": '{"order": "x"}'}, "order"),
    ({"without": "order"}, "order"),
]
"""Wrong values of fields, and a part of the error."""


def test_a_wrong_form_is_shown_again_with_what_to_write(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    key = key_of(browser)
    until = until_of(browser, f"/dead-letters/{key}/replay")
    for fields, problem in WRONG:
        for do in ("check", "replay"):
            page = browser.post(f"/dead-letters/{key}/replay", {"until": until, **fields, "do": do})
            assert page.status == 422, fields
            found = re.search(r'<div class="note error" role="alert">(.*?)</div>', page.body.decode(), re.DOTALL)
            assert found is not None
            assert problem in found[1]
    assert app.dead_letters.count() == 4


def test_letters_that_fail_after_the_page_was_made_are_not_purged(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    key = key_of(browser)
    path = f"/dead-letters/{key}/purge"
    assert "Delete 3 dead letters?" in browser.text(path)
    until = until_of(browser, path)
    fail(app, "shop.charge", order=9)
    assert browser.note(browser.post(path, {"until": until})) == "Deleted 3 dead letters."
    assert app.dead_letters.count(type="shop.charge") == 1
    assert app.dead_letters.count() == 2
    assert [entry.action for entry in app.audit()] == ["dead_letter.purge"]
    assert browser.note(browser.post(path, {"until": until})).startswith("No dead letter with this error is left")
    assert browser.note(browser.post(path, {"until": "x"})).startswith(
        "The form does not say when its page was made"
    )


def ids_of(browser: DashboardBrowser, key: str) -> list[str]:
    page = browser.get(f"/dead-letters/{key}").body.decode()
    return re.findall(r'<input type="checkbox" name="id" value="([^"]*)" form="selected"', page)


def test_selected_letters_are_replayed_after_a_dry_run(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    key = key_of(browser)
    chosen = ids_of(browser, key)[1:]  # all but the latest
    assert len(chosen) == 2
    until = until_of(browser, f"/dead-letters/{key}")
    form = {"until": until, "of": "selected", "id": chosen}
    page = browser.post(f"/dead-letters/{key}/replay", {**form, "do": "choose"})
    assert "Replay 2 selected dead letters" in visible_text(page)
    assert re.findall(r'type="hidden" name="id" value="([^"]*)"', page.body.decode()) == chosen
    page = browser.post(f"/dead-letters/{key}/replay", {**form, "do": "check"})
    assert "2 new jobs would be submitted" in visible_text(page)
    assert app.dead_letters.count() == 4
    note = browser.note(browser.post(f"/dead-letters/{key}/replay", {**form, "do": "replay"}))
    assert note == "Replayed 2 dead letters."
    assert {job.id for job in app.dead_letters.list(replayed=True) if job.replayed_as is not None} == set(chosen)


def test_selected_letters_are_purged_after_a_question(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    key = key_of(browser)
    chosen, *kept = ids_of(browser, key)
    path = f"/dead-letters/{key}/purge"
    form = {"until": until_of(browser, path), "of": "selected"}
    page = browser.post(path, {**form, "do": "choose", "id": [chosen]})
    assert "Delete 1 selected dead letter?" in visible_text(page)
    assert app.dead_letters.count() == 4
    assert browser.note(browser.post(path, {**form, "id": [chosen]})) == "Deleted 1 dead letter."
    assert {job.id for job in app.dead_letters.list(type="shop.charge")} == set(kept)
    assert browser.note(browser.post(path, form)) == (
        "No dead letter was selected; check the boxes of some first."
    )
    assert app.dead_letters.count() == 3


def test_rights_are_checked_where_the_action_is_done(app: Mainspring) -> None:
    key = key_of(DashboardBrowser(app))
    reader = DashboardBrowser(app, "read")
    assert "Replay …" not in reader.text(f"/dead-letters/{key}")
    until = str(10**18)
    for path in (f"/dead-letters/{key}/replay", f"/dead-letters/{key}/purge"):
        assert reader.get(path).status == 403
        answer = reader.post(path, {"until": until, "do": "replay"})
        assert answer.status == 403
    mailer = DashboardBrowser(app, "read", "operate", types=["shop.mail"])
    assert "shop.charge" not in mailer.text("/dead-letters")
    assert "No dead letter with this error is left" in mailer.text(f"/dead-letters/{key}")
    answer = mailer.post(f"/dead-letters/{key}/purge", {"until": until})
    assert mailer.note(answer).startswith("No dead letter with this error is left")
    assert app.dead_letters.count() == 4


def test_a_form_without_the_csrf_token_changes_nothing(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    key = key_of(browser)
    for action in ("replay", "purge"):
        fields = {"until": str(10**18), "do": "replay"}
        answer = browser.post(f"/dead-letters/{key}/{action}", fields, csrf="0" * 64)
        assert answer.status == 403
    assert app.dead_letters.count() == 4


def test_a_read_only_server_offers_and_accepts_nothing(app: Mainspring) -> None:
    browser = DashboardBrowser(app, asgi=app.asgi(auth="tokens", read_only=True))
    key = key_of(browser)
    assert "Replay …" not in browser.text(f"/dead-letters/{key}")
    answer = browser.post(f"/dead-letters/{key}/purge", {"until": str(10**18)})
    assert answer.status in (403, 405)
    assert app.dead_letters.count() == 4


def test_a_store_that_fails_in_the_middle_says_how_many_were_replayed(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_pages, "MAX_REPLAYED", 1)
    plan, calls = plan_replay, list[str]()

    def fail_later(*args: object, **options: object) -> object:
        calls.append("")
        if len(calls) > 2:
            raise InvalidTransition(job_id="x", status="FAILED", action="replay", needs="FAILED")
        return plan(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(dead_letters, "plan_replay", fail_later)
    browser = DashboardBrowser(app)
    key = key_of(browser)
    until = until_of(browser, f"/dead-letters/{key}/replay")
    note = browser.note(browser.post(f"/dead-letters/{key}/replay", {"until": until, "do": "replay"}))
    assert note.startswith("Replayed 2 dead letters, then stopped: ")


def test_hostile_content_is_escaped_cut_and_made_visible(app: Mainspring) -> None:
    fail(app, "shop.mail", to=HOSTILE)
    browser = DashboardBrowser(app)
    page = browser.get("/dead-letters").body.decode()
    assert len(page) < 60_000
    keys = set(re.findall(r"/dead-letters/([0-9a-f]{16})", page))
    paths = [f"/dead-letters/{key}{tail}" for key in keys for tail in ("", "/replay", "/purge")]
    bodies = [page, *(browser.get(path).body.decode() for path in paths)]
    for body in bodies:
        assert len(body) < 200_000
        assert "<script>alert" not in body
        assert "\u202e" not in body
        assert "\x00" not in body
        assert "\x1b" not in body
        assert "style=" not in body
    assert any("⟨U+202E⟩" in body for body in bodies)
    assert any("&lt;script&gt;" in body for body in bodies)


def test_an_empty_store_says_what_comes_here() -> None:
    with Mainspring("memory://") as app:
        text = DashboardBrowser(app).text("/dead-letters")
    assert "No dead letters A job that fails for good appears here" in text
