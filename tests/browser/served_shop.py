"""Serves the shop with a past, a worker and a job that runs, for the tests and the pictures of the dashboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mainspring.clock import SystemClock
from mainspring.security.http_limits import HttpLimits
from mainspring.web.addresses import HttpAddress, open_listener
from mainspring.web.server import HttpServer
from tests.browser.addresses import Address, addresses_of, few_addresses_of
from tests.browser.shop import Shop, make_shop
from tests.browser.shop_past import fill, record_history, wait_until_running
from tests.receiver import Received, Reply, receiver
from tests.support import PATIENCE, eventually


@dataclass(frozen=True)
class Site:
    """The served shop."""

    shop: Shop
    url: str
    addresses: list[Address]

    def token(self, *scopes: str, **options: Any) -> str:
        """Make a token, and return its secret."""
        name = f"visitor {len(self.shop.app.tokens.list())}"
        return self.shop.app.tokens.create(name, scopes=scopes or ("admin",), **options).secret


@contextmanager
def served_shop(folder: Path, *, hours: float) -> Iterator[Site]:
    """Serve the shop during the block, after so many hours of work."""
    with receiver() as hooks:
        hooks.answer = answer
        shop = make_shop(f"sqlite:///{folder}/jobs.db", hooks)
        fill(shop, until=SystemClock().now(), hours=hours)
        with serving(shop) as site:
            yield site


@contextmanager
def served_small_shop(url: str) -> Iterator[Site]:
    """Serve the shop on any store during the block, with a few jobs of today instead of a past."""
    with receiver() as hooks:
        hooks.answer = answer
        shop = make_shop(url, hooks)
        with shop.app as app, app.running():
            try:
                shop.report.options(id="report-1").submit("2026-10")
                shop.ship.options(id="ship-1").submit(1)
                shop.charge.options(id="charge-1").submit(1, 99_000)
                shop.mail.options(id="later-1", delay=timedelta(hours=5)).submit("a@shop.example", "x")
                shop.paid.options(id="paid-1").submit(body={"order": 1})
                wait_until_running("report-1", app)
                for job_id in ("ship-1", "charge-1", "paid-1"):
                    app.handle(job_id).wait(PATIENCE)
                with serving_pages(shop) as address:
                    yield Site(shop, address, few_addresses_of(shop))
            finally:
                shop.pace.release.set()


@contextmanager
def serving_pages(shop: Shop) -> Iterator[str]:
    """Run a server during the block, and return its URL."""
    listener = open_listener(HttpAddress("127.0.0.1", 0))
    with HttpServer(shop.app.asgi(auth="tokens"), listener, limits=HttpLimits(idle_seconds=600)):
        yield f"http://127.0.0.1:{listener.address.port}"


def answer(request: Received) -> Reply:
    """Answer a callback: most are accepted, some fail and are repeated, and one is refused for good."""
    order = json.loads(request.body)["order"]
    return Reply(410 if order == 3 else 503 if order % 4 == 0 else 204)


@contextmanager
def serving(shop: Shop) -> Iterator[Site]:
    """Run a worker and a server during the block."""
    with shop.app as app, app.running():
        try:
            shop.report.options(id="report-1").submit("2026-10")
            wait_until_running("report-1", app)
            for order in range(1, 9):
                shop.paid.options(id=f"paid-{order}").submit(body={"order": order})
            eventually(lambda: app.counts(type="hooks.paid")["COMPLETED"] == 5)
            eventually(lambda: app.counts(type="hooks.paid")["FAILED"] == 1)
            record_history(app, hours=30)
            with serving_pages(shop) as url:
                yield Site(shop, url, addresses_of(shop))
        finally:
            shop.pace.release.set()
