"""Make pictures of all pages of the dashboard: python -m scripts.screenshots FOLDER [NAME ...].

Each page is pictured in light, in dark and on a phone, as FOLDER/LOOK-NAME.png. Names of pages, or of pictures
such as `dark-overview`, choose some of them. The pictures show the shop of the tests, on a clock that begins at a
fixed time.

`--small` makes the pictures of the documents instead: the overview and a job, at three quarters of their size.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from mainspring.clock import SystemClock
from scripts.fetch_chromium import ensure_fonts
from tests.browser.served_shop import Site, served_shop
from tests.browser.visits import DESK, PHONE, Visit, context_of, launch

NOW = datetime(2026, 11, 17, 14, 30, tzinfo=UTC)
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESK, "color_scheme": "light"},
    "dark": {"viewport": DESK, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light"},
}
SMALL = {
    "overview": ("ann", "read", {"width": 1280, "height": 822}),  # without findings about this machine
    "job-failed": ("ben", "admin", {"width": 1280, "height": 860}),
}
"""The pictures of the documents: the user, the scope of its token, the size of the window."""
SCALE = 0.75
SHARP = 2
"""The scale of a picture before it is made small: the browser places the letters of small text unevenly."""
ROOT = Path(__file__).parents[1]
HIDE = """([from, to]) => {
  const hide = () => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode;
      if (text.nodeValue.includes(from)) text.nodeValue = text.nodeValue.replaceAll(from, to);
    }
  };
  new MutationObserver(hide).observe(document.body, {subtree: true, childList: true, characterData: true});
  hide();
}"""
"""Replaces a text on the page, after live updates, too."""


@contextmanager
def clock_begins_at(instant: datetime) -> Iterator[None]:
    """Shift the wall clock of this process, so that all pictures have the same times, but for seconds."""
    read, read_microseconds = SystemClock.now, SystemClock.microseconds
    shift = instant - SystemClock().now()
    microseconds = shift // timedelta(microseconds=1)
    SystemClock.now = lambda self: read(self) + shift  # type: ignore[method-assign]
    SystemClock.microseconds = lambda self: read_microseconds(self) + microseconds  # type: ignore[method-assign]
    try:
        yield
    finally:
        SystemClock.now = read  # type: ignore[method-assign]
        SystemClock.microseconds = read_microseconds  # type: ignore[method-assign]


@contextmanager
def visitor(browser: Browser, site: Site, name: str, *scopes: str, **options: Any) -> Iterator[Visit]:
    """Log in with a token of this name, which pictures show."""
    token = site.shop.app.tokens.create(name, scopes=scopes).secret
    with context_of(browser, timezone_id="America/New_York", reduced_motion="reduce", **options) as context:
        visit = Visit(context.new_page(), site.url)
        visit.log_in(token)
        yield visit


def open_page(visit: Visit, path: str) -> None:
    """Open a page, wait for its stream, and hide where this checkout is."""
    visit.open(path)
    if visit.page.locator("[data-live-state]").count():
        visit.page.wait_for_selector("[data-live-state][data-state=on]")
    visit.page.evaluate(HIDE, [str(ROOT / "tests" / "browser"), "/srv/shop"])


def picture_all(browser: Browser, site: Site, folder: Path, chosen: list[str]) -> list[str]:
    """Make the pictures, and return what the browser complained about."""
    faults = []
    for look, options in LOOKS.items():
        with visitor(browser, site, f"ann, {look}", "admin", **options) as visit:
            for address in site.addresses:
                if chosen and address.name not in chosen and f"{look}-{address.name}" not in chosen:
                    continue
                open_page(visit, address.path)
                if wide := visit.overflow():
                    visit.faults.append(f"{look} {address.path}: {wide} px wider than the window")
                height = visit.page.evaluate("document.documentElement.scrollHeight")
                size = options["viewport"]
                visit.page.set_viewport_size({"width": size["width"], "height": max(size["height"], height)})
                visit.page.screenshot(path=folder / f"{look}-{address.name}.png")
                visit.page.set_viewport_size(size)
            faults += visit.faults
    return faults


def picture_small(browser: Browser, site: Site, folder: Path) -> list[str]:
    """Make the pictures of the documents."""
    faults = []
    for name, (user, scope, size) in SMALL.items():
        with visitor(browser, site, user, scope, viewport=size, device_scale_factor=SHARP) as visit:
            open_page(visit, next(address.path for address in site.addresses if address.name == name))
            picture = visit.page.screenshot()
            faults += visit.faults
        shrink(browser, picture, size, folder / f"{name.partition('-')[0]}.png")
    return faults


def shrink(browser: Browser, picture: bytes, size: dict[str, int], path: Path) -> None:
    """Store a picture of a window of this size at `SCALE`."""
    width, height = round(size["width"] * SCALE), round(size["height"] * SCALE)
    source = f"data:image/png;base64,{b64encode(picture).decode()}"
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_content(f'<body style="margin: 0"><img src="{source}" style="width: {width}px; display: block">')
    page.screenshot(path=path)
    page.close()


def main(arguments: list[str]) -> None:
    """Serve the shop, and make its pictures."""
    is_small = "--small" in arguments
    arguments = [each for each in arguments if each != "--small"]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.CRITICAL)  # the jobs of the shop fail on purpose
    with (
        tempfile.TemporaryDirectory() as temporary,
        clock_begins_at(NOW),
        served_shop(Path(temporary), hours=8) as site,
        sync_playwright() as playwright,
    ):
        browser = launch(playwright, ensure_fonts())
        make = (
            picture_small(browser, site, folder) if is_small else picture_all(browser, site, folder, arguments[1:])
        )
        browser.close()
    for fault in make:
        print(fault, file=sys.stderr)
    if make:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
