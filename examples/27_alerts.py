"""Alerts: a handler gets each dead letter as a job of its own, stored in the same step that gives the job up."""

import logging
from contextlib import chdir
from datetime import UTC, datetime
from tempfile import TemporaryDirectory

from mainspring import DeadLetter, JobStatus, Mainspring, Rate, Retry
from mainspring.testing import time_travel

logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # the worker logs each failure; here we print our own

app = Mainspring("sqlite:///shop.db")
outbox: list[str] = []
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@app.on_dead_letter  # retried for a day, at most ten a minute: an outage of the mail server loses no alert
@app.job(queue="alerts", retry=Retry(max_attempts=200, max_delay=600), rate=Rate(10, per=60), timeout=10)
def alert(letter: DeadLetter) -> None:
    outbox.append(f"{letter.type} {letter.id}: {letter.reason}")


@app.job(retry=Retry(max_attempts=2))
def charge(order: int) -> None:
    raise ConnectionError(f"no answer for order {order}")


@app.job(expires=60)
def remind(order: int) -> None: ...


with TemporaryDirectory() as folder, chdir(folder), app, time_travel(app, start=NOON) as travel:
    charge.options(id="charge-42").submit(42)
    app.queue("reminders").pause()
    remind.options(id="remind-42", queue="reminders").submit(42)  # it does not start in time
    travel.fast_forward(minutes=2)

    print(*outbox, sep="\n")
    assert outbox == [
        "27_alerts.charge charge-42: ConnectionError: no answer for order 42",
        "27_alerts.remind remind-42: expired: it did not start within its time",
    ]
    assert app.get("charge-42").status is JobStatus.FAILED
    assert app.dead_letters.handlers() == [alert.name]
