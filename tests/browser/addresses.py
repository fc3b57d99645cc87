"""The addresses of all pages of the dashboard of the filled shop, for tests and pictures."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.browser.shop import Shop
from tests.dashboard_client import DashboardBrowser


class Address(NamedTuple):
    """A page in one of its states."""

    page: str
    """The name of the page."""
    name: str
    """The name of the state: the name of a picture."""
    path: str
    needs: str = "read"
    """The scope that shows the page."""


def addresses_of(shop: Shop) -> list[Address]:
    """Return the addresses of all pages."""
    group = group_of(shop)
    charge = shop.app.dead_letters.list(type="shop.charge_card", limit=1)[0].id
    return [
        Address("overview", "overview", "/"),
        Address("jobs", "jobs", "/jobs"),
        Address("jobs", "jobs-failed", "/jobs?status=FAILED"),
        Address("jobs", "jobs-searched", "/jobs?argument.order_id=1003&type=shop.ship_order&since=1d"),
        Address("jobs", "jobs-none", "/jobs?queue=nowhere"),
        Address("job", "job-completed", "/jobs/ship-1004"),
        Address("job", "job-failed", "/jobs/ship-1015"),
        Address("job", "job-retried", "/jobs/ship-1020"),
        Address("job", "job-running", "/jobs/report-1"),
        Address("job", "job-scheduled", "/jobs/reminder-1"),
        Address("job", "job-paused", "/jobs/reindex-1"),
        Address("job", "job-hostile", "/jobs/hostile-1"),
        Address("job", "job-huge", "/jobs/hostile-2"),
        Address("job_replay", "job-replay", f"/jobs/{charge}/replay", "operate"),
        Address("bulk", "bulk", "/bulk?action=reschedule&queue=mail&status=PENDING", "operate"),
        Address("submit", "submit", "/submit?type=shop.ship_order", "submit"),
        Address("dead-letters", "dead-letters", "/dead-letters"),
        Address("dead-letter-group", "dead-letter-group", f"/dead-letters/{group}"),
        Address("dead-letter-replay", "dead-letter-replay", f"/dead-letters/{group}/replay", "operate"),
        Address("dead-letter-purge", "dead-letter-purge", f"/dead-letters/{group}/purge", "operate"),
        Address("schedules", "schedules", "/schedules"),
        Address("schedule", "schedule", "/schedules/stock-sync"),
        Address("schedule", "schedule-nightly", "/schedules/nightly-report"),
        Address("schedule-new", "schedule-new", "/new-schedule", "operate"),
        Address("schedule-edit", "schedule-edit", "/schedules/nightly-report/edit", "operate"),
        Address("schedule-remove", "schedule-remove", "/schedules/nightly-report/remove", "operate"),
        Address("queues", "queues", "/queues"),
        Address("queue", "queue", "/queues/payments"),
        Address("workers", "workers", "/workers"),
        Address("callbacks", "callbacks", "/callbacks"),
        Address("audit", "audit", "/audit", "operate"),
    ]


def few_addresses_of(shop: Shop) -> list[Address]:
    """Return an address of each page that shows something of the store, for the small shop."""
    group = group_of(shop)
    return [
        Address("overview", "overview", "/"),
        Address("jobs", "jobs", "/jobs"),
        Address("jobs", "jobs-searched", "/jobs?argument.order_id=1&type=shop.ship_order"),
        Address("job", "job-completed", "/jobs/ship-1"),
        Address("job", "job-failed", "/jobs/charge-1"),
        Address("job", "job-running", "/jobs/report-1"),
        Address("job_replay", "job-replay", "/jobs/charge-1/replay", "operate"),
        Address("bulk", "bulk", "/bulk?action=reschedule&queue=mail&status=PENDING", "operate"),
        Address("dead-letters", "dead-letters", "/dead-letters"),
        Address("dead-letter-group", "dead-letter-group", f"/dead-letters/{group}"),
        Address("schedules", "schedules", "/schedules"),
        Address("schedule", "schedule", "/schedules/stock-sync"),
        Address("queues", "queues", "/queues"),
        Address("queue", "queue", "/queues/payments"),
        Address("workers", "workers", "/workers"),
        Address("callbacks", "callbacks", "/callbacks"),
        Address("audit", "audit", "/audit", "operate"),
    ]


def group_of(shop: Shop) -> str:
    """Return the key of the group of dead letters of refused payments."""
    listed = DashboardBrowser(shop.app).get("/dead-letters?type=shop.charge_card").body.decode()
    found = re.search(r'href="/dead-letters/([0-9a-f]+)', listed)
    assert found is not None, "the shop has no dead letters"
    return found[1]
