"""Every page in a real browser: light, dark and on a phone, without complaints of the browser or of axe-core."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from mainspring.web.dashboard.site import all_pages
from tests.browser.served_shop import Site
from tests.browser.visits import DESK, PHONE, visiting

FIRST_PAGE = 150_000  # bytes
PARTS = 4  # on a busy machine, the checker needs seconds for each page
SMALL = 60  # pixels
HIGHEST = "Math.max(0, ...[...document.querySelectorAll('.badge, .button')].map(each => each.offsetHeight))"
NOT_A_PAGE = {"schedule-preview"}  # a part of another page


def test_the_list_of_addresses_names_every_page(site: Site) -> None:
    pages = {page.name for page in all_pages(site.shop.app)}
    assert {address.page for address in site.addresses} == pages - NOT_A_PAGE


@pytest.mark.parametrize("part", range(PARTS))
def test_every_page_is_accessible_in_light_dark_and_on_a_phone(browser: Browser, site: Site, part: int) -> None:
    findings: list[str] = []
    with visiting(browser, site.url, site.token()) as visit:
        page = visit.page
        for address in site.addresses[part::PARTS]:
            visit.open(address.path)
            expect(page.locator("h1")).to_have_count(1)
            found = visit.grave_findings()
            if (height := page.evaluate(HIGHEST)) > SMALL:
                found.append(f"a badge or button is {height} px high")
            page.emulate_media(color_scheme="dark")
            found += [f"dark: {each}" for each in visit.grave_findings(["color-contrast"])]
            page.set_viewport_size(PHONE)  # type: ignore[arg-type]
            found += [f"phone: {each}" for each in visit.grave_findings(["target-size"])]
            if wide := visit.overflow():
                found.append(f"phone: the page is {wide} px wider than the window")
            page.set_viewport_size(DESK)  # type: ignore[arg-type]
            page.emulate_media(color_scheme="light")
            if wide := visit.overflow():
                found.append(f"the page is {wide} px wider than the window")
            findings += [f"{address.path}: {each}" for each in found]
    assert not findings, "\n".join(findings)


def test_a_complaint_of_the_browser_is_noticed(browser: Browser, site: Site) -> None:
    with visiting(browser, site.url, site.token()) as visit:
        visit.open("/workers")
        visit.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')")
        visit.page.evaluate(
            "document.body.append(Object.assign(new Image(), {src: 'http://other.example/x.png'}))"
        )
        visit.page.wait_for_function("document.images.length > 0")
        visit.page.evaluate("setTimeout(() => { throw new Error('broken') })")
        visit.page.evaluate("document.querySelector('h1').innerHTML = '<button></button>'")
        assert any("button-name" in each for each in visit.grave_findings())
        text = "\n".join(visit.faults)
        visit.faults.clear()
    assert "style-src 'self'" in text
    assert "http://other.example/x.png" in text
    assert "broken" in text


def test_the_first_page_is_small(browser: Browser, site: Site) -> None:
    with visiting(browser, site.url, site.token()) as visit:
        sizes: dict[str, int] = {}
        devtools = visit.page.context.new_cdp_session(visit.page)
        devtools.send("Network.enable")
        devtools.send("Network.clearBrowserCache")
        devtools.on(
            "Network.loadingFinished",
            lambda event: sizes.__setitem__(event["requestId"], event["encodedDataLength"]),
        )
        visit.open("/")
        expect(visit.page.locator("[data-live-state]")).to_have_text("live")
        assert len(sizes) >= 3, "the page, its style sheet and its script"
        assert 10_000 < sum(sizes.values()) < FIRST_PAGE
