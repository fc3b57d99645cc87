"""The application of the shop: an order that is not paid in time is cancelled by a durable job.

A worker runs it with `mainspring run shop.orders:app`. Its files are in the working directory, like those of any
application that is not told otherwise.
"""

from shop.journal import Event, Journal
from shop.order_service import OrderService, ServiceDown

from mainspring import Mainspring, Retry, current_job

app = Mainspring("sqlite:///jobs.db")
journal = Journal("orders.journal")
service = OrderService("order-service-is-down")


def timer_of(order: int) -> str:
    """Return the id of an order's time-out: whoever takes the payment needs nothing else to call it off."""
    return f"order-{order}"


@app.job(queue="orders", retry=Retry(max_attempts=4, base=0.2, factor=2, max_delay=2, jitter=0.1))
def cancel_order(order: int) -> None:
    job = current_job()
    journal.note(Event.STARTED, order, job.id, job.due)
    try:
        service.cancel(order)
    except ServiceDown:
        journal.note(Event.REFUSED, order, job.id)
        raise
    journal.note(Event.CANCELLED, order, job.id)
