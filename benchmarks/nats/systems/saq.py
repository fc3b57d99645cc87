"""SAQ on Redis: coroutines, ten times as many at once as by default, and no results."""

from importlib import import_module  # peers have no types, and `make check` runs without them
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.system import tool
from benchmarks.nats.systems.asynchronous import SERVED, AsyncSystem
from benchmarks.nats.workload import work

CONCURRENCY = 100
NO_RESULT = -1


async def perform(_context: Any, *, value: int) -> None:
    work(value)


class Saq(AsyncSystem):
    key = "saq"
    name = "SAQ"
    setting = "Redis"

    def application(self, store: Path) -> Any:
        queue = import_module("saq").Queue.from_url(store.read_text())
        return {"queue": queue, "functions": [("work", perform)], "concurrency": CONCURRENCY}

    async def connect(self, url: str) -> None:
        self._queue = import_module("saq").Queue.from_url(url)
        await self._queue.connect()

    async def send(self, value: int) -> None:
        await self._queue.enqueue("work", value=value, ttl=NO_RESULT)

    async def disconnect(self) -> None:
        await self._queue.disconnect()

    def worker_command(self) -> list[str]:
        return [tool("saq"), f"{SERVED}.{self.key}", "--quiet"]
