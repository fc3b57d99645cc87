"""A shop with jobs of every kind, for the tests and the pictures of the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from threading import Event
from typing import Any

from mainspring import CallbackPolicy, Concurrency, Mainspring, Rate, Retry, current_job
from mainspring.jobs.job_function import JobFunction
from tests.receiver import Receiver

ONCE = Retry(max_attempts=1)
HOSTILE = (
    "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
    "\u202egpj.exe\x00\x1b[31m"
)
"""A text that a careless page would run, reverse or hide."""


class Speed(Enum):
    """How fast a parcel travels."""

    STANDARD = "standard"
    EXPRESS = "express"


@dataclass
class Address:
    """Where a parcel goes."""

    street: str
    city: str
    zip: str = ""


class PaymentRefused(Exception):
    """The bank has refused a payment."""


@dataclass
class Pace:
    """How time passes in handlers."""

    spend: Callable[[float], None] = lambda seconds: None
    """Lets so many seconds pass."""
    release: Event = field(default_factory=Event)
    """Ends the reports, which run until then."""


@dataclass(frozen=True)
class Shop:
    """The application, its pace and its job functions."""

    app: Mainspring
    pace: Pace
    ship: JobFunction[..., Any]
    charge: JobFunction[..., Any]
    mail: JobFunction[..., Any]
    report: JobFunction[..., Any]
    reindex: JobFunction[..., Any]
    hostile: JobFunction[..., Any]
    paid: JobFunction[..., Any]


def make_shop(url: str, receiver: Receiver) -> Shop:
    """Declare the application with its handlers. Its callbacks go to the receiver."""
    hooks = receiver.url("/hooks/*")
    policy = CallbackPolicy(allow=[hooks], allow_http=True, allow_private=True)
    app = Mainspring(url, threads=4, grace=5, callbacks=policy)
    pace = Pace()
    _declare_schedules(app, pace)
    return Shop(
        app=app,
        pace=pace,
        ship=_declare_ship_order(app, pace),
        charge=_declare_charge_card(app, pace),
        mail=_declare_mail(app, pace),
        report=_declare_report(app, pace),
        reindex=app.job(name="search.reindex", queue="search", sequence_by="shard")(reindex),
        hostile=app.job(name="hostile.text", queue="<b>hostile</b>", retry=ONCE)(raise_text),
        paid=app.http_job("hooks.paid", url=receiver.url("/hooks/paid"), queue="hooks", keep_result=True),
    )


def reindex(shard: str) -> None:
    """Build the index of a shard again."""


def raise_text(text: str, data: dict[str, str] | None = None) -> str:
    """Fail with a text of the caller."""
    raise RuntimeError(text[:300])


def _declare_ship_order(app: Mainspring, pace: Pace) -> JobFunction[..., Any]:
    @app.job(
        name="shop.ship_order", queue="orders", search="order_id", retry=Retry(max_attempts=3, base=30, jitter=0)
    )
    def ship_order(
        order_id: int,
        speed: Speed = Speed.STANDARD,
        address: Address | None = None,
        notes: str = "",
        is_gift: bool = False,  # noqa: FBT001, FBT002 - a parameter of a handler
    ) -> dict[str, Any]:
        """Hand an order to the carrier and store the tracking number.

        Raises if the carrier refuses the address.
        """
        pace.spend(0.01 + order_id % 13 / 200)
        if order_id % 29 == 0 or (order_id % 17 == 0 and current_job().attempt == 1):
            find_carrier(order_id)
        return {"tracking": f"DHL{order_id:08}", "parcels": 1 + order_id % 3}

    return ship_order


def find_carrier(order_id: int) -> None:
    """Fail with a chained traceback."""
    carriers: dict[str, str] = {}
    try:
        carriers["DE"]
    except KeyError as error:
        raise ConnectionError(f"the carrier did not answer for order {order_id}") from error


def _declare_charge_card(app: Mainspring, pace: Pace) -> JobFunction[..., Any]:
    @app.job(
        name="shop.charge_card",
        queue="payments",
        retry=ONCE,
        rate=Rate(5_000, per=60, by="currency"),
        concurrency=Concurrency(4),
        redact="card",
    )
    def charge_card(order_id: int, cents: int, currency: str = "EUR", card: str = "") -> str:
        """Charge the card of a customer."""
        pace.spend(0.02)
        if cents > 90_000:
            raise PaymentRefused(f"card of order {order_id} was refused (code 51)")
        return "ok"

    return charge_card


def _declare_mail(app: Mainspring, pace: Pace) -> JobFunction[..., Any]:
    @app.job(name="mail.send", queue="mail", redact="body", retry=ONCE)
    def send(to: str, subject: str, body: str = "") -> None:
        """Send a mail."""
        pace.spend(0.004)
        if to.startswith("bounce"):
            raise ValueError(f"no mailbox {to} at the server")

    return send


def _declare_report(app: Mainspring, pace: Pace) -> JobFunction[..., Any]:
    @app.job(name="reports.monthly", queue="reports")
    def monthly(month: str, rows: int = 500) -> int:
        """Write a report, row by row."""
        job = current_job()
        job.progress(rows * 3 // 5, rows, f"{month}, warehouse south")
        while not job.cancelled and not pace.release.wait(0.02):
            pass
        return rows

    return monthly


def _declare_schedules(app: Mainspring, pace: Pace) -> None:
    @app.every(timedelta(minutes=15), name="stock-sync")
    @app.job(name="stock.sync", queue="stock", retry=ONCE)
    def sync() -> int:
        """Read the stock of the warehouses."""
        pace.spend(1.4)
        if current_job().due.hour % 3 == 0 and current_job().due.minute == 15:
            raise TimeoutError("the warehouse did not answer within 30 s")
        return 4_211

    @app.cron("30 2 * * *", tz="Europe/Berlin", name="nightly-report")
    @app.job(name="reports.nightly", queue="reports", retry=ONCE)
    def nightly(customer: str = "all") -> None:
        """Send the figures of the day."""
        pace.spend(12)
