"""Every task says what becomes of it at shutdown, and shutdown says what became of every task."""

from threading import Event

from mainspring import ShutdownBehavior, TaskTraits, ThreadPool

saved: list[str] = []
must_run = TaskTraits(shutdown=ShutdownBehavior.BLOCK)

pool = ThreadPool(1).start()
busy, go = Event(), Event()


def occupy_the_worker() -> None:
    busy.set()
    go.wait()


pool.post(occupy_the_worker)
busy.wait()

pool.post(saved.append, "warm the cache")  # SKIP, the default: may be dropped
pool.post(saved.append, "the invoice", traits=must_run)
pool.post(saved.append, "tomorrow's report", delay=86_400)

go.set()
report = pool.shutdown(timeout=10)

assert "the invoice" in saved
assert report.ran + report.skipped + report.abandoned >= 3
print(f"{report}\nsaved: {saved}")
