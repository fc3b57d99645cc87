"""Several worker processes of a system on one server, and the start times that their jobs record."""

import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.jobs.process import WorkerProcess
from benchmarks.jobs.systems.system import System
from benchmarks.nats.workload import Slots, slots_beside


class Crew:
    """So many workers, which fill slots."""

    def __init__(self, system: System, store: Path, *, workers: int, jobs: int) -> None:
        self._system = system
        self._store = store
        self._count = workers
        self._slots = Slots.make(slots_beside(store), jobs)
        self._stack = ExitStack()
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        for number in range(self._count):
            own = self._store.with_name(f"worker-{number}.url")  # each has files of its own
            own.write_text(self._store.read_text())
            self._workers.append(self._stack.enter_context(WorkerProcess(self._system, own)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def wait_started(self, seconds: float) -> None:
        """Wait until every job has started."""
        self._workers[0].wait_until(self._slots.are_filled, seconds)

    def rate(self, end_ns: int | None = None) -> float:
        """Return jobs per second, from the moment at which all workers are there to the end, or the last start."""
        slots = self._slots.read()
        firsts: dict[int, int] = {}
        for slot in slots:
            firsts[slot.process] = min(firsts.get(slot.process, slot.at_ns), slot.at_ns)
        if len(firsts) < self._count:
            raise RuntimeError(f"{len(firsts)} of {self._count} workers of {self._system.title} ran anything")
        if twice := sum(slot.starts > 1 for slot in slots):
            print(f"{self._system.title}: {twice:,} jobs started more than once", file=sys.stderr)
        began_ns = max(firsts.values())
        end_ns = end_ns or max(slot.at_ns for slot in slots)
        return sum(slot.at_ns >= began_ns for slot in slots) / ((end_ns - began_ns) / 1e9)
