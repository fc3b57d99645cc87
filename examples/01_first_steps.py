"""A pool, a sequence, a delayed task that is canceled, and a result."""

from datetime import timedelta

from mainspring import ThreadPool

with ThreadPool(workers=4, name="main") as pool:
    pool.post(print, "hello from a worker thread")

    orders = pool.sequenced(name="orders")  # one logical thread: strict order, no locks
    for number in range(3):
        orders.post(print, f"order {number}")

    reminder = orders.post(print, "still unpaid!", delay=timedelta(minutes=30))
    assert reminder.cancel()  # paid in time: it will never run

    assert orders.submit(sum, [1, 2, 39]).result() == 42
