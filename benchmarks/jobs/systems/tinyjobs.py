"""tinyjobs on SQLite, as it ships: pure Python, polls every 5 ms and backs off."""

from collections.abc import Sequence
from importlib import import_module  # peers have no types, and `make check` runs without them
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.system import SERVED, THREADS, System, batches, tool
from benchmarks.jobs.workload import work


class TinyJobs(System):
    key = "tinyjobs"
    name = "tinyjobs"
    setting = "NORMAL"
    submits = 4_000
    drained = 10_000

    def open(self, store: Path) -> None:
        self._app = self.application(store)
        self._app.start()

    def application(self, store: Path) -> Any:
        app = import_module("tinyjobs").TinyJobs(f"sqlite:///{store}")
        self._task: Any = app.task(name="work")(work)
        return app

    def submit(self, value: int, due: float | None = None) -> None:
        task = self._task if due is None else self._task.with_options(run_at=due)
        task.enqueue(value)

    def submit_many(self, values: Sequence[int], due: float | None = None) -> None:
        options = self._task.options if due is None else self._task.options.merged_with(run_at=due)
        for batch in batches(values):  # only its backend has a bulk call
            prepare, bind = self._app.dispatch.prepare, self._task.bind
            jobs = [prepare("work", bind((value,), {}), options) for value in batch]
            self._app.run_sync(self._app.backend.enqueue_many(jobs), name="enqueue_many")

    def worker_command(self) -> list[str]:
        return [tool("tinyjobs"), "worker", "--app", f"{SERVED}:{self.key}", "--concurrency", str(THREADS)]

    def close(self) -> None:
        self._app.close()
