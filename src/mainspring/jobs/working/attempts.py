"""Attempts under way: the calls of handlers, their timeouts, and how they are stopped.

A call is for one job, or for the jobs of a batch. Its timeouts hold for all of them; a request to stop one job of
a batch reaches that job's context only, because the call belongs to the others, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from mainspring.clock import Clock
from mainspring.jobs.engine import is_suspect
from mainspring.jobs.records import Lease, Outcome
from mainspring.jobs.working.active import ActiveJob
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry

logger = logging.getLogger("mainspring.worker")


class Call:
    """A call of a handler that can be watched and stopped."""

    __slots__ = ("_alarms", "announce", "jobs", "kill", "warn")

    def __init__(self, jobs: Sequence[ActiveJob]) -> None:
        self.jobs = jobs
        self._alarms: list[TimerEntry] = []
        self.announce: Callable[[], object] | None = None
        """Passes the news of a shutdown on to where the handler runs."""
        self.warn: Callable[[], object] | None = None
        """Passes the request to stop on to where the handler runs."""
        self.kill: Callable[[], object] | None = None
        """Ends the handler, willing or not; None: nobody can."""

    @property
    def is_unwanted(self) -> bool:
        """Whether all of its jobs were asked to stop."""
        return all(job.context.cancelled for job in self.jobs)

    def watch(self, timer: Timer, now_ns: int) -> None:
        """Set the alarms for its timeouts."""
        handler = self.jobs[0].handler
        if handler.soft_timeout is not None:
            due = now_ns + handler.soft_timeout * 1_000
            self._alarms.append(timer.call_at(due, lambda: self._time_out(handler.soft_timeout or 0, self.warn)))
        if handler.timeout is not None:
            due = now_ns + handler.timeout * 1_000
            self._alarms.append(timer.call_at(due, lambda: self._time_out(handler.timeout or 0, self.kill)))

    def finish(self, timer: Timer) -> None:
        """Forget the alarms."""
        for alarm in self._alarms:
            timer.cancel(alarm)

    def _time_out(self, limit: int, then: Callable[[], object] | None) -> None:
        running = [job for job in self.jobs if job.is_running]
        if running:
            lease = running[0].lease
            others = f" and {len(running) - 1} others of its batch have" if len(running) > 1 else " has"
            logger.warning("job %s (%s)%s run into the timeout of %g s", lease.id, lease.type, others, limit / 1e6)
            for job in running:
                job.timed_out_after = limit
                job.context.request_stop()
            if then is not None:
                then()


class Attempts:
    """Begins and ends calls. From any thread."""

    def __init__(
        self,
        timer: Timer,
        clock: Clock,
        on_begin: Callable[[Lease], None],
        on_outcomes: Callable[[Sequence[ActiveJob], Sequence[Outcome]], None],
    ) -> None:
        self._timer = timer
        self._clock = clock
        self._on_begin = on_begin
        self._on_outcomes = on_outcomes

    def begin(self, job: ActiveJob) -> int:
        """Note that the handler of a job begins now, in a place where nobody can stop it; return when that is."""
        now = self._clock.monotonic_ns()
        self._on_begin(job.lease)
        job.slots.waited(job.waited(now))
        handler = job.handler
        if handler.timeout is not None or handler.soft_timeout is not None:
            job.call = Call((job,))
            job.call.watch(self._timer, now)
        return job.began(now)

    def end(self, job: ActiveJob, outcome: Outcome, began: int) -> None:
        """Pass on how it ended."""
        if job.call is not None:
            job.call.finish(self._timer)
        outcome.began = began
        self._on_outcomes((job,), (outcome,))

    def begin_call(self, call: Call) -> int:
        """Note that the handler begins now; return when that is, by the engine."""
        now = self._clock.monotonic_ns()
        for job in call.jobs:
            self._on_begin(job.lease)
            job.slots.waited(job.waited(now))
            job.call = call
        call.watch(self._timer, now)
        return call.jobs[0].began(now)

    def end_call(self, call: Call, outcomes: Sequence[Outcome], began: int | None) -> None:
        """Pass on how it ended for each of its jobs."""
        call.finish(self._timer)
        for outcome in outcomes:
            outcome.began = began
        self._on_outcomes(call.jobs, outcomes)


def calls_of(jobs: Sequence[ActiveJob]) -> Iterator[Call]:
    """Make calls of what is ready for a batch handler; what somebody else claims until its turn comes is left out.

    A suspect is called alone: if it kills its process again, that is charged to no other job.
    """
    waiting = list(jobs)
    while waiting:
        most = 1 if is_suspect(waiting[0].lease) else waiting[0].slots.batch or 1
        others = waiting[1:most]
        chosen = waiting[:1] + [job for job in others if not is_suspect(job.lease)]
        waiting = [job for job in others if is_suspect(job.lease)] + waiting[max(1, most) :]
        claimed = [job for job in chosen if job.claim_start()]
        if claimed:
            yield Call(claimed)
