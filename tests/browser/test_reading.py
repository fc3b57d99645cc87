"""Live updates, keys and the theme: what the script adds to the pages."""

from __future__ import annotations

from datetime import timedelta

from playwright.sync_api import Browser, expect

from tests.browser.served_shop import Site
from tests.browser.shop_past import wait_until_running
from tests.browser.visits import DESK, visiting
from tests.support import PATIENCE


def test_an_open_page_shows_changes_without_a_reload(browser: Browser, site: Site) -> None:
    app, shop = site.shop.app, site.shop
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        later = shop.mail.options(queue="live", delay=timedelta(hours=5))
        later.submit("a@shop.example", "x")
        visit.open("/queues/live")
        page.evaluate("window.isSamePage = true")
        scheduled = page.locator(".tile", has_text="Scheduled").locator(".tile-value")
        expect(scheduled).to_have_text("1")
        expect(page.locator("[data-live-state]")).to_have_text("live")
        later.submit_many([{"to": f"{n}@shop.example", "subject": "x"} for n in range(6)])
        expect(scheduled).to_have_text("7")
        assert page.evaluate("window.isSamePage")

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


def test_an_update_keeps_the_focus_the_selection_and_typed_text(browser: Browser, site: Site) -> None:
    shop = site.shop
    first = shop.mail.options(queue="kept", delay=timedelta(hours=5)).submit("a@shop.example", "x")
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open(f"/jobs/{first.id}")
        expect(page.locator("[data-live-state]")).to_have_text("live")
        page.locator("details.reschedule summary").click()
        page.locator("#when").fill("3 d")
        site.shop.app.queue("kept").pause()
        expect(page.locator("[data-live=state] .badge").first).to_have_text("paused")
        expect(page.locator("#when")).to_have_value("3 d")
        expect(page.locator("#when")).to_be_focused()
        expect(page.locator("details.reschedule")).to_have_attribute("open", "")

        visit.open("/jobs?queue=kept")
        page.keyboard.press("j")
        expect(page.locator("[data-row][data-current]")).to_have_count(1)
        shop.mail.options(queue="kept", delay=timedelta(hours=5)).submit("b@shop.example", "x")
        expect(page.locator("[data-row]")).to_have_count(2)
        current = page.locator("[data-row][data-current]")
        expect(current).to_have_attribute("data-key", first.id)
        expect(current.locator("a").first).to_be_focused()


def test_the_keys_search_move_open_and_explain_themselves(browser: Browser, site: Site) -> None:
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open("/workers")
        page.keyboard.press("g")
        page.keyboard.press("j")
        visit.expect_page("h1", "Jobs")
        page.keyboard.press("/")
        expect(page.locator("[data-search]")).to_be_focused()
        page.keyboard.type("jk?gq")  # typed, and no commands
        expect(page.locator("[data-search]")).to_have_value("jk?gq")
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("j")
        expect(page.locator("[data-row]").nth(1)).to_have_attribute("data-current", "")
        opened = page.locator("[data-row]").nth(1).get_attribute("data-key")
        page.keyboard.press("Enter")
        visit.expect_page(".job-head", opened or "?")
        page.keyboard.press("?")
        expect(page.locator("dialog#help")).to_be_visible()
        expect(page.locator("dialog#help")).to_contain_text("Dead letters")
        page.keyboard.press("Escape")
        expect(page.locator("dialog#help")).to_be_hidden()
        visit.open("/audit")
        page.keyboard.press("g")
        page.keyboard.press("q")
        expect(page.locator("h1")).to_have_text("Queues")


def test_the_pages_can_be_used_by_the_keyboard_alone(browser: Browser, site: Site) -> None:
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open("/queues")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.textContent.trim()"))
        assert {"orders", "payments", "Pause", "Resume"} <= seen


def test_the_theme_follows_the_system_and_the_switch(browser: Browser, site: Site) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        visit.open("/workers")
        light = page.evaluate(background)
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate(background)
        assert light != dark
        visit.click("Light", inside=".sidebar")
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        page.wait_for_function(f"{background} === {light!r}")
        visit.open("/queues")
        assert page.evaluate(background) == light
        visit.click("As the system", inside=".sidebar")
        page.wait_for_function(f"{background} === {dark!r}")
        page.emulate_media(color_scheme="light")
        visit.click("Dark", inside=".sidebar")
        page.wait_for_function(f"{background} === {dark!r}")
        page.set_viewport_size(DESK)  # type: ignore[arg-type]
        visit.open("/queues")
        assert page.evaluate(background) == dark
