"""The job that every system runs on a server: it does nothing but note when and where it started.

A worker that finds a file of slots beside its store maps it into memory and fills the slot of each job, so that
several processes can note without a system call. Without that file it keeps records, like the jobs of `jobs/`.
"""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from time import sleep, time_ns
from typing import NamedTuple

from benchmarks.jobs import workload as records
from benchmarks.jobs.systems.system import STORE_VARIABLE

HOLD_SECONDS = 600

_layout = Struct("<qii")


class Slot(NamedTuple):
    """The last start of a job, the process that it was in, and how often it has started; zeros before."""

    at_ns: int
    process: int
    starts: int


class Slots:
    """One slot for each job, in a file that processes share."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._filled = 0

    @classmethod
    def make(cls, path: Path, count: int) -> "Slots":
        """Make a file of empty ones."""
        path.write_bytes(bytes(_layout.size * count))
        return cls(path)

    def fill(self, value: int) -> None:
        place = value * _layout.size
        starts = _layout.unpack_from(self._memory, place)[2]
        _layout.pack_into(self._memory, place, time_ns(), os.getpid(), starts + 1)

    def are_filled(self) -> bool:
        """Whether every job has started; what has been seen once is not looked at again."""
        while self._filled < len(self._memory) // _layout.size:
            if not _layout.unpack_from(self._memory, self._filled * _layout.size)[0]:
                return False
            self._filled += 1
        return True

    def read(self) -> Sequence[Slot]:
        return [Slot(*slot) for slot in _layout.iter_unpack(self._memory)]


def slots_beside(store: Path) -> Path:
    return store.with_name("slots")


def _find() -> Slots | None:
    store = os.environ.get(STORE_VARIABLE)
    path = slots_beside(Path(store)) if store else None
    return Slots(path) if path is not None and path.exists() else None


_slots = _find()


def work(value: int) -> None:
    if _slots is not None:
        _slots.fill(value)
    else:
        records.work(value)


def hold(value: int) -> None:
    """Start and go on, for longer than the benchmark lasts."""
    records.work(value)
    sleep(HOLD_SECONDS)
