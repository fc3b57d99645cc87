"""Login and logout, a visitor that may only read, a browser without JavaScript, and hostile content."""

from __future__ import annotations

import re
from datetime import timedelta

from playwright.sync_api import Browser, Page, expect

from mainspring import JobStatus
from tests.browser.served_shop import Site
from tests.browser.shop import HOSTILE
from tests.browser.shop_past import HUGE
from tests.browser.visits import visiting

OWN_FORMS = {"/logout", "/theme"}
"""The forms that every visitor has, and that change nothing in the store."""


def posting_forms(page: Page) -> list[str]:
    """Return where the forms of a page would send a POST."""
    found: list[str] = page.eval_on_selector_all(
        "form[method=post]", "forms => forms.map(each => new URL(each.action).pathname)"
    )
    return [path for path in found if path not in OWN_FORMS]


def test_a_visitor_logs_in_with_a_token_and_out_again(browser: Browser, site: Site) -> None:
    token = site.token()
    with visiting(browser, site.url) as visit:
        page = visit.page
        visit.open("/jobs?status=FAILED")
        expect(page.locator("h1")).to_have_text("Log in")
        assert visit.grave_findings() == []
        page.emulate_media(color_scheme="dark")
        assert visit.grave_findings(["color-contrast"]) == []
        page.get_by_label("Token").fill("msp_wrong")
        visit.click("Log in")
        expect(page.get_by_role("alert")).to_be_visible()
        visit.faults.clear()
        page.get_by_label("Token").fill(token)
        visit.click("Log in")
        expect(page.locator("h1")).to_have_text("Jobs")
        assert page.url.endswith("/jobs?status=FAILED")
        assert token not in page.content()
        cookie = next(
            each for each in page.context.cookies() if "theme" not in each["name"] and "zone" not in each["name"]
        )
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert token not in cookie["value"]
        visit.click("Log out")
        expect(page.locator("h1")).to_have_text("Log in")
        visit.open("/jobs")
        expect(page.locator("h1")).to_have_text("Log in")


def test_a_visitor_that_may_only_read_sees_no_actions_and_can_do_none(browser: Browser, site: Site) -> None:
    app = site.shop.app
    job = site.shop.mail.after(timedelta(hours=5)).submit("read@shop.example", "x")
    with visiting(browser, site.url, site.token("read")) as visit:
        page = visit.page
        for address in site.addresses:
            if address.needs == "read":
                visit.open(address.path)
                assert posting_forms(page) == [], address.path
                assert page.locator("main .button.danger, main .button.primary").all_inner_texts() == [], (
                    address.path
                )
            else:
                visit.open(address.path, status=403)
                visit.faults.clear()  # the browser reports the status 403
        visit.open(f"/jobs/{job.id}")
        expect(page.locator(".nav a", has_text="Workers")).to_be_visible()
        expect(page.locator(".nav a", has_text="Audit")).to_have_count(0)
        csrf = page.locator("form[action$='/logout'] input[name=csrf]").get_attribute("value")
        for path, fields in (
            (f"/jobs/{job.id}/cancel", {}),
            ("/queues/mail/pause", {}),
            ("/schedules/stock-sync/trigger", {}),
            ("/bulk", {"action": "cancel", "queue": "mail"}),
            ("/submit", {"type": "mail.send", "argument.to": "x", "argument.subject": "y"}),
        ):
            answer = page.context.request.post(
                f"{site.url}{path}", form={"csrf": csrf or "", **fields}, headers={"Origin": site.url}
            )
            assert answer.status == 403, (path, answer.status)
        assert app.get(job.id).status is JobStatus.PENDING
        assert not app.queue("mail").is_paused
    with visiting(browser, site.url, site.token()) as visit:
        answer = visit.page.context.request.post(
            f"{site.url}/jobs/{job.id}/cancel", form={"csrf": "0" * 64}, headers={"Origin": site.url}
        )
        assert answer.status == 403
        assert app.get(job.id).status is JobStatus.PENDING


def test_every_page_and_action_works_without_javascript(browser: Browser, site: Site) -> None:
    app = site.shop.app
    job = site.shop.mail.options(queue="plain", delay=timedelta(hours=5)).submit("plain@shop.example", "x")
    with visiting(browser, site.url, site.token(), java_script_enabled=False) as visit:
        page = visit.page
        for address in site.addresses:
            visit.open(address.path)
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator("main")).not_to_be_empty()
        visit.open("/queues/plain")
        visit.click("Pause", inside="main", says="Paused queue plain")
        expect(page.locator("h1")).to_have_text("plain")
        assert app.queue("plain").is_paused
        visit.open(f"/jobs/{job.id}")
        visit.click("Cancel", inside="main", says="Canceled job")
        assert app.get(job.id).status is JobStatus.CANCELED
        visit.click("Dark")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        visit.open("/submit?type=mail.send")
        page.locator("[name='argument.to']").fill("plain@shop.example")
        page.locator("[name='argument.subject']").fill("x")
        visit.click("Submit", inside="main")
        expect(page.locator(".job-head")).to_contain_text("mail.send")
        visit.open("/jobs")
        page.locator("[data-search]").fill("plain@shop")
        visit.click("Filter", inside="main")
        expect(page.locator("[data-row]").first).to_contain_text("plain@shop.example")


def test_hostile_content_is_shown_as_text(browser: Browser, site: Site) -> None:
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        for path in (
            "/jobs/hostile-1",
            "/jobs/hostile-1/replay",
            "/jobs?queue=%3Cb%3Ehostile%3C%2Fb%3E",
            f"/jobs?text={HOSTILE[:60]}",
            "/dead-letters?type=hostile.text",
            "/queues",
            "/queues/%3Cb%3Ehostile%3C%2Fb%3E",
        ):
            visit.open(path)
            assert "hacked" not in page.title(), path
            assert page.locator("main script, main img, main b").count() == 0, path
            text = page.locator("main").inner_text()
            assert not re.search("[\x00-\x08\x0b\x1b\u202a-\u202e\u2066-\u2069]", text), path
        visit.open("/jobs/hostile-1")
        expect(page.locator("main")).to_contain_text("<script>document.title='hacked'</script>")
        answer = visit.open("/jobs/hostile-2")
        assert len(answer.body()) < HUGE / 5
        expect(page.locator("main")).to_contain_text("xxxxxxxx")
        visit.open("/jobs/hostile-2/replay")
        expect(page.locator("main")).to_contain_text("1,000,000")
