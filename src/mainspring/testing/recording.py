"""Records submits in tests: jobs go to a store without a worker, so they are stored and never run.

Use it to test code that submits if its jobs are tested elsewhere. The time does not move inside of the block.
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
from mainspring.jobs.records import Query
from mainspring.plurals import format_count
from mainspring.testing.clock_stepper import PAGE, find_all
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.time_travel import in_place, make_clock


class Recording(Sequence[JobInfo]):
    """The jobs that were submitted in a `recording` block so far, in order.

    The sequence grows with each submit.
    """

    def __init__(self, manager: JobManager, clock: ManualClock) -> None:
        self._manager = manager
        self._clock = clock

    @property
    def now(self) -> datetime:
        """The time of the application, which does not move inside of the block."""
        return self._clock.now()

    def _jobs(self) -> list[JobInfo]:
        serializers = self._manager.serializers
        return [to_info(record, serializers) for record in find_all(self._manager, Query(limit=PAGE))]

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
        return f"<Recording of {format_count(len(self), 'job')}>"


@contextmanager
def recording(app: Mainspring, *, start: datetime | None = None) -> Iterator[Recording]:
    """Record the jobs that are submitted to `app` in the `with` block, in memory, without running them.

    The application's own store is not used. The time is `start`, or the next full second, and does not move.
    """
    clock = make_clock(start)
    runtime = Runtime(app, MemoryEngine(clock=clock), clock, virtual_time=True)
    with in_place(app, runtime, has_worker=False):
        yield Recording(runtime.manager, clock)
