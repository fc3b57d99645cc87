"""A visit of the dashboard in a real browser. Whatever the browser complains about fails the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Response, expect

from scripts.fetch_chromium import ensure

MILLISECONDS = 30_000
"""How long a test waits for what it expects."""
FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other host can be reached
]
DESK = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
GRAVE = ("serious", "critical")

expect.set_options(timeout=MILLISECONDS)


def launch(playwright: Playwright, fonts: Path | None = None) -> Browser:
    """Start the browser of this machine, or the one that `make chromium` has brought.

    - `fonts`: a configuration of fonts; None for that of the machine
    """
    env = None if fonts is None else {**os.environ, "FONTCONFIG_FILE": str(fonts)}
    return playwright.chromium.launch(executable_path=str(ensure()), args=FLAGS, env=env)  # type: ignore[arg-type]


@dataclass
class Visit:
    """One browser context with one page, and the faults that it has noticed."""

    page: Page
    url: str
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(f"{self.page.url}: {error}"))
        self.page.on("request", self._check_host)

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{self.page.url}: console: {message.text}")

    def _check_host(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "data:")):
            self.faults.append(f"{self.page.url}: request to {request.url}")

    def open(self, path: str, *, status: int = 200) -> Response:
        """Load a page, which must work."""
        answer = self.page.goto(f"{self.url}{path}")
        assert answer is not None
        assert answer.status == status, f"{path} is answered with {answer.status}: {answer.text()[:500]}"
        return answer

    def log_in(self, token: str) -> None:
        """Log in with the link that `mainspring serve` prints."""
        self.page.goto(f"{self.url}/?token={token}")
        expect(self.page.locator(".sidebar")).to_be_visible()

    def click(self, name: str, *, inside: str = "body", says: str | None = None) -> None:
        """Click a button or a link, and wait for the message that says what was done."""
        place = self.page.locator(inside)
        place.get_by_role("button", name=name, exact=True).or_(
            place.get_by_role("link", name=name, exact=True)
        ).first.click()
        if says is not None:
            self.expect_note(says)

    def expect_page(self, selector: str, text: str) -> None:
        """Wait for another page that a key has opened, and for its script, which listens to keys."""
        expect(self.page.locator(selector)).to_contain_text(text)
        expect(self.page.locator("html.has-script")).to_be_attached()

    def expect_note(self, text: str) -> None:
        """Wait for a message, on the page or in its corner."""
        expect(self.page.locator(".note", has_text=text).first).to_be_visible()

    def grave_findings(self, rules: list[str] | None = None) -> list[str]:
        """Return what the checker of accessibility finds serious or critical."""
        chosen = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": STANDARDS}
        if not self.page.evaluate("'axe' in window"):  # once for each page that is loaded: the script is long
            self.page.evaluate(AXE_SCRIPT)
        options = {"runOnly": chosen, "resultTypes": ["violations"]}
        found = self.page.evaluate("async options => (await axe.run(options)).violations", options)
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:200]} {node['failureSummary'][:300]}"
            for each in found
            if each["impact"] in GRAVE
            for node in each["nodes"][:3]
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return max(0, wide)


@contextmanager
def context_of(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """Open a browser context, with cookies of its own."""
    context = browser.new_context(**{"viewport": DESK, "color_scheme": "light", **options})
    context.set_default_timeout(MILLISECONDS)
    try:
        yield context
    finally:
        context.close()


@contextmanager
def visiting(browser: Browser, url: str, token: str | None = None, **options: Any) -> Iterator[Visit]:
    """Visit the dashboard during the block; at its end, the browser must have had nothing to complain about."""
    with context_of(browser, **options) as context:
        page = context.new_page()
        page.on("dialog", lambda dialog: dialog.accept())
        visit = Visit(page, url)
        if token is not None:
            visit.log_in(token)
        yield visit
        assert visit.faults == []
