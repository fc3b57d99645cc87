"""arq on Redis, in an environment of its own: as a program, it sends so many jobs.

It asks for a Redis client below version 6, and Celery for a newer one.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module  # peers have no types, and `make check` runs without them
from pathlib import Path
from typing import Any

from benchmarks.jobs.process import ROOT
from benchmarks.nats.systems.asynchronous import SERVED, AsyncSystem
from benchmarks.nats.workload import work

MODULE = "benchmarks.nats.systems.arq"
AT_ONCE = 100
POLL_SECONDS = 0.01
QUIET = {"version": 1, "root": {"level": "WARNING"}}  # it would write two lines for each job
TOOLS = Path(f"{sys.prefix.removesuffix('-arq')}-arq") / "bin"


async def perform(_context: Any, value: int) -> None:
    work(value)


class Arq(AsyncSystem):
    key = "arq"
    name = "arq"
    setting = "Redis"

    def open(self, store: Path) -> None:
        if not (TOOLS / "arq").exists():
            raise RuntimeError(f"there is no arq in {TOOLS}; `make bench` brings it")
        self._store = store

    def submit_many(self, values: Sequence[int], due: float | None = None) -> None:
        """Send values from 0 on by a process in the other environment."""
        command = [str(TOOLS / "python"), "-m", MODULE, str(self._store), str(len(values))]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)

    def submit_here(self, store: Path, count: int) -> None:
        """Send from this process, which has arq."""
        super().open(store)
        super().submit_many(range(count))
        super().close()

    def application(self, store: Path) -> Any:
        arq = import_module("arq")
        return {
            "functions": [arq.func(perform, name="work")],
            "redis_settings": import_module("arq.connections").RedisSettings.from_dsn(store.read_text()),
            "max_jobs": AT_ONCE,
            "poll_delay": POLL_SECONDS,
            "keep_result": 0,
        }

    async def connect(self, url: str) -> None:
        settings = import_module("arq.connections").RedisSettings.from_dsn(url)
        self._pool = await import_module("arq").create_pool(settings)

    async def send(self, value: int) -> None:
        await self._pool.enqueue_job("work", value)

    async def disconnect(self) -> None:
        await self._pool.aclose()

    def worker_command(self) -> list[str]:
        return [str(TOOLS / "arq"), f"{SERVED}.{self.key}", "--custom-log-dict", f"{MODULE}.QUIET"]

    def close(self) -> None:
        """Do nothing: the process that sent has ended."""


if __name__ == "__main__":
    Arq().submit_here(Path(sys.argv[1]), int(sys.argv[2]))
