"""What a type checker must accept, and infer, of durable jobs."""

from datetime import UTC, datetime, timedelta
from typing import assert_type

from mainspring import (
    Cancel,
    JobContext,
    JobHandle,
    JobInfo,
    JobPage,
    JobStatus,
    Mainspring,
    PartialSubmit,
    Priority,
    Retry,
    Snooze,
    ThreadPool,
    current_job,
)
from mainspring.engines.memory import MemoryEngine
from mainspring.jobs import JobManager, MsgpackSerializer
from mainspring.testing import ManualClock, time_travel

app = Mainspring("sqlite:///orders.db", serializer="msgpack", threads=4, queues=["orders"])


@app.job(queue="orders", retry=Retry(max_attempts=6, base=2, jitter=0.1, give_up_on=(KeyError,)), timeout=30)
def cancel_order(order_id: int, reason: str = "unpaid") -> bool:
    job = current_job()
    assert_type(job, JobContext)
    assert_type(job.attempt, int)
    assert_type(job.cancelled, bool)
    if order_id < 0:
        raise Cancel("no such order")
    if reason == "later":
        raise Snooze(timedelta(minutes=5))
    raise Retry.Later(5)


@app.job
def ping() -> str:
    return "pong"


@app.job
async def fetch(url: str, *, attempts: int = 3) -> bytes:
    return url.encode() * attempts


@app.job(timeout=5)
async def store(data: bytes) -> int:
    return len(data)


def submit() -> None:
    assert_type(cancel_order(42), bool)
    assert_type(cancel_order.submit(42), JobHandle[bool])
    assert_type(cancel_order.submit(42, reason="late").result(timeout=5), bool)
    assert_type(cancel_order.submit(order_id=42).wait(timedelta(seconds=5)), JobStatus)
    assert_type(ping.submit().result(), str)
    assert_type(cancel_order.submit_many([{"order_id": 1}, (2, "late")], atomic=True), list[str])


def submit_variants(instant: datetime) -> None:
    assert_type(cancel_order.after(timedelta(minutes=30)).submit(42, reason="timeout").result(), bool)
    assert_type(cancel_order.at(instant).submit(42).cancel(), bool)
    named = cancel_order.options(delay=1800, priority=Priority.USER_BLOCKING, id="order-42", queue="slow")
    assert_type(named.submit(42), JobHandle[bool])
    assert_type(named.after(5).at(instant)(42), bool)


async def submit_async() -> None:
    assert_type(await cancel_order.submit_async(42), JobHandle[bool])
    assert_type(await fetch("here", attempts=2), bytes)
    assert_type(fetch.submit("here", attempts=2).result(), bytes)
    assert_type((await fetch.after(5).submit_async("here")).result(), bytes)
    assert_type(store.submit(b"x").result(), int)
    assert_type(store.options(queue="slow").submit(b"x").result(), int)


def look() -> None:
    assert_type(app.get("order-42"), JobInfo)
    page = app.jobs(status="FAILED", queue="orders", type="cancel_order", limit=50)
    assert_type(page, JobPage)
    assert_type(page[0].due, datetime)
    app.jobs(status=JobStatus.FAILED, after=page.next)
    assert_type(app.counts()["COMPLETED"], int)
    assert_type(app.counts()[JobStatus.COMPLETED], int)
    assert_type(app.cancel("order-42"), bool)
    assert_type(app.dead_letters.replay("order-42"), tuple[str, ...])
    app.dead_letters.replay(type="cancel_order", rate=10)
    app.retry("order-42")


def run() -> None:
    with app, app.running() as same:
        assert_type(same, Mainspring)
    try:
        ping.submit_many([()])
    except PartialSubmit as error:
        assert_type(error.done, list[str])
        assert_type(error.failed, list[str])


def manage(pool: ThreadPool) -> None:
    manager = JobManager(
        control=pool.sequenced(),
        io=pool.single_thread(),
        execution=pool.parallel(limit=4),
        engine=MemoryEngine(clock=ManualClock()),
        serializer=MsgpackSerializer(),
    )
    manager.register("ping", lambda: None, queue="orders")
    assert_type(manager.submit("ping"), str)
    assert_type(manager.submit_delayed("ping", delay=5), str)
    assert_type(manager.active_jobs(), tuple[JobContext, ...])


def travel() -> None:
    with time_travel(app, start=datetime(2026, 1, 1, tzinfo=UTC)) as journey:
        journey.fast_forward(minutes=30)
        assert_type(journey.now, datetime)
