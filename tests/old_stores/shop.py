"""The application of the old stores: the same handlers make the stores and, in tests, run what is in them.

Old stores name these handlers, queues, limits and schedules. So none of them is ever renamed or removed here; a
new store may add others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from threading import Event, Lock
from typing import Any, Literal
from uuid import UUID

from mainspring import Concurrency, Keep, Mainspring, NatsSettings, Rate, Retry, Snooze, current_batch, current_job
from mainspring.clock import Clock, SystemClock

FAR = datetime(2900, 1, 1, tzinfo=UTC)
"""When what must not happen in a test on real time is due."""
ALWAYS = timedelta(days=365 * 800)
RATE_TOKENS = 3
RATE_SECONDS = 600


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Item:
    sku: str
    price: Decimal
    colors: tuple[Color, ...] = ()


@dataclass(frozen=True)
class Order:
    number: int
    placed: datetime
    items: list[Item]
    gift: Item | None = None


class Ledger:
    """The calls of handlers in their order: which job, which handler, with which arguments."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self.most_at_once: dict[str, int] = {}

    def write(self, *arguments: Any) -> None:
        job = current_job()
        with self._lock:
            self._calls.append((job.id, job.type, arguments))

    def write_batch(self, elements: list[Any]) -> None:
        with self._lock:
            for job, element in zip(current_batch(), elements, strict=True):
                self._calls.append((job.id, job.type, (element,)))

    def enter(self, key: str, running: int) -> None:
        """Note how many jobs of a limit run, as the store says while one of them does."""
        with self._lock:
            self.most_at_once[key] = max(running, self.most_at_once.get(key, 0))

    @property
    def calls(self) -> list[tuple[str, str, tuple[Any, ...]]]:
        with self._lock:
            return list(self._calls)

    @property
    def ids(self) -> list[str]:
        return [job_id for job_id, _, _ in self.calls]

    def of(self, type: str) -> list[tuple[Any, ...]]:
        return [arguments for _, called, arguments in self.calls if called == type]


class Shop:
    """An application with its handlers.

    While a store is made, `is_broken` lets fragile handlers fail, and `holds` lets long ones wait for the end of
    their process. `counts_running` lets limited handlers ask the store how many of them run.
    """

    def __init__(
        self,
        url: str,
        *,
        serializer: Literal["json", "msgpack"] = "json",
        clock: Clock | None = None,
        nats: NatsSettings | None = None,
        is_broken: bool = False,
        holds: bool = False,
        counts_running: bool = False,
    ) -> None:
        # Nothing that has ended is forgotten by its age, however old the store is.
        keep = Keep(completed=None, canceled=None, failed=None)
        self.app = Mainspring(
            url, serializer=serializer, clock=clock, nats=nats, keep=keep, durability="normal", grace=0
        )
        self.ledger = Ledger()
        self.clock: Clock = clock or SystemClock()
        self.is_broken = is_broken
        self.holds = holds
        self.counts_running = counts_running
        self.never = Event()
        self.app.queue("narrow", concurrency=Concurrency(2))
        self._register_plain()
        self._register_limited()
        self._register_failing()
        self._register_recurring()

    def _hold(self) -> None:
        if self.holds:
            self.never.wait()

    def _register_plain(self) -> None:
        app, ledger = self.app, self.ledger

        @app.job(name="greet")
        def greet(name: str, times: int = 1) -> str:
            ledger.write(name, times)
            return f"hello {name}" * times

        @app.job(name="notify", queue="mail")
        def notify(text: str) -> None:
            ledger.write(text, dict(current_job().headers))

        @app.job(name="pack", queue="orders")
        def pack(order: Order, day: date, at: time, ident: UUID, raw: bytes, **more: Any) -> Order:
            ledger.write(order, day, at, ident, raw, more)
            return order

        @app.job(name="weigh", queue="orders")
        def weigh(
            amount: Decimal,
            wait: timedelta,
            color: Color,
            weights: dict[str, float],
            parts: tuple[int, str] | None,
        ) -> Decimal:
            ledger.write(amount, wait, color, weights, parts)
            return amount * 2

        @app.job(name="fetch")
        async def fetch(page: str) -> int:
            ledger.write(page)
            return len(page)

        @app.job(name="index", batch=3)
        def index(pages: list[str]) -> list[int]:
            ledger.write_batch(pages)
            return [len(page) for page in pages]

        @app.job(name="import", queue="imports", timeout=3600)
        def import_(name: str, pages: int) -> int:
            ledger.write(name, pages)
            current_job().progress(1, pages, "read")
            self._hold()
            return pages

        self.greet, self.notify, self.pack, self.weigh = greet, notify, pack, weigh
        self.fetch, self.index, self.import_ = fetch, index, import_

    def _register_limited(self) -> None:
        app, ledger = self.app, self.ledger

        @app.job(name="charge", concurrency=Concurrency(1, by="customer"))
        def charge(customer: str, number: int) -> None:
            ledger.write(customer, number)
            self._count_running("charge", customer)
            self._hold()

        @app.job(name="call", rate=Rate(RATE_TOKENS, per=RATE_SECONDS, by="customer"))
        def call(customer: str, number: int) -> None:
            ledger.write(customer, number)

        @app.job(name="ship", queue="narrow")
        def ship(number: int) -> None:
            ledger.write(number)
            self._count_running("ship", None)

        @app.job(name="step", sequence_by="order")
        def step(order: str, number: int) -> None:
            ledger.write(order, number)
            self._hold()

        self.charge, self.call, self.ship, self.step = charge, call, ship, step

    def _count_running(self, type: str, customer: str | None) -> None:
        if not self.counts_running:
            return
        jobs = self.app.jobs(status="RUNNING", type=type)
        running = [job for job in jobs if customer is None or job.arguments["customer"] == customer]
        self.ledger.enter(type if customer is None else f"{type} {customer}", len(running))

    def _register_failing(self) -> None:
        app, ledger = self.app, self.ledger

        @app.job(name="fragile", retry=Retry(max_attempts=2, base=0))
        def fragile(number: int) -> int:
            ledger.write(number)
            if self.is_broken:
                raise ConnectionError(f"no answer for {number}")
            return number

        @app.job(name="flaky")
        def flaky(number: int) -> int:
            ledger.write(number)
            if self.is_broken:
                raise Retry.Later(5)
            return number

        @app.job(name="sleepy")
        def sleepy(number: int) -> int:
            ledger.write(number)
            if self.is_broken:
                raise Snooze(5)
            return number

        @app.job(name="poison", queue="poison")
        def poison() -> None:
            ledger.write()
            self._hold()

        self.fragile, self.flaky, self.sleepy, self.poison = fragile, flaky, sleepy, poison

    def _register_recurring(self) -> None:
        app, ledger = self.app, self.ledger

        @app.cron("0 2 * * *", tz="Asia/Taipei", name="nightly", start=FAR)
        @app.job(name="report", queue="reports")
        def report(about: str = "all") -> None:
            ledger.write(about)

        @app.every(timedelta(minutes=5), name="sync", overlap="queue", start=FAR)
        @app.job(name="sync", queue="reports")
        def sync() -> None:
            ledger.write()

        self.report, self.sync = report, sync
