"""taskiq on JetStream: the stream is its queue, and it keeps no state of a job."""

from importlib import import_module  # peers have no types, and `make check` runs without them
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.system import tool
from benchmarks.nats.systems.asynchronous import SERVED, AsyncSystem
from benchmarks.nats.workload import work

FETCH_SECONDS = 1.0  # without it, a worker that waits for jobs does not hear that it is to stop


async def perform(value: int) -> None:
    work(value)


class Taskiq(AsyncSystem):
    name = "taskiq-nats"

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.key = f"taskiq_{batch}"
        self.setting = f"batches of {batch}"

    def application(self, store: Path) -> Any:
        return self._broker(store.read_text())

    def _broker(self, url: str) -> Any:
        broker = import_module("taskiq_nats").PullBasedJetStreamBroker(
            [url], queue="bench", pull_consume_batch=self._batch, pull_consume_timeout=FETCH_SECONDS
        )
        self._task: Any = broker.register_task(perform, task_name="work")
        return broker

    async def connect(self, url: str) -> None:
        self._open = self._broker(url)
        await self._open.startup()

    async def send(self, value: int) -> None:
        await self._task.kiq(value)

    async def disconnect(self) -> None:
        await self._open.shutdown()

    def worker_command(self) -> list[str]:
        return [tool("taskiq"), "worker", f"{SERVED}:{self.key}", "--workers", "1", "--log-level", "WARNING"]
