"""Arrangements that hold for many jobs: schedules, paused queues and limits."""

from __future__ import annotations

from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.schedules import Schedules
from mainspring.jobs.engine import (
    Arrangement,
    DropLimit,
    PauseQueue,
    PauseSchedule,
    PutLimit,
    PutSchedule,
    RemoveSchedule,
)
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transitions import taken_back


class Arrangements:
    """Carries arrangements out."""

    def __init__(self, jobs: Jobs, schedules: Schedules) -> None:
        self._jobs = jobs
        self._schedules = schedules
        self._paused = jobs.backlog.claims.paused

    def carry_out(self, arrangement: Arrangement, now: int) -> bool:
        """Carry one out; answer whether it changed anything."""
        match arrangement:
            case PutSchedule():
                return self._schedules.put(arrangement, now)
            case PauseSchedule():
                return self._schedules.pause(arrangement)
            case RemoveSchedule():
                return self._schedules.remove(arrangement.name)
            case PauseQueue():
                return self._pause(arrangement)
            case PutLimit() | DropLimit():
                return self._limit(arrangement, now)

    def _limit(self, order: PutLimit | DropLimit, now: int) -> bool:
        buckets = self._jobs.buckets
        is_changed = buckets.drop(order.family) if isinstance(order, DropLimit) else buckets.define(order, now)
        if is_changed:
            self._jobs.backlog.parking.mark_family(order.family)
        return is_changed

    def _pause(self, order: PauseQueue) -> bool:
        if order.is_paused is (order.queue in self._paused):
            return False
        if not order.is_paused:
            self._paused.remove(order.queue)
            return True
        self._paused.add(order.queue)
        for job in self._jobs.in_hands():
            if job.queue == order.queue and job.status is JobStatus.PENDING:
                self._jobs.put(taken_back(job))
        return True
