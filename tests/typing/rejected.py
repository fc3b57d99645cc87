"""What a type checker must refuse: each marked line, for that reason, and no other line."""

from mainspring import Mainspring, ThreadPool
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


cancel_order("forty-two")  # error: arg-type
cancel_order.submit("forty-two")  # error: arg-type
cancel_order.submit()  # error: call-arg
cancel_order.submit(42, "late", 7)  # error: call-arg
cancel_order.submit(42, delay=5)  # error: call-arg
cancel_order.submit(42, reason=7)  # error: arg-type
cancel_order.after(5).submit("forty-two")  # error: arg-type
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
app.job("orders")  # error: call-overload
app.job(colour="red")  # error: call-overload
app.jobs("FAILED")  # error: call-arg
app.get(42)  # error: arg-type
Mainspring("memory://", serializer="pickle")  # error: arg-type
Mainspring("memory://", threads="8")  # error: arg-type
DuplicateJob("order-42")  # error: call-arg
PartialSubmit(done=["a"], failed="b", cause="full")  # error: arg-type
