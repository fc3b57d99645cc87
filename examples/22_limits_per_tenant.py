"""Limits over all workers: one at a time for each tenant, ten a second in all, and no tenant starves another."""

from datetime import UTC, datetime
from threading import Lock

from mainspring import Concurrency, JobStatus, Mainspring, Rate, Reason, current_job
from mainspring.testing import time_travel

app = Mainspring("memory://")
app.queue("provider", rate=Rate(10, per=1))  # whatever handler: the provider takes ten calls a second

lock = Lock()
running: set[str] = set()
order: list[str] = []


@app.job(queue="provider", concurrency=Concurrency(1, by="tenant"))
def send(tenant: str, number: int) -> None:
    with lock:
        assert tenant not in running  # never two of one tenant at once, on no worker
        running.add(tenant)
        order.append(tenant)
    current_job().log.debug("sending %d", number)
    with lock:
        running.remove(tenant)


with time_travel(app, start=datetime(2026, 1, 5, 12, tzinfo=UTC)) as travel:
    app.queue("provider").pause()
    send.submit_many([("greedy", number) for number in range(1_000)])
    travel.fast_forward(seconds=1)
    send.submit_many([("modest", number) for number in range(3)])  # comes last, a thousand jobs behind
    app.queue("provider").resume()
    travel.settle()
    print(
        f"at once, after a quiet time: {len(order)} starts, {order.count('modest')} of them for the modest tenant"
    )
    assert len(order) == 10
    assert order[:6].count("modest") >= 2  # they take turns

    waiting = app.jobs(status=JobStatus.PENDING, limit=1)[0]
    explanation = app.explain(waiting.id)
    print(explanation)
    assert explanation.reason is Reason.RATE_LIMITED
    travel.fast_forward(seconds=10)
    print(f"ten seconds later: {len(order)} starts")  # a bucket of ten that fills up by ten a second
    assert len(order) == 110
