"""The application of the shop: everything that it does later, or again and again, is a durable job.

An order that is not paid in time is cancelled. What a regular customer has paid is charged, packed and mailed, one
after the other for each customer. Every night there is a report.

A worker runs it with `mainspring run mainspring.demo.orders:app`. Its files are in the working directory, like
those of any application that is not told otherwise.
"""

from mainspring import CatchUp, Mainspring, Retry, current_job
from mainspring.demo.journal import Event, Journal
from mainspring.demo.order_service import OrderService, ServiceDown

app = Mainspring("sqlite:///jobs.db")
journal = Journal("orders.journal")
service = OrderService("order-service-is-down")

REGULAR = 20  # every twentieth order is that of a regular customer,
CUSTOMERS = 8  # of whom there are so many
NIGHT = 4  # seconds from one night to the next


def timer_of(order: int) -> str:
    """Return the id of an order's time-out: whoever takes the payment needs nothing else to call it off."""
    return f"order-{order}"


@app.job(queue="orders", retry=Retry(max_attempts=4, base=0.2, factor=2, max_delay=2, jitter=0.1))
def cancel_order(order: int) -> None:
    """Cancel an order: it was not paid in time."""
    job = current_job()
    journal.note(Event.STARTED, order, job.id, job.due)
    try:
        service.cancel(order)
    except ServiceDown:
        journal.note(Event.REFUSED, order, job.id)
        raise
    journal.note(Event.CANCELLED, order, job.id)


# --- parcels: in one sequence for each customer, whatever the handler


@app.job(queue="parcels", retry=Retry(max_attempts=50, base=0.2, factor=2, max_delay=1))
def charge(order: int) -> None:
    """Take the money; what comes after it waits until that has worked."""
    job = current_job()
    try:
        service.charge(order)
    except ServiceDown:
        journal.note(Event.HELD_UP, order, job.id)
        raise
    journal.note(Event.CHARGED, order, job.id)


@app.job(queue="parcels")
def pack(order: int) -> None:
    """Pack the parcel."""
    journal.note(Event.PACKED, order, current_job().id)


@app.job(queue="parcels")
def mail(order: int) -> None:
    """Mail the parcel."""
    journal.note(Event.MAILED, order, current_job().id)


def customer_of(order: int) -> int | None:
    """Return the regular customer whose order this is; None: somebody whom the shop does not know."""
    return order // REGULAR % CUSTOMERS if order % REGULAR == 0 else None


def promise_parcel(order: int) -> None:
    """Have an order charged, packed and mailed, after everything else that was promised to its customer."""
    sequence = f"customer-{customer_of(order)}"
    charge.options(sequence=sequence).submit(order)
    pack.options(sequence=sequence).submit(order)
    last = mail.options(sequence=sequence).submit(order)
    journal.note(Event.PARCEL, order, last.id)


# --- the nightly report


# The real shop says "0 2 * * *". No night goes without its report, however late it comes.
@app.cron(f"*/{NIGHT} * * * * *", tz="Asia/Taipei", misfire=CatchUp(100), overlap="queue")
@app.job(queue="reports")
def nightly_report() -> str:
    """Say how the day went."""
    job = current_job()
    timers, parcels = app.counts(type=cancel_order.name), app.counts(queue="parcels")
    journal.note(Event.REPORTED, 0, job.id, job.due)
    return (
        f"{timers['PENDING']:,} unpaid, {timers['CANCELED']:,} paid, {timers['COMPLETED']:,} cancelled, "
        f"{parcels['COMPLETED'] // 3:,} parcels"
    )
