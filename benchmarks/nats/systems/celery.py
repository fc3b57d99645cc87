"""Celery on Redis: threads, and what its documentation says about many short tasks."""

from importlib import import_module  # peers have no types, and `make check` runs without them
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.system import THREADS, System, tool
from benchmarks.nats.systems.asynchronous import SERVED
from benchmarks.nats.workload import work

PREFETCH = 64


class Celery(System):
    key = "celery"
    name = "Celery"
    setting = "Redis"
    has_bulk = False
    drained = 5_000  # it runs about 1,000 in a second

    def __init__(self) -> None:
        self._numbers = count(1)

    def open(self, store: Path) -> None:
        self._app = self.application(store)

    def application(self, store: Path) -> Any:
        app = import_module("celery").Celery("bench", broker=store.read_text())
        app.conf.update(
            broker_connection_retry_on_startup=True,
            task_ignore_result=True,
            worker_prefetch_multiplier=PREFETCH,
            worker_send_task_events=False,
        )
        self._task: Any = app.task(name="work")(work)
        return app

    def submit(self, value: int, due: float | None = None) -> None:
        self._task.apply_async((value,))

    def worker_command(self) -> list[str]:
        pool = ["--pool", "threads", "--concurrency", str(THREADS)]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
        name = f"bench-{next(self._numbers)}@localhost"  # two of one name would take each other for one
        return [tool("celery"), "--app", f"{SERVED}:{self.key}", "worker", *pool, *quiet, "--hostname", name]

    def close(self) -> None:
        self._app.close()
