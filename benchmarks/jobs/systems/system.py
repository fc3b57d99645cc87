"""What a system must offer to be measured: one open store, ways to submit, and the command of a worker."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

THREADS = 8
BATCH = 5_000  # the size in which ours commits
SERVED = "benchmarks.jobs.served"
STORE_VARIABLE = "BENCH_STORE"


class System(ABC):
    """One system in one setting. `due` is in seconds since 1970; None means at once."""

    key: str
    """Its name in `served`."""
    name: str
    setting: str
    """How durable a submit is, and what else differs from the defaults."""
    has_bulk = True
    notices_others = True
    """Whether a running worker finds what another process submits."""
    submits = 10_000
    """How many jobs it is given one by one, so that a run takes seconds."""
    drained = 20_000
    """How many jobs a worker is given beforehand."""
    pending = 1_000_000
    """How many far-away jobs it is given, if it stores them within a minute."""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.setting})"

    @abstractmethod
    def open(self, store: Path) -> None:
        """Open or make the store, as a submitter."""

    @abstractmethod
    def application(self, store: Path) -> Any:
        """Return what a worker process loads."""

    @abstractmethod
    def submit(self, value: int, due: float | None = None) -> None: ...

    def submit_many(self, values: Sequence[int], due: float | None = None) -> None:
        for value in values:
            self.submit(value, due)

    @abstractmethod
    def worker_command(self) -> list[str]: ...

    @abstractmethod
    def close(self) -> None: ...


def batches(values: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut values into the batches of bulk calls."""
    for first in range(0, len(values), BATCH):
        yield values[first : first + BATCH]


def tool(name: str) -> str:
    """Return the path of a command that was installed beside this interpreter."""
    return str(Path(sys.executable).with_name(name))
