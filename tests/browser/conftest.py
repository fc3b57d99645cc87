"""One browser and one served shop for all tests of this folder in a process.

Playwright's synchronous interface keeps an event loop on the thread that uses it, and `asyncio.run` of other tests
would refuse to work there. So the browser has a thread of its own, and the tests of this folder run on it.

Their start takes seconds. So the tests of this folder come first: then one process of pytest-xdist runs most of
them, and the other processes start no browser. The browser and the shop end with the last of them: the threads of
the shop would write to the log of other tests, and allocate memory that other tests count.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.browser.served_shop import Site, served_shop, served_small_shop
from tests.browser.visits import launch
from tests.nats.servers import Servers, nats_server

__all__ = ["nats_server"]

FOLDER = Path(__file__).parent
THREAD = ThreadPoolExecutor(1, thread_name_prefix="browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of this folder before all others."""
    items.sort(key=lambda item: item.path.parent != FOLDER)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test on the thread of the browser."""
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    THREAD.submit(pyfuncitem.obj, **arguments).result()
    return True


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    def start() -> tuple[Playwright, Browser]:
        playwright = sync_playwright().start()
        return playwright, launch(playwright)

    def stop() -> None:
        browser.close()
        playwright.stop()

    playwright, browser = THREAD.submit(start).result()
    yield browser
    THREAD.submit(stop).result()


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Serve the shop, with three hours of history and a worker."""
    with served_shop(tmp_path_factory.mktemp("shop"), hours=3) as site:
        yield site


@pytest.fixture(scope="package")
def nats_site(nats_server: Servers) -> Iterator[Site]:
    """Serve a small shop on NATS, with a worker."""
    with served_small_shop(f"{nats_server.url}?prefix=pages") as site:
        yield site
