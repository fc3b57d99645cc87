"""What a type checker must refuse: each marked line, for that reason, and no other line."""

from mainspring import Concurrency, Cron, Keep, Mainspring, Rate, ThreadPool, Unique
from mainspring.errors import DuplicateJob, PartialSubmit, QueueFull, RunnerClosed

QueueFull(name="orders", capacity="ten")  # error: arg-type
QueueFull(name="orders")  # error: call-arg
RunnerClosed("orders")  # error: call-arg
RunnerClosed(runner="orders").capacity  # error: attr-defined


def double(number: int) -> int:
    return number * 2


pool = ThreadPool(1)
pool.post(double, "twenty-one")  # error: arg-type
pool.post(double)  # error: arg-type
pool.post(double, 21, delay="soon")  # error: arg-type
pool.submit(double, 21).result() + "!"  # error: operator
pool.post(double, 21).result()  # error: attr-defined

app = Mainspring("memory://")


@app.job(queue="orders")
def cancel_order(order_id: int, reason: str = "unpaid") -> bool:
    return bool(reason) and order_id > 0


@app.job
async def fetch(url: str) -> bytes:
    return url.encode()


@app.job(batch=100)
def index(documents: list[bytes]) -> None: ...


@app.every(60)
def sync(region: str = "eu") -> int:
    return len(region)


@app.cron("0 2 * * *")
@app.job(queue="slow")
async def nightly(region: str = "eu") -> int:
    return len(region)


cancel_order("forty-two")  # error: arg-type
cancel_order.submit("forty-two")  # error: arg-type
cancel_order.submit()  # error: call-arg
cancel_order.submit(42, "late", 7)  # error: call-arg
cancel_order.submit(42, delay=5)  # error: call-arg
cancel_order.submit(42, reason=7)  # error: arg-type
cancel_order.after(5).submit("forty-two")  # error: arg-type
cancel_order.submit_async("forty-two")  # error: arg-type, unused-coroutine
cancel_order.at(5)  # error: arg-type
cancel_order.after("soon")  # error: arg-type
cancel_order.options(id="order-42").submit()  # error: call-arg
cancel_order.options(prio=1)  # error: call-arg
cancel_order.options("order-42")  # error: call-arg, arg-type
cancel_order.submit(42).result() + "!"  # error: operator
cancel_order.submit_many([42])  # error: list-item
fetch.submit(7)  # error: arg-type
fetch.after(5).submit()  # error: call-arg
fetch.submit("here").result() + "!"  # error: operator
cancel_order.options(unique=7)  # error: arg-type
cancel_order.options(sequence=42)  # error: arg-type
cancel_order.options(headers={"user": 42})  # error: dict-item
cancel_order.options(expires="soon")  # error: arg-type
cancel_order.options(then="mail")  # error: arg-type
cancel_order.options(rate=Rate(5))  # error: call-arg
index.submit("text")  # error: arg-type
index.submit([b"one"])  # error: arg-type
index.submit(b"one", b"two")  # error: call-arg
index(b"one")  # error: arg-type
sync.submit(7)  # error: arg-type
sync.submit().result() + "!"  # error: operator
nightly.submit(region=7)  # error: arg-type
nightly.submit().result() + "!"  # error: operator
nightly() + 1  # error: operator
app.every("hourly")  # error: arg-type
app.cron("0 2 * * *", overlap="maybe")  # error: arg-type
app.cron("0 2 * * *", misfire="never")  # error: arg-type
app.cron("0 2 * * *", dst_fold="none")  # error: arg-type
app.schedules.put("sync", double, Cron("* * * * *"))  # error: arg-type
app.queue("orders", concurrency=5)  # error: arg-type
app.job(rate=5)  # error: call-overload
app.job(execution="fiber")  # error: call-overload
app.explain("x").reason + 1  # error: operator
Unique("k", on_conflict="ignore")  # error: arg-type
Unique("k", "60")  # error: arg-type
Concurrency("5")  # error: arg-type
Keep(60)  # error: call-arg
app.job("orders")  # error: call-overload
app.job(color="red")  # error: call-overload
app.jobs("FAILED")  # error: call-arg
app.get(42)  # error: arg-type
Mainspring("memory://", serializer="pickle")  # error: arg-type
Mainspring("memory://", threads="8")  # error: arg-type
DuplicateJob("order-42")  # error: call-arg
PartialSubmit(done=["a"], failed="b", cause="full")  # error: arg-type
