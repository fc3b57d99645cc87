"""A store with very many jobs: pages read a bounded number of rows, and say how far they have looked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path

import apsw
import pytest
from playwright.sync_api import Browser, expect

from mainspring import Mainspring
from mainspring.web.addresses import HttpAddress, open_listener
from mainspring.web.server import HttpServer
from tests.browser.visits import visiting
from tests.dashboard_client import DashboardBrowser
from tests.support import amount, within

FEW = 20_000  # more than a page counts exactly
MANY = amount(100_000, thorough=1_000_000)
STEPS = 1_000  # of SQLite's virtual machine, between two ticks
# ?1 the first number, ?2 the last number
FILL = """
WITH RECURSIVE numbers(n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)
INSERT INTO jobs (id, lane, due, ready, created, payload, codec)
SELECT 'filled ' || n, lane, due + n, due + n, created, json_object('order', n), 'json'
FROM numbers, (SELECT lane, due, created FROM jobs WHERE id = 'first')
"""
PATHS = (
    "/",
    "/jobs",
    "/jobs?status=PENDING",
    "/jobs?status=FAILED",
    "/jobs?queue=default&type=order",
    "/jobs?argument.order=5",
    "/jobs?text=nothing-has-this-text",
    "/queues",
    "/queues/default",
    "/dead-letters",
    "/schedules",
    "/workers",
)


def fill(path: Path, first: int, last: int) -> None:
    """Add jobs to a store."""
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(FILL, (first, last))
    connection.close()


def place_order(order: int) -> None:
    """Do nothing: no worker runs."""


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Count the steps of SQLite on connections that are opened in the block, in thousands."""
    ticks = count()

    def attach(connection: apsw.Connection) -> None:
        connection.set_progress_handler(lambda: next(ticks) < 0, STEPS)

    found: list[int] = []
    apsw.connection_hooks.append(attach)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(attach)
        found.append(next(ticks))


def steps_of_pages(path: Path) -> dict[str, int]:
    """Return the thousands of steps that each page costs."""
    found = {}
    for page in PATHS:
        with counted_steps() as steps, declared(path) as app:
            DashboardBrowser(app, "read").text(page)  # doctor, which examines the whole store, needs other rights
        found[page] = steps[0]
    return found


@contextmanager
def declared(path: Path) -> Iterator[Mainspring]:
    """Open the store, with its handler."""
    with Mainspring(f"sqlite:///{path}", durability="normal") as app:
        app.job(name="order")(place_order)
        yield app


@pytest.mark.long
def test_pages_do_not_get_slower_with_the_number_of_jobs(tmp_path: Path, browser: Browser) -> None:
    path = tmp_path / "jobs.db"
    with Mainspring(f"sqlite:///{path}") as app:
        app.job(name="order")(place_order).options(id="first", delay=timedelta(days=1)).submit(0)
    fill(path, 1, FEW)
    few = within(lambda: steps_of_pages(path))
    fill(path, FEW + 1, MANY)
    many = within(lambda: steps_of_pages(path))
    assert {page: (few[page], many[page]) for page in PATHS if many[page] > 1.5 * few[page] + 20} == {}

    with declared(path) as app:
        token = app.tokens.create("visitor", scopes=("admin",)).secret
        listener = open_listener(HttpAddress("127.0.0.1", 0))
        with (
            HttpServer(app.asgi(auth="tokens"), listener),
            visiting(browser, f"http://127.0.0.1:{listener.address.port}", token) as visit,
        ):
            page = visit.page
            visit.open("/jobs")
            expect(page.locator(".tabs")).to_contain_text("≥ 10,000")
            expect(page.locator("[data-row]").first).to_have_attribute("data-key", f"filled {MANY}")
            page.get_by_role("link", name="Older →").click()
            expect(page.locator("[data-row]").first).to_have_attribute("data-key", f"filled {MANY - 50}")
            visit.open(f"/jobs?type=order&queue=default&argument.order={MANY - 7}")
            expect(page.locator("[data-row]")).to_have_attribute("data-key", f"filled {MANY - 7}")
            visit.open("/jobs?text=nothing-has-this-text")
            expect(page.locator("main")).to_contain_text("Read 10,000 jobs")
            expect(page.get_by_role("link", name="Search further")).to_be_visible()
            visit.open("/bulk?action=cancel&status=PENDING")
            expect(page.locator("main")).to_contain_text("≥ 10,000 jobs would be canceled")
            visit.open("/queues/default")
            expect(page.locator(".tile", has_text="Scheduled")).to_contain_text("≥")
