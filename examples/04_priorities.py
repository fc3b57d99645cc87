"""Tasks that a user waits for run first; background tasks still get their turn."""

from threading import Event

from mainspring import Priority, TaskTraits, ThreadPool

prefetch = TaskTraits(priority=Priority.BEST_EFFORT)
click = TaskTraits(priority=Priority.USER_BLOCKING)
order: list[str] = []
busy, go = Event(), Event()


def occupy_the_worker() -> None:
    busy.set()
    go.wait()


with ThreadPool(1) as pool:
    pool.post(occupy_the_worker)  # the only one there is
    busy.wait()
    pool.post(order.append, "prefetch", traits=prefetch)
    pool.post(order.append, "render")
    pool.post(order.append, "click", traits=click)
    go.set()

assert order == ["click", "render", "prefetch"]
print(" → ".join(order))
