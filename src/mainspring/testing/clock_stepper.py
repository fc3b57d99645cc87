"""Runs jobs to their end on a manual clock, which moves from due time to due time of the pending jobs.

Schedules are paused meanwhile, because they never end: a job that is due in a month would fire a month of
occurrences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count

from msgspec.structs import replace

from mainspring.jobs.commands import PauseSchedule
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus
from mainspring.plurals import format_count
from mainspring.testing.manual_clock import ManualClock

MAX_STEPS = 1_000
PAGE = 1_000
MAX_NAMED = 3  # how many jobs an error message names
MAX_EXPLAINED = 100  # the engine explains this many of the due jobs that did not start


def _never() -> bool:
    return False


class ClockStepper:
    """Moves the manual clock of an application from job to job, until all jobs have run."""

    def __init__(self, manager: JobManager, clock: ManualClock, *, max_steps: int = MAX_STEPS) -> None:
        self._manager = manager
        self._clock = clock
        self._most_steps = max_steps

    def pause_schedules(self) -> None:
        """Pause all schedules of the application."""
        awake = [record.name for record in self._manager.engine.schedules() if not record.is_paused]
        self._manager.arrange([PauseSchedule(name, is_paused=True, next_due=None) for name in awake])

    def run_all(self, is_over: Callable[[], bool] = _never) -> None:
        """Run every job that can run, and all jobs that these submit; stop when `is_over` returns True.

        Schedules are paused before, and stay so. Raises `RuntimeError` if jobs are left after `max_steps` steps of
        the clock, and `TimeoutError` if a handler does not end in real time.
        """
        for step in count():
            self.pause_schedules()
            self._settle()
            instant = None if is_over() else self._next_instant()
            if instant is None:
                return
            if step == self._most_steps:
                raise RuntimeError(
                    f"jobs have not ended after {step:,} steps of the clock: {self._describe_rest()}; if they "
                    "end at some time, inline(steps=...) can allow more; if they never end, use time_travel(), "
                    "which moves the clock only as far as the test says"
                )
            self._clock.advance(timedelta(microseconds=instant - self._manager.engine.now()))

    def _settle(self) -> None:
        try:
            self._clock.settle()
        except TimeoutError as error:
            raise TimeoutError(f"{error}; not ended: {self._describe_rest()}") from error

    def _next_instant(self) -> int | None:
        """Return the next instant at which a pending job can start; None if none can."""
        now = self._manager.engine.now()
        late: list[str] = []
        first: int | None = None
        for record in self._waiting():
            if record.due <= now:
                late.append(record.id)
            elif first is None or record.due < first:
                first = record.due
        if first is None:
            # Any limit will do, because the clock stops at every due time on the way to the instant.
            return next((until for until in map(self._limited_until, late[:MAX_EXPLAINED]) if until > now), None)
        return first

    def _limited_until(self, job_id: str) -> int:
        situation = self._manager.engine.situation(job_id)
        return 0 if situation is None else situation.limited_until or 0

    def _waiting(self) -> Iterator[JobRecord]:
        return find_all(self._manager, Query(status=JobStatus.PENDING, limit=PAGE))

    def _describe_rest(self) -> str:
        running = find_all(self._manager, Query(status=JobStatus.RUNNING, limit=PAGE))
        rest = [*running, *self._waiting()]
        named = [
            f"{record.type} (job {record.id}, started {format_count(record.starts, 'time')})" for record in rest
        ]
        more = f" and {len(named) - MAX_NAMED:,} more" if len(named) > MAX_NAMED else ""
        return ", ".join(named[:MAX_NAMED]) + more if named else "no job"


def find_all(manager: JobManager, query: Query) -> Iterator[JobRecord]:
    """Yield all jobs that match a query, page by page."""
    while True:
        page = manager.engine.find(query)
        yield from page.records
        if page.end is None:
            return
        query = replace(query, after=page.end)
