"""What was submitted? Tests of code that submits, without a worker, and with every job run at once."""

import logging
from datetime import timedelta

from mainspring import Mainspring, Retry
from mainspring.testing import assert_submitted, inline, recording, refute_submitted

logging.getLogger("mainspring").setLevel(
    logging.CRITICAL
)  # the worker logs each failure; here they are on purpose

# --- the application, as it is in production

app = Mainspring("sqlite:///shop.db")
sent: list[str] = []


@app.job(queue="orders")
def cancel_order(order: int, reason: str = "unpaid") -> None:
    send_mail.submit(f"order {order} was canceled: {reason}")


@app.job(retry=Retry(max_attempts=1))
def send_mail(text: str) -> None:
    if not text.isascii():
        raise ValueError(f"cannot send {text!r}")
    sent.append(text)


def place_order(order: int, *, is_paid: bool) -> None:
    if not is_paid:
        cancel_order.after(timedelta(minutes=30)).submit(order)


# --- its tests


def test_an_order_that_is_not_paid_is_to_be_canceled() -> None:
    with recording(app) as jobs:  # submits are recorded, and nothing runs
        place_order(42, is_paid=False)
        assert_submitted(cancel_order, 42, due=timedelta(minutes=30), queue="orders")
        assert len(jobs) == 1


def test_an_order_that_is_paid_is_left_alone() -> None:
    with recording(app):
        place_order(42, is_paid=True)
        refute_submitted(cancel_order)


def test_a_canceled_order_is_told_to_its_customer() -> None:
    with inline(app):  # jobs, and the jobs that they submit, have run when submit returns
        place_order(42, is_paid=False)
        assert sent == ["order 42 was canceled: unpaid"]
        assert_submitted(send_mail, ..., times=1)


def test_a_mail_that_cannot_be_sent_raises() -> None:
    with inline(app, raises=True):
        try:
            send_mail.submit("Grüße")
        except ValueError as error:
            print("the submitter gets what the handler raised:", error)
        else:
            raise AssertionError("it was sent")


def show_a_failure() -> None:
    with recording(app):
        cancel_order.submit(41)
        cancel_order.submit(42, reason="fraud")
        try:
            assert_submitted(cancel_order, 42)
        except AssertionError as failure:
            print(failure)


if __name__ == "__main__":  # pytest finds the tests by name
    test_an_order_that_is_not_paid_is_to_be_canceled()
    test_an_order_that_is_paid_is_left_alone()
    test_a_canceled_order_is_told_to_its_customer()
    test_a_mail_that_cannot_be_sent_raises()
    show_a_failure()
