"""Jobs of one customer run one after another, in order; those of different customers side by side."""

import logging
from datetime import UTC, datetime
from threading import Lock

from mainspring import Mainspring, Retry, current_job
from mainspring.testing import time_travel

logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # the failure below is on purpose

app = Mainspring("memory://")
lock = Lock()  # handlers of different customers run at the same time
done: dict[str, list[str]] = {"ann": [], "bob": []}
provider = {"fails": 1}


def note(customer: str, what: str) -> None:
    with lock:
        done[customer].append(what)


@app.job(retry=Retry(max_attempts=3, base=60))
def charge(customer: str) -> None:
    if customer == "ann" and provider["fails"]:
        provider["fails"] -= 1
        raise ConnectionError("the provider does not answer")
    note(customer, f"charged (attempt {current_job().attempt})")


@app.job
def pack(customer: str) -> None:
    note(customer, "packed")


@app.job
def send_mail(customer: str, text: str) -> None:
    note(customer, text)


with time_travel(app, start=datetime(2026, 1, 5, 12, tzinfo=UTC)) as travel:
    parcels = {}
    for customer in ("ann", "bob"):
        charge.options(sequence=customer).submit(customer)  # one sequence over all handlers and queues
        parcels[customer] = pack.options(sequence=customer).submit(customer)
        send_mail.options(sequence=customer).submit(customer, "mailed")
    travel.settle()
    print(f"at once: {done}")  # ann's charge failed, and holds its place until its retry: nothing overtakes it
    assert done == {"ann": [], "bob": ["charged (attempt 1)", "packed", "mailed"]}

    print(app.explain(parcels["ann"].id))
    travel.fast_forward(minutes=1)
    print(f"a minute later: {done}")
    assert done["ann"] == ["charged (attempt 2)", "packed", "mailed"]

    # With steps_aside a retry goes to the back of the line instead.
    provider["fails"] = 1
    charge.options(sequence="ann", steps_aside=True).submit("ann")
    send_mail.options(sequence="ann").submit("ann", "news")
    travel.fast_forward(minutes=2)
    assert done["ann"][3:] == ["news", "charged (attempt 2)"]
