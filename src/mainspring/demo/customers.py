"""The customers: they place orders, and most of them pay before the time-out. Each is a task in a thread pool."""

import random
from dataclasses import dataclass

from mainspring import ThreadPool
from mainspring.demo.journal import Event
from mainspring.demo.orders import CUSTOMERS, app, cancel_order, customer_of, journal, promise_parcel, timer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much happens, and when; in seconds since the first customer."""

    orders: int
    placed_within: float
    timeout: float
    """Until an unpaid order is cancelled: thirty minutes in the real shop."""
    unpaid_share: float
    service_down: float
    service_back: float
    kill: float


class Customers:
    """Everybody who orders; `payers` is how many of them try to pay."""

    def __init__(self, plan: Plan, pool: ThreadPool) -> None:
        self._plan = plan
        self._pool = pool
        self._desks = [pool.sequenced(name=f"customer-{number}") for number in range(CUSTOMERS)]
        self.payers = 0

    def arrive(self) -> None:
        """Let all of them come, each in its own time."""
        chance = random.Random(42)
        timeout = self._plan.timeout
        for order in range(self._plan.orders):
            patience = None
            if chance.random() >= self._plan.unpaid_share:
                patience = chance.uniform(0.1, 0.95) * timeout
                self.payers += 1
            arrival = chance.random() * self._plan.placed_within
            self._pool.post(self._place, order, patience, delay=arrival)

    def _place(self, order: int, patience: float | None) -> None:
        timer = cancel_order.options(delay=self._plan.timeout, id=timer_of(order)).submit(order)
        journal.note(Event.PLACED, order, timer.id)  # from here on it must be paid or cancelled
        if patience is not None:
            self._pool.post(self._pay, order, delay=patience)

    def _pay(self, order: int) -> None:
        timer = timer_of(order)
        is_in_time = app.cancel(timer)  # True: it will never run
        journal.note(Event.PAID if is_in_time else Event.PAID_LATE, order, timer)
        customer = customer_of(order)
        if is_in_time and customer is not None:
            self._desks[customer].post(promise_parcel, order)  # one after the other, so the order is known
