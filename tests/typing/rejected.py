"""What a type checker must refuse: each marked line, for that reason, and no other line."""

from mainspring import ThreadPool
from mainspring.errors import QueueFull, RunnerClosed

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
