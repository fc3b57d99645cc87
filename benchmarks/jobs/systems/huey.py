"""Huey on SQLite, as it ships: no bulk call, a consumer that polls every 0.1 s and backs off."""

from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module  # peers have no types, and `make check` runs without them
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.system import SERVED, THREADS, System, tool
from benchmarks.jobs.workload import work


class Huey(System):
    key = "huey"
    name = "Huey"
    setting = "FULL"
    has_bulk = False
    drained = 10_000
    pending = 100_000  # a million take it four minutes

    def open(self, store: Path) -> None:
        self._huey = self.application(store)

    def application(self, store: Path) -> Any:
        huey = import_module("huey").SqliteHuey("bench", filename=str(store))
        self._task: Callable[..., object] = huey.task(name="work")(work)
        return huey

    def submit(self, value: int, due: float | None = None) -> None:
        if due is None:
            self._task(value)
        else:
            task: Any = self._task
            task.schedule(args=(value,), eta=datetime.fromtimestamp(due, UTC))

    def worker_command(self) -> list[str]:
        return [tool("huey_consumer"), f"{SERVED}.{self.key}", "-w", str(THREADS), "-k", "thread", "-q"]

    def close(self) -> None:
        self._huey.storage.close()
