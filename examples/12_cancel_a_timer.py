"""An unpaid order is canceled after half an hour, unless the payment comes first: exactly one of the two wins."""

from contextlib import chdir
from datetime import timedelta
from tempfile import TemporaryDirectory

from mainspring import JobHandle, JobStatus, Mainspring

HALF_AN_HOUR = timedelta(milliseconds=400)  # in this shop

app = Mainspring("sqlite:///shop.db")


@app.job(queue="orders")
def cancel_order(order: int) -> None:
    print(f"order {order} was not paid: canceled, its stock is free again")


def place(order: int) -> JobHandle[None]:
    # The id is ours: the process that takes the payment needs only the number of the order.
    return cancel_order.options(delay=HALF_AN_HOUR, id=f"order-{order}").submit(order)


def pay(order: int) -> None:
    if app.cancel(f"order-{order}"):  # True is a promise: the time-out will never run
        print(f"order {order} is paid")
    else:  # it runs already, or has run
        print(f"order {order} was paid too late: the money goes back")


with TemporaryDirectory() as folder, chdir(folder), app, app.running():
    first, second = place(1), place(2)
    print(f"orders 1 and 2 can be paid until {second.info().due:%H:%M:%S.%f} UTC")
    pay(1)
    assert second.wait(timeout=10) is JobStatus.COMPLETED
    pay(2)
    assert first.status() is JobStatus.CANCELED
