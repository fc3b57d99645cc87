"""The pages on NATS: all that show something of the store, actions, and live updates."""

from __future__ import annotations

from datetime import timedelta

from playwright.sync_api import Browser, expect

from mainspring import JobStatus
from tests.browser.served_shop import Site
from tests.browser.shop_past import wait_until_running
from tests.browser.visits import visiting
from tests.support import PATIENCE


def test_every_page_shows_the_store_without_complaints(browser: Browser, nats_site: Site) -> None:
    with visiting(browser, nats_site.url, nats_site.token()) as visit:
        page = visit.page
        for address in nats_site.addresses:
            visit.open(address.path)
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator("main")).not_to_contain_text("does not answer")
        visit.open("/jobs/charge-1")
        expect(page.locator("ol.timeline")).to_contain_text("card of order 1 was refused")
        worker = nats_site.shop.app.workers()[0].name
        expect(page.locator("ol.timeline")).to_contain_text(f"worker {worker}")
        visit.open("/jobs?argument.order_id=1&type=shop.ship_order")
        expect(page.locator("[data-row]")).to_have_count(1)


def test_jobs_queues_and_dead_letters_are_changed(browser: Browser, nats_site: Site) -> None:
    app, shop = nats_site.shop.app, nats_site.shop
    mail = shop.mail.options(queue="chosen", delay=timedelta(hours=5))
    ids = mail.submit_many([{"to": f"{n}@shop.example", "subject": "x"} for n in range(5)])
    with visiting(browser, nats_site.url, nats_site.token()) as visit:
        page = visit.page
        visit.open("/jobs?queue=chosen&order=oldest")
        page.locator("[data-row] td.select input").nth(1).check()
        page.locator("[data-row] td.select input").nth(3).check()
        visit.click("Cancel …", inside="#selected")
        expect(page.locator("main")).to_contain_text("2 jobs would be canceled")
        visit.click("Cancel 2 jobs", inside="main")
        expect(page.locator("main")).to_contain_text("2 jobs were canceled")
        canceled = [app.get(each).status is JobStatus.CANCELED for each in ids]
        assert canceled == [False, True, False, True, False]

        visit.open("/queues/chosen")
        visit.click("Pause", inside="main", says="Paused")
        expect(page.locator("main .badge").first).to_have_text("paused")
        visit.click("Resume", inside="main", says="Resumed")

        visit.open(f"/jobs/{ids[0]}")
        visit.click("Run now", inside="main", says="now")
        assert app.handle(ids[0]).wait(PATIENCE) is JobStatus.COMPLETED
        expect(page.locator("[data-live=state] .badge").first).to_have_text("completed")  # without a reload

        letter = shop.charge.options(queue="refused").submit(7, 99_500)
        letter.wait(PATIENCE)
        visit.open(f"/jobs/{letter.id}/replay")
        page.get_by_label("cents").fill("1200")
        visit.click("Replay", inside="main", says="Replayed")
        replayed = app.get(letter.id).replayed_as
        assert replayed is not None
        assert app.handle(replayed).wait(PATIENCE) is JobStatus.COMPLETED


def test_an_open_page_shows_changes_without_a_reload(browser: Browser, nats_site: Site) -> None:
    app, shop = nats_site.shop.app, nats_site.shop
    with visiting(browser, nats_site.url, nats_site.token()) as visit:
        page = visit.page
        later = shop.mail.options(queue="live", delay=timedelta(hours=5))
        later.submit("a@shop.example", "x")
        visit.open("/queues/live")
        page.evaluate("window.isSamePage = true")
        scheduled = page.locator(".tile", has_text="Scheduled").locator(".tile-value")
        expect(scheduled).to_have_text("1")
        later.submit_many([{"to": f"{n}@shop.example", "subject": "x"} for n in range(6)])
        expect(scheduled).to_have_text("7")

        report = shop.report.submit("2026-12", rows=10)
        wait_until_running(report.id, app)
        visit.open(f"/jobs/{report.id}")
        page.evaluate("window.isSamePage = true")
        state = page.locator("[data-live=state]")
        expect(state).to_contain_text("6 of 10")
        app.cancel(report.id)
        report.wait(PATIENCE)
        expect(state.locator(".badge").first).not_to_have_text("running")
        assert page.evaluate("window.isSamePage")
