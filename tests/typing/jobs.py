"""What a type checker must accept, and infer, of durable jobs."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from mainspring import (
    CallbackPolicy,
    CallbackSecret,
    Cancel,
    CatchUp,
    Concurrency,
    Cron,
    DeadLetter,
    EventKind,
    EventStream,
    Every,
    Explanation,
    Job,
    JobContext,
    JobFunction,
    JobHandle,
    JobInfo,
    JobPage,
    JobStatus,
    Keep,
    Mainspring,
    Middleware,
    PartialSubmit,
    Priority,
    ProcessSettings,
    Queue,
    QueueStatistics,
    Rate,
    Reason,
    Retry,
    ScheduleInfo,
    Snooze,
    Submit,
    ThreadPool,
    Unique,
    WorkerStatus,
    current_batch,
    current_job,
)
from mainspring.engines.sqlite.memory import MemoryEngine
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


@app.job(
    unique=Unique(by="order_id", window=60, on_conflict="raise"),
    rate=Rate(10, per=timedelta(minutes=1)),
    concurrency=Concurrency(5, by=("order_id",)),
    expires=300,
    soft_timeout=20,
    timeout=30,
    keep_result=timedelta(days=1),
    then=ping.options(delay=5),
    sequence_by="order_id",
    steps_aside=True,
)
def ship(order_id: int) -> str:
    assert_type(current_job().headers.get("user"), str | None)
    return str(order_id)


@app.job(at_most_once=True, then=ping.options(delay=5))
def transfer(order_id: int) -> None: ...


@app.on_dead_letter
def alert(letter: DeadLetter) -> str:
    assert_type(letter.finished, datetime)
    return letter.reason


@app.on_dead_letter
@app.job(queue="alerts")
async def record(job_id: str) -> bool:
    return bool(job_id)


@app.on_worker_start
@app.on_worker_stop
def connect() -> int:
    return 7


@app.job(batch=100, execution="process")
def index(documents: list[bytes]) -> list[int]:
    assert_type(current_batch(), tuple[JobContext, ...])
    return [len(document) for document in documents]


@app.job(batch=10)
async def index_later(documents: list[str]) -> None: ...


@app.cron(
    "0 2 * * *", tz="Asia/Taipei", misfire="once", overlap="skip", dst_gap="shift", dst_fold="both", jitter=5
)
def nightly(region: str = "eu") -> int:
    return len(region)


@app.every(timedelta(minutes=5), misfire=CatchUp(3), start=datetime(2026, 1, 1, tzinfo=UTC), name="sync")
@app.job(queue="slow")
async def sync() -> bytes:
    return b""


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


async def call_from_a_loop(handle: JobHandle[bool], queue: Queue) -> None:
    assert_type(await handle, bool)
    assert_type(await handle.result_async(timeout=5), bool)
    assert_type(await handle.wait_async(timedelta(seconds=5)), JobStatus)
    assert_type(await handle.status_async(), JobStatus)
    assert_type(await handle.info_async(), JobInfo)
    assert_type(await handle.cancel_async(timeout=5), bool)
    assert_type(await handle.reschedule_async(delay=60), bool)
    assert_type(await handle.explain_async(), Explanation)
    assert_type(await asyncio.gather(handle, handle), tuple[bool, bool])
    assert_type(await cancel_order.submit_many_async([{"order_id": 1}, (2, "late")], atomic=True), list[str])
    assert_type(await app.get_async("order-42"), JobInfo)
    assert_type(await app.jobs_async(status="FAILED", queue="orders", type="cancel_order", limit=50), JobPage)
    assert_type(await app.counts_async(queue="orders"), dict[str, int])
    assert_type(await app.cancel_async("order-42", timeout=5), bool)
    assert_type(await app.reschedule_async("order-42", delay=60), bool)
    assert_type(await app.explain_async("order-42"), Explanation)
    await app.retry_async("order-42")
    assert_type(await app.dead_letters.list_async(queue="orders"), JobPage)
    assert_type(await app.dead_letters.replay_async("order-42", rate=10), tuple[str, ...])
    async for pairs in app.dead_letters.replaying_async(type="cancel_order"):
        assert_type(pairs, tuple[tuple[str, str], ...])
    assert_type(await app.dead_letters.purge_async("order-42"), int)
    assert_type(await app.schedules.put_async("often", ping, Every(60), overlap="queue"), ScheduleInfo)
    assert_type(await app.schedules.list_async(), list[ScheduleInfo])
    assert_type(await app.schedules.pause_async("often"), bool)
    assert_type(await queue.pause_async(), bool)
    assert_type(await queue.is_paused_async(), bool)
    assert_type(await queue.statistics_async(), QueueStatistics)
    await queue.drain_async(timeout=timedelta(seconds=5))
    async with app, app.running_async() as same:
        assert_type(same, Mainspring)
    async for event in await app.events_async(timeout=5):
        assert_type(event.kind, EventKind)


async def use_hooks(letter: DeadLetter) -> None:
    assert_type(alert(letter), str)
    assert_type(alert.submit(letter), JobHandle[str])
    assert_type(await record("order-42"), bool)
    assert_type(connect(), int)
    transfer.options(then=cancel_order.bind(reason="unpaid")).submit(42)
    assert_type(app.dead_letters.handlers(), list[str])
    assert_type(app.dead_letters.remove_handler("shop.alert"), bool)


def submit_with_policies() -> None:
    in_line = cancel_order.options(sequence="order-42", steps_aside=True, expires=60, headers={"user": "42"})
    assert_type(in_line.submit(42), JobHandle[bool])
    assert_type(in_line.options(unique="order-42", then=ship).submit(42).result(), bool)
    assert_type(ship.options(unique=Unique("k", on_conflict="replace")).submit(42).result(), str)
    index.submit(b"one document")
    index.after(5).submit_many([(b"one",), (b"two",)])
    index([b"one", b"two"])


async def recur() -> None:
    assert_type(nightly("us"), int)
    assert_type(nightly.submit(region="us"), JobHandle[int])
    assert_type(await sync(), bytes)
    assert_type(sync.submit().result(), bytes)
    index_later.submit("one")
    await index_later(["one", "two"])


def operate() -> None:
    app.schedules.put(
        "weekly", cancel_order.options(queue="slow"), Cron("0 6 * * 1", tz="Europe/Berlin"), arguments=(42,)
    )
    app.schedules.put("often", ping, Every(60), overlap="queue")
    assert_type(app.schedules.get("weekly"), ScheduleInfo)
    queue = app.queue("orders", concurrency=Concurrency(5), rate=Rate(10, by="order_id"))
    assert_type(queue, Queue)
    assert_type(queue.pause(), bool)
    assert_type(queue.statistics(), QueueStatistics)
    queue.drain(timeout=timedelta(seconds=5))
    explanation = app.explain("order-42")
    assert_type(explanation, Explanation)
    assert_type(explanation.reason, Reason)
    assert_type(explanation.until, datetime | None)
    assert_type(app.reschedule("order-42", delay=60), bool)
    assert_type(app.prune(), int)
    Mainspring("memory://", keep=Keep(completed=60, most=None), processes=ProcessSettings(count=2, max_jobs=100))


async def follow() -> None:
    for event in app.events(timeout=5):
        assert_type(event.kind, EventKind)
        assert_type(event.at, datetime)
    stream = app.events()
    assert_type(stream, EventStream)
    async for event in stream:
        assert_type(event.job_id, str)


class Tracing(Middleware):
    def submitting(self, submit: Submit) -> AbstractContextManager[None]:
        submit.headers["count"] = str(submit.count)
        return nullcontext()


assert_type(app.middleware(Tracing()), Tracing)


def look() -> None:
    assert_type(app.get("order-42"), JobInfo)
    page = app.jobs(status="FAILED", queue="orders", type="cancel_order", limit=50)
    assert_type(page, JobPage)
    assert_type(page[0].due, datetime)
    app.jobs(status=JobStatus.FAILED, after=page.next)
    app.jobs(
        arguments={"order_id": 42},
        since=timedelta(hours=2),
        until=datetime(2027, 1, 1, tzinfo=UTC),
        text="blocked",
    )
    assert_type(page.is_complete, bool)
    assert_type(app.workers(), list[WorkerStatus])
    assert_type(app.run_now("order-42"), bool)
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


def plan(job: JobFunction[..., bool], old: Job[..., bool]) -> None:
    assert_type(job.after(60).submit(), JobHandle[bool])
    assert_type(old, JobFunction[..., bool])


plan(cancel_order, cancel_order)


def callbacks() -> None:
    calling = Mainspring(
        "memory://",
        callbacks=CallbackPolicy(
            allow=["https://hooks.example.com/*"],
            secrets={"one": "whsec_", "two": ["whsec_", b"bytes"], "three": CallbackSecret("whsec_")},
        ),
    )
    paid = calling.http_job("paid", url="https://hooks.example.com/paid", headers={"X-Key": "1"}, timeout=5)
    assert_type(paid.submit(body={"order": 42}), JobHandle[dict[str, Any] | None])
    assert_type(paid.after(60).submit("text", {"X-Own": "2"}).result(timeout=1), dict[str, Any] | None)
    assert_type(calling.callback_types(), tuple[str, ...])
    calling.every(60)(paid)
