"""The customers of the demo: tasks in a thread pool that place orders. Most pay before the time-out."""

import random
from dataclasses import dataclass

from mainspring import ThreadPool
from mainspring.demo.journal import OrderEvent
from mainspring.demo.orders import CUSTOMERS, app, cancel_order, customer_of, journal, promise_parcel, timer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerPlan:
    """The plan for all customers: how many orders they place, when the service fails, when the worker is killed.

    Times are seconds since the shop opened, except for `timeout`.
    """

    orders: int
    placed_within: float
    timeout: float
    """The time until an unpaid order is canceled; a real shop would use thirty minutes."""
    unpaid_share: float
    """The share of the orders, from 0 to 1, for which no customer tries to pay."""
    service_down: float
    service_back: float
    kill: float


class Customers:
    """Places all orders and pays most of them. `payers` is the number of orders that customers try to pay."""

    def __init__(self, plan: CustomerPlan, pool: ThreadPool) -> None:
        self._plan = plan
        self._pool = pool
        self._sequences = [pool.sequenced(name=f"customer-{number}") for number in range(CUSTOMERS)]
        self.payers = 0

    def arrive(self) -> None:
        """Post a delayed task for each order, which places the order at a random time."""
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
        journal.note(OrderEvent.PLACED, order, timer.id)  # from here on the order must be paid or canceled
        if patience is not None:
            self._pool.post(self._pay, order, delay=patience)

    def _pay(self, order: int) -> None:
        timer = timer_of(order)
        is_in_time = app.cancel(timer)  # True means that the time-out will never run
        journal.note(OrderEvent.PAID if is_in_time else OrderEvent.PAID_LATE, order, timer)
        customer = customer_of(order)
        if is_in_time and customer is not None:
            self._sequences[customer].post(promise_parcel, order)  # in sequence, so that their order is known
