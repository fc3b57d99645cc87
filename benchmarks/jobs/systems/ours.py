"""Mainspring itself, in both settings."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from benchmarks.jobs.systems.system import SERVED, THREADS, System
from benchmarks.jobs.workload import work
from mainspring import Mainspring
from mainspring.jobs.job_function import JobFunction


class Ours(System):
    name = "Mainspring"
    submits = 2_000

    def __init__(self, durability: Literal["full", "normal"]) -> None:
        self._durability = durability
        self.key = f"mainspring_{durability}"
        self.setting = durability.upper()
        self.app: Mainspring
        self.job: JobFunction[[int], None]

    def open(self, store: Path) -> None:
        self.app = self.application(store)
        self.app.manager()

    def application(self, store: Path) -> Mainspring:
        app = Mainspring(f"sqlite:///{store}", durability=self._durability, threads=THREADS)
        self.job = app.job(name="work")(work)
        return app

    def submit(self, value: int, due: float | None = None) -> None:
        self._at(due).submit(value)

    def submit_many(self, values: Sequence[int], due: float | None = None) -> None:
        self._at(due).submit_many([{"value": value} for value in values])

    def _at(self, due: float | None) -> JobFunction[[int], None]:
        return self.job if due is None else self.job.at(datetime.fromtimestamp(due, UTC))

    def worker_command(self) -> list[str]:
        return [sys.executable, "-m", "mainspring", "run", f"{SERVED}:{self.key}"]

    def close(self) -> None:
        self.app.close()
