"""Leases and leased jobs, for tests of parts of the worker."""

from collections.abc import Callable
from typing import Any

from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler
from mainspring.jobs.records import Lease
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.slots import BatchSlots, Slots

DUE = 1_800_000_000_000_000


def make_lease(
    payload: bytes = b"{}", *, codec: str = "json", failures: int = 0, timeouts: int = 0, crashes: int = 0
) -> Lease:
    return Lease(
        ref=1,
        id="order-42",
        type="shop.handler",
        queue="orders",
        due=DUE,
        payload=payload,
        codec=codec,
        token=3,
        is_started=True,
        failures=failures,
        timeouts=timeouts,
        crashes=crashes,
        interruptions=1,
        priority=1,
    )


def make_leased_job(function: Callable[..., Any], lease: Lease | None = None, **options: Any) -> LeasedJob:
    """Make a leased job whose handler is this function."""
    handler = Handler("shop.handler", function, HandlerOptions(**options), JsonSerializer())
    batch = handler.options.batch
    slots = Slots(1, None)
    chosen = slots if batch is None else BatchSlots(batch, None, slots)
    return LeasedJob(lease or make_lease(), handler, chosen, lambda *_report: None, worker=1)
