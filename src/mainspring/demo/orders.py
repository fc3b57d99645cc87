"""The application of the demo shop: its delayed and recurring work is done by durable jobs.

An order that is not paid in time is canceled. An order that a regular customer has paid is charged, packed and
mailed, one order after the other for each customer. A cron schedule writes a report every night.

`mainspring run mainspring.demo.orders:app` starts a worker for it. Its files are in the working directory, as
those of any application by default.
"""

from pathlib import Path
from threading import Event

from mainspring import CatchUp, Mainspring, Retry, current_job
from mainspring.demo.journal import OrderEvent, OrderJournal

CALL_SECONDS = 0.02


class ServiceDown(Exception):
    """The simulated order service is down, and refuses a call."""


class OrderService:
    """A simulated service that cancels and charges orders.

    While the file `switch` exists, it refuses all calls.
    """

    def __init__(self, switch: str) -> None:
        self._switch = Path(switch)
        self._never = Event()

    def go_down(self) -> None:
        """Create the file `switch`, so that the service refuses all calls in all processes."""
        self._switch.touch()

    def come_back(self) -> None:
        """Remove the file `switch`, so that the service accepts calls again."""
        self._switch.unlink()

    def cancel(self, order: int) -> None:
        """Cancel an order; raise `ServiceDown` if the service is down."""
        self._call(f"order {order} cannot be canceled")

    def charge(self, order: int) -> None:
        """Charge an order; raise `ServiceDown` if the service is down."""
        self._call(f"order {order} cannot be charged")

    def _call(self, problem: str) -> None:
        self._never.wait(CALL_SECONDS)
        if self._switch.exists():
            raise ServiceDown(f"{problem}: the order service is down")


app = Mainspring("sqlite:///jobs.db")
journal = OrderJournal("orders.journal")
service = OrderService("order-service-is-down")

REGULAR = 20  # every twentieth order is from a regular customer
CUSTOMERS = 8  # regular customers
NIGHT = 4  # seconds from one night to the next


def timer_of(order: int) -> str:
    """Return the id of the job that cancels an unpaid order. The payment cancels that job by this id."""
    return f"order-{order}"


@app.job(queue="orders", retry=Retry(max_attempts=4, base=0.2, factor=2, max_delay=2, jitter=0.1))
def cancel_order(order: int) -> None:
    """Cancel an order that was not paid in time, and write each step into the journal.

    Raises `ServiceDown`, so that the job is retried, if the order service is down.
    """
    job = current_job()
    journal.note(OrderEvent.STARTED, order, job.id, job.due)
    try:
        service.cancel(order)
    except ServiceDown:
        journal.note(OrderEvent.REFUSED, order, job.id)
        raise
    journal.note(OrderEvent.CANCELED, order, job.id)


# --- parcels: one sequence for each customer, across handlers


@app.job(queue="parcels", retry=Retry(max_attempts=50, base=0.2, factor=2, max_delay=1))
def charge(order: int) -> None:
    """Charge an order. The customer's later jobs wait in the sequence until this job has ended.

    Raises `ServiceDown`, so that the job is retried, if the order service is down.
    """
    job = current_job()
    try:
        service.charge(order)
    except ServiceDown:
        journal.note(OrderEvent.HELD_UP, order, job.id)
        raise
    journal.note(OrderEvent.CHARGED, order, job.id)


@app.job(queue="parcels")
def pack(order: int) -> None:
    """Pack the parcel of an order."""
    journal.note(OrderEvent.PACKED, order, current_job().id)


@app.job(queue="parcels")
def mail(order: int) -> None:
    """Mail the parcel of an order."""
    journal.note(OrderEvent.MAILED, order, current_job().id)


def customer_of(order: int) -> int | None:
    """Return the number of the regular customer who placed the order; None for other customers."""
    return order // REGULAR % CUSTOMERS if order % REGULAR == 0 else None


def promise_parcel(order: int) -> None:
    """Submit the jobs that charge, pack and mail an order, and write this into the journal.

    These jobs run after all earlier jobs of the sequence of the order's customer.
    """
    sequence = f"customer-{customer_of(order)}"
    charge.options(sequence=sequence).submit(order)
    pack.options(sequence=sequence).submit(order)
    last = mail.options(sequence=sequence).submit(order)
    journal.note(OrderEvent.PARCEL, order, last.id)


# --- the nightly report


# A real shop would use "0 2 * * *". With CatchUp every night gets its report, however late.
@app.cron(f"*/{NIGHT} * * * * *", tz="Asia/Taipei", misfire=CatchUp(100), overlap="queue")
@app.job(queue="reports")
def nightly_report() -> str:
    """Write the report into the journal, and return its text.

    The text has the current numbers of unpaid, paid and canceled orders and of parcels.
    """
    job = current_job()
    timers, parcels = app.counts(type=cancel_order.name), app.counts(queue="parcels")
    journal.note(OrderEvent.REPORTED, 0, job.id, job.due)
    return (
        f"{timers['PENDING']:,} unpaid, {timers['CANCELED']:,} paid, {timers['COMPLETED']:,} canceled, "
        f"{parcels['COMPLETED'] // 3:,} parcels"
    )
