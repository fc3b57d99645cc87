"""Handlers at work: plain functions on the threads of a runner, coroutine functions on an event loop.

Timeouts and requests to stop reach a coroutine as a cancellation. A thread cannot be stopped from outside: its
handler has to look at `current_job().cancelled`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mainspring.clock import Clock
from mainspring.jobs.active import ActiveJob
from mainspring.jobs.engine import Outcome
from mainspring.jobs.execution import Execution
from mainspring.jobs.slots import Slots
from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.func_queue import FuncQueue
from mainspring.runners.runner import TaskRunner
from mainspring.timing.timer import Timer

logger = logging.getLogger("mainspring.worker")


class Running:
    """Runs jobs that are ready, never more at once than there are slots, and passes on how they ended."""

    def __init__(
        self,
        executor: Execution,
        threads: TaskRunner,
        make_loop: Callable[[], AsyncioRunner],
        *,
        timer: Timer,
        clock: Clock,
        thread_slots: Slots,
        loop_slots: Slots,
        on_outcome: Callable[[ActiveJob, Outcome], None],
    ) -> None:
        self._executor = executor
        self._ready: FuncQueue[ActiveJob] = FuncQueue(
            self._run, threads, concurrency=thread_slots.size, name="mainspring-ready"
        )
        self._make_loop = make_loop
        self._loop: AsyncioRunner | None = None
        self._room: asyncio.Semaphore | None = None  # belongs to the loop
        self._timer = timer
        self._clock = clock
        self._thread_slots = thread_slots
        self._loop_slots = loop_slots
        self._on_outcome = on_outcome

    def dispatch(self, jobs: list[ActiveJob]) -> None:
        """Run jobs as soon as there are slots, unless somebody else claims their start."""
        self._ready.dispatch_all([job for job in jobs if not job.handler.is_async])
        for job in jobs:
            if job.handler.is_async:
                if self._loop is None:
                    self._loop = self._make_loop()
                self._loop.post(self._run_async, job)

    def _run(self, job: ActiveJob) -> None:
        if job.claim_start():
            began = self._begin(job, self._thread_slots)
            self._finish(job, self._executor.run(job), began)

    async def _run_async(self, job: ActiveJob) -> None:
        if self._room is None:
            self._room = asyncio.Semaphore(self._loop_slots.size)
        async with self._room:
            if job.claim_start():
                job.coroutine = asyncio.ensure_future(self._executor.run_async(job))
                if job.context.cancelled:  # the request came while it waited for its place
                    job.coroutine.cancel()
                began = self._begin(job, self._loop_slots)
                self._finish(job, await job.coroutine, began)

    def _begin(self, job: ActiveJob, slots: Slots) -> int:
        now = self._clock.monotonic_ns()
        slots.waited(job.waited(now))
        if job.handler.timeout is not None:
            job.alarm = self._timer.call_at(now + job.handler.timeout * 1_000, lambda: self._time_out(job))
        return job.began(now)

    def _finish(self, job: ActiveJob, outcome: Outcome, began: int) -> None:
        if job.alarm is not None:
            self._timer.cancel(job.alarm)
        outcome.began = began
        self._on_outcome(job, outcome)

    def _time_out(self, job: ActiveJob) -> None:
        if job.is_running:
            logger.warning("job %s (%s) has run into its timeout", job.lease.id, job.lease.type)
            job.has_timed_out = True
            self.interrupt(job)

    def interrupt(self, job: ActiveJob) -> None:
        """Ask a handler to stop."""
        job.context.request_stop()
        coroutine, loop = job.coroutine, self._loop
        if coroutine is not None and loop is not None:
            loop.loop.call_soon_threadsafe(coroutine.cancel)

    def close(self) -> None:
        """End the event loop; what still runs there is left behind."""
        if self._loop is not None:
            self._loop.shutdown(timeout=0)
