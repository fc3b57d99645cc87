"""FlexiQ on SQLite, as it ships: a Rust core that polls every 50 ms."""

from collections.abc import Sequence
from importlib import import_module  # peers have no types, and `make check` runs without them
from pathlib import Path
from time import time
from typing import Any

from benchmarks.jobs.systems.system import SERVED, THREADS, System, batches, tool
from benchmarks.jobs.workload import work


class FlexiQ(System):
    key = "flexiq"
    name = "FlexiQ"
    setting = "NORMAL"
    drained = 2_000  # it runs about 300 in a second

    def open(self, store: Path) -> None:
        self._queue = self.application(store)

    def application(self, store: Path) -> Any:
        queue = import_module("flexiq").Queue(db_path=str(store), workers=THREADS)
        self._task: Any = queue.task(name="work")(work)
        return queue

    def submit(self, value: int, due: float | None = None) -> None:
        if due is None:
            self._task.delay(value)
        else:
            self._task.apply_async(args=(value,), delay=due - time())

    def submit_many(self, values: Sequence[int], due: float | None = None) -> None:
        for batch in batches(values):
            delay = None if due is None else due - time()
            self._queue.enqueue_many("work", [(value,) for value in batch], delay=delay)

    def worker_command(self) -> list[str]:
        return [tool("flexiq"), "worker", "--app", f"{SERVED}:{self.key}"]

    def close(self) -> None:
        self._queue = self._task = None  # its connections go with the object
