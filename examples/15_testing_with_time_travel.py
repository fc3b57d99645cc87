"""Half an hour, and a night of retries, in milliseconds: how to test an application that waits."""

import logging
from datetime import UTC, datetime, timedelta

from mainspring import JobStatus, Mainspring, Retry
from mainspring.testing import time_travel

logging.getLogger("mainspring").setLevel(
    logging.CRITICAL
)  # the worker logs each failure; here they are on purpose

# --- the application, as it is in production

app = Mainspring("sqlite:///shop.db")
canceled: list[int] = []


@app.job
def cancel_order(order: int) -> None:
    canceled.append(order)


@app.job(retry=Retry(max_attempts=5, base=timedelta(hours=1), factor=2, max_delay=timedelta(hours=8)))
def send_invoice(order: int) -> None:
    raise ConnectionError(f"the invoice of order {order} did not reach the mail server")


# --- its tests: real threads, a store of their own, and a clock that moves when it is told to


def test_an_unpaid_order_is_canceled_after_half_an_hour() -> None:
    with time_travel(app, start=datetime(2026, 1, 5, 12, tzinfo=UTC)) as travel:
        cancel_order.after(timedelta(minutes=30)).submit(42)
        travel.fast_forward(minutes=29, seconds=59)
        assert canceled == []
        travel.fast_forward(seconds=1)
        assert canceled == [42]


def test_an_invoice_is_given_up_after_a_night() -> None:
    with time_travel(app, start=datetime(2026, 5, 1, 18, 0, tzinfo=UTC)) as travel:
        invoice = send_invoice.submit(42)
        travel.fast_forward(hours=14)  # attempts after 0, 1, 3 and 7 hours
        assert invoice.info().attempts == 4
        assert invoice.status() is JobStatus.PENDING
        travel.fast_forward(hours=1)
        assert invoice.status() is JobStatus.FAILED
        for attempt in invoice.info().history:
            print(f"{attempt.ended:%d %b %H:%M}  {attempt.error.splitlines()[0]}")


if __name__ == "__main__":  # pytest finds them by name
    test_an_unpaid_order_is_canceled_after_half_an_hour()
    test_an_invoice_is_given_up_after_a_night()
    print("tested: half an hour of patience, and fifteen hours of retries")
