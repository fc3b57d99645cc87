"""Recording submits: a store without a worker, so that jobs are kept and never run.

For tests of code that submits, when what the jobs do is tested elsewhere. Time stands still inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import overload

from mainspring.app import Mainspring, Runtime
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.info import JobInfo, to_info
from mainspring.jobs.manager import JobManager
from mainspring.jobs.queries import Query
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.stepping import PAGE, find_all
from mainspring.testing.time_travel import in_place, make_clock


class Recording(Sequence[JobInfo]):
    """The jobs that were submitted so far, in order, as a sequence that grows."""

    def __init__(self, manager: JobManager, clock: ManualClock) -> None:
        self._manager = manager
        self._clock = clock

    @property
    def now(self) -> datetime:
        """The instant at which time stands still."""
        return self._clock.now()

    def _jobs(self) -> list[JobInfo]:
        return [to_info(record) for record in find_all(self._manager, Query(limit=PAGE))]

    @overload
    def __getitem__(self, place: int) -> JobInfo: ...

    @overload
    def __getitem__(self, place: slice) -> list[JobInfo]: ...

    def __getitem__(self, place: int | slice) -> JobInfo | list[JobInfo]:
        return self._jobs()[place]

    def __len__(self) -> int:
        return sum(self._manager.engine.counts().values())

    def __iter__(self) -> Iterator[JobInfo]:
        return iter(self._jobs())

    def __repr__(self) -> str:
        return f"<Recording of {len(self)} jobs>"


@contextmanager
def recording(app: Mainspring, *, start: datetime | None = None) -> Iterator[Recording]:
    """Only record what is submitted to `app` while the block lasts: in memory, apart from its own store.

    It is `start` all the time, or the next full second.
    """
    clock = make_clock(start)
    runtime = Runtime(app, MemoryEngine(clock=clock), clock, virtual_time=True)
    with in_place(app, runtime, has_worker=False):
        yield Recording(runtime.manager, clock)
