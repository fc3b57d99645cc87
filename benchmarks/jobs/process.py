"""A worker process of any system: started on a store, watched through its records, ended by its id."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module  # psutil has no types, and `make check` runs without it
from pathlib import Path
from time import monotonic, sleep, time_ns
from types import TracebackType
from typing import Any, Self

from benchmarks.jobs import workload
from benchmarks.jobs.systems.system import STORE_VARIABLE, System

ROOT = Path(__file__).parents[2]
DISK = "/var/tmp"  # /tmp is memory on some machines, and an fsync there costs nothing
LOOK_SECONDS = 0.002
STOP_SECONDS = 20


class TooSlow(Exception):
    """A system did not get there in time; its cell in the table says so."""


class WorkerProcess:
    """One worker process. With `expected`, its records appear all at once, after so many starts."""

    def __init__(self, system: System, store: Path, *, expected: int = 1) -> None:
        self._system = system
        self.records = store.with_suffix(".records")
        self.records.unlink(missing_ok=True)
        self._output = store.with_suffix(".output").open("wb")
        environment = {
            "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]),
            STORE_VARIABLE: str(store),
            workload.RECORDS_VARIABLE: str(self.records),
            workload.EXPECTED_VARIABLE: str(expected),
        }
        self.began_ns = time_ns()
        self._process = subprocess.Popen(
            system.worker_command(),
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def started(self) -> int:
        """Return how many starts are on record."""
        return workload.started(self.records)

    def wait_started(self, count: int, seconds: float) -> list[workload.Start]:
        """Wait until so many starts are on record, and return them all."""
        self.wait_until(lambda: self.started() >= count, seconds)
        return workload.read(self.records)

    def wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = monotonic() + seconds
        while not is_so():
            if self._process.poll() is not None:
                output = Path(self._output.name).read_text(errors="replace")
                raise RuntimeError(f"the worker of {self._system.title} ended: {output[-2_000:]}")
            if monotonic() > deadline:
                raise TooSlow(f"{self._system.title} had not started what was due after {seconds:.0f} s")
            sleep(LOOK_SECONDS)

    def memory(self) -> float:
        """Return the resident megabytes of the process and its children."""
        return float(sum(process.memory_info().rss for process in self._tree())) / 1e6

    def load(self, seconds: float) -> float:
        """Watch for a while and return the share of one core that was used."""
        before = self._cpu_seconds()
        sleep(seconds)
        return (self._cpu_seconds() - before) / seconds

    def _cpu_seconds(self) -> float:
        return float(sum(sum(process.cpu_times()[:2]) for process in self._tree()))

    def _tree(self) -> list[Any]:
        process = import_module("psutil").Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()


@contextmanager
def fresh_store() -> Iterator[Path]:
    """Lend the path of a store that does not exist yet."""
    with tempfile.TemporaryDirectory(prefix="mainspring-bench-", dir=DISK) as folder:
        yield Path(folder) / "jobs.db"


@contextmanager
def submitter(system: System, store: Path) -> Iterator[System]:
    """Open a system in this process."""
    system.open(store)
    try:
        yield system
    finally:
        system.close()
