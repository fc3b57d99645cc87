"""Dramatiq on Redis: threads, and more messages prefetched than its default of two for each."""

from importlib import import_module  # peers have no types, and `make check` runs without them
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.system import THREADS, System, tool
from benchmarks.nats.systems.asynchronous import SERVED
from benchmarks.nats.workload import work

PREFETCH = 64 * THREADS


class Dramatiq(System):
    key = "dramatiq"
    name = "Dramatiq"
    setting = "Redis"
    has_bulk = False

    def open(self, store: Path) -> None:
        self._broker = self.application(store)

    def application(self, store: Path) -> Any:
        broker = import_module("dramatiq.brokers.redis").RedisBroker(url=store.read_text())
        self._actor: Any = import_module("dramatiq").actor(work, actor_name="work", broker=broker)
        return broker

    def submit(self, value: int, due: float | None = None) -> None:
        self._actor.send(value)

    def worker_command(self) -> list[str]:
        threads = ["--processes", "1", "--threads", str(THREADS)]
        return ["env", f"dramatiq_queue_prefetch={PREFETCH}", tool("dramatiq"), f"{SERVED}:{self.key}", *threads]

    def close(self) -> None:
        self._broker.close()
