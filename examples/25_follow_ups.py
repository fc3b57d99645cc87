"""One job after another: the follow-up is stored in the same step that completes its predecessor."""

from contextlib import chdir
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from mainspring import JobStatus, Mainspring

app = Mainspring("sqlite:///shop.db")


@dataclass(frozen=True)
class Receipt:
    """What a payment leaves behind."""

    order: int
    cents: int


@app.job(queue="mail")
def send_receipt(receipt: Receipt) -> str:  # gets what its predecessor returned, checked like any argument
    return f"order {receipt.order}: {receipt.cents / 100:.2f}"


@app.job
def ask_for_review(receipt: Receipt) -> None: ...


@app.job(then=send_receipt)  # no crash can leave an order charged and without a receipt to send
def charge(order: int, cents: int) -> Receipt:
    return Receipt(order, cents)


with TemporaryDirectory() as folder, chdir(folder), app, app.running():
    charge.submit(42, 1999)
    charge.options(then=ask_for_review.after(7 * 24 * 3600)).submit(43, 500)  # this one, and not the receipt
    app.queue("default").drain(timeout=10)
    app.queue("mail").drain(timeout=10)

    for job in app.jobs():
        print(
            f"{job.type.partition('.')[2]:15} {job.status:10} due {job.due:%d %b}: {job.result or job.arguments}"
        )
    (receipt,) = app.jobs(type="send_receipt")
    assert (receipt.status, receipt.result) == (JobStatus.COMPLETED, "order 42: 19.99")
    (review,) = app.jobs(type="ask_for_review")
    assert (review.status, review.arguments) == (JobStatus.PENDING, {"receipt": {"order": 43, "cents": 500}})
