"""Waits for jobs to end. It polls the store, and reads it at once if this process announces the end of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

from mainspring.clock import NANOSECONDS, Clock
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.runners.runner import TaskRunner
from mainspring.runners.worker import blocking_for

FIRST_POLL_NS = 5_000_000  # the first pause between two polls of the store
LONGEST_PAUSE_NS = NANOSECONDS // 2  # the pause between polls grows up to this


class JobWaiter:
    """Lets callers wait until a job has ended."""

    def __init__(self, clock: Clock, *, virtual_time: bool, layers: tuple[TaskRunner, ...] = ()) -> None:
        self._clock = clock
        self._virtual_time = virtual_time
        self._layers = layers  # runners that must keep working while a thread waits
        self._changed = Condition()  # guards everything below
        self._waiting: dict[str, int] = {}  # the number of waiting callers for each job
        self._announced: dict[str, int] = {}  # how often each job was announced

    def announce(self, ids: list[str]) -> None:
        """Wake up the callers that wait for these jobs, so that they read the status again."""
        if self._waiting:
            with self._changed:
                for job_id in ids:
                    if job_id in self._waiting:
                        self._announced[job_id] += 1
                self._changed.notify_all()

    def wait(
        self, job_id: str, read_status: Callable[[], tuple[JobStatus, int]], deadline: int | None
    ) -> JobStatus:
        """Wait until a job has ended, and return its final status. Raises `TimeoutError` at the deadline.

        `read_status` returns the status of the job, and the nanoseconds until it is due. The job does not run
        before then.
        """
        pause = FIRST_POLL_NS
        with blocking_for(*self._layers), self._registered(job_id):
            while True:
                seen = self._announced[job_id]
                status, remaining = read_status()
                if status in FINAL:
                    return status
                now = self._clock.monotonic_ns()
                if deadline is not None and now >= deadline:
                    hint = "; is there a worker? Use app.running(), app.run() or `mainspring run`"
                    raise TimeoutError(
                        f"job {job_id!r} is still {status}{hint if status is JobStatus.PENDING else ''}"
                    )
                if self._virtual_time:
                    raise TimeoutError(
                        f"job {job_id!r} is still {status}, and the manual clock stands still; call fast_forward()"
                    )
                until = now + max(pause, min(remaining, LONGEST_PAUSE_NS))
                self._wait_for_announcement(job_id, seen, until if deadline is None else min(until, deadline))
                pause = min(LONGEST_PAUSE_NS, pause * 2)

    def wait_until(self, is_so: Callable[[], bool], deadline: int | None, problem: str) -> None:
        """Call `is_so`, with growing pauses, until it returns True. Raises `TimeoutError` at the deadline."""
        pause = FIRST_POLL_NS
        while not is_so():
            now = self._clock.monotonic_ns()
            if self._virtual_time or (deadline is not None and now >= deadline):
                stopped = ", and the manual clock stands still; call fast_forward()"
                raise TimeoutError(f"{problem}{stopped if self._virtual_time else ' in time'}")
            until = now + pause if deadline is None else min(now + pause, deadline)
            with blocking_for(*self._layers), self._changed:
                self._clock.wait(self._changed, until)
            pause = min(LONGEST_PAUSE_NS, pause * 2)

    def _wait_for_announcement(self, job_id: str, seen: int, until: int) -> None:
        with self._changed:
            while self._announced[job_id] == seen:
                if not self._clock.wait(self._changed, until):
                    return

    @contextmanager
    def _registered(self, job_id: str) -> Iterator[None]:
        with self._changed:
            self._waiting[job_id] = self._waiting.get(job_id, 0) + 1
            self._announced.setdefault(job_id, 0)
        try:
            yield
        finally:
            with self._changed:
                self._waiting[job_id] -= 1
                if not self._waiting[job_id]:
                    del self._waiting[job_id], self._announced[job_id]
