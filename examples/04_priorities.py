"""What somebody waits for goes first; what nobody waits for still gets its turn."""

from threading import Event

from mainspring import Priority, TaskTraits, ThreadPool

prefetch = TaskTraits(priority=Priority.BEST_EFFORT)
click = TaskTraits(priority=Priority.USER_BLOCKING)
order = []

with ThreadPool(1) as pool:
    busy, go = Event(), Event()
    pool.post(lambda: (busy.set(), go.wait()))  # the only worker is busy
    busy.wait()
    pool.post(order.append, "prefetch", traits=prefetch)
    pool.post(order.append, "render")
    pool.post(order.append, "click", traits=click)
    go.set()

assert order == ["click", "render", "prefetch"]
print(" → ".join(order))
