"""Queues: operators pause, resume and drain them, and count their jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from mainspring.clock import Duration
from mainspring.jobs.commands import PauseQueue
from mainspring.jobs.handle import ManagerProvider, open_manager
from mainspring.jobs.ids import require_id
from mainspring.jobs.manager import JobManager
from mainspring.jobs.off_loop import OffLoop, async_twin
from mainspring.jobs.policies import Rate
from mainspring.jobs.quotas import Quota
from mainspring.jobs.records import Query
from mainspring.jobs.status import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """A queue at one moment: whether it is paused, its jobs by status, and its quotas."""

    name: str
    is_paused: bool
    pending: int
    running: int
    completed: int
    failed: int
    """The number of dead letters: jobs that failed and were not replayed."""
    canceled: int
    max_depth: int | None = None
    """How many jobs may be pending; None if the queue has no such quota."""
    submit_rate: Rate | None = None
    """How many jobs may be submitted within a time; None if the queue has no such quota."""


class Queue:
    """One queue of an application, `app.queue("mail")`: pauses, resumes, drains and counts it."""

    def __init__(self, name: str, source: ManagerProvider) -> None:
        self.name = require_id(name, "queue")
        self._source = source

    @property
    def _off_loop(self) -> OffLoop:
        return self._source.off_loop

    def pause(self) -> bool:
        """Pause the queue: no worker claims its jobs until `resume`. Return False if it was paused already.

        RUNNING jobs continue, including those that a worker has claimed and that still wait for a free thread.
        """
        return self._source.manager().arrange([PauseQueue(self.name, True)])[0]

    pause_async = async_twin(pause, writes=True)

    def resume(self) -> bool:
        """Resume the queue, so that its jobs start again. Return False if it was not paused."""
        return self._source.manager().arrange([PauseQueue(self.name, False)])[0]

    resume_async = async_twin(resume, writes=True)

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self._is_paused()

    async def is_paused_async(self) -> bool:
        """Return whether the queue is paused, as `is_paused` does, without blocking the event loop."""
        return await self._off_loop.read(self._is_paused)

    def _is_paused(self) -> bool:
        return self.name in self._source.manager().engine.paused_queues()

    def drain(self, timeout: Duration | None = None) -> None:
        """Wait until no job of the queue is due or runs. Jobs that are due later do not count.

        Blocked jobs count, so a paused queue with due jobs is not drained. Raises `TimeoutError` after `timeout`;
        None for never.
        """
        self._source.manager().wait_until(self._is_drained, timeout, self._undrained())

    async def drain_async(self, timeout: Duration | None = None) -> None:
        """Wait as `drain` does, without blocking the event loop."""
        problem = await self._off_loop.read(self._undrained)
        await (await open_manager(self._source)).wait_until_async(self._is_drained, timeout, problem)

    def _undrained(self) -> str:
        """Return the text of the error of a `drain` that timed out."""
        paused = f" (it is paused: app.queue({self.name!r}).resume())" if self._is_paused() else ""
        return f"queue {self.name!r} is not drained{paused}"

    def _is_drained(self) -> bool:
        engine = self._source.manager().engine
        now = engine.now()
        queries = (
            Query(status=JobStatus.PENDING, queue=self.name, due_until=now, limit=1),
            Query(status=JobStatus.RUNNING, queue=self.name, limit=1),
            # checked again: a job that ran meanwhile may be retried, or may have submitted another job
            Query(status=JobStatus.PENDING, queue=self.name, due_until=now, limit=1),
        )
        return not any(engine.find(query).records for query in queries)

    def statistics(self) -> QueueStatistics:
        """Return the jobs of the queue by status, whether it is paused, and its quotas."""
        (statistics,) = count_queues(self._source.manager(), [self.name])
        return statistics

    statistics_async = async_twin(statistics)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"


def queue_names(manager: JobManager) -> list[str]:
    """Return the names of all queues that have jobs or a quota, are paused, or belong to a handler or schedule."""
    engine = manager.engine
    names = {*engine.queues(), *engine.paused_queues(), *manager.quotas()}
    names.update(handler.options.queue for handler in manager.registry.all())
    names.update(schedule.queue for schedule in engine.schedules())
    return sorted(names)


def count_queues(manager: JobManager, names: Iterable[str]) -> list[QueueStatistics]:
    """Return the statistics of these queues: their jobs by status, whether they are paused, and their quotas."""
    paused = manager.engine.paused_queues()
    quotas = manager.quotas()
    found = []
    for name in names:
        counts = manager.counts(queue=name)
        by_status = {status.lower(): counts[status] for status in JobStatus}
        quota = quotas.get(name, Quota())
        rate = quota.submit_rate
        found.append(
            QueueStatistics(
                name=name,
                is_paused=name in paused,
                max_depth=quota.max_depth,
                submit_rate=None if rate is None else Rate(rate.most, per=timedelta(microseconds=rate.per or 0)),
                **by_status,
            )
        )
    return found


def require_queues(queues: list[str] | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return queue names as a tuple, after checking each; None, for all queues, stays None.

    Raises `TypeError` if it is a single string instead of a list.
    """
    if isinstance(queues, str):
        raise TypeError(f"queues must be a list of names, got {queues!r}; write queues=[{queues!r}]")
    return None if queues is None else tuple(require_id(name, "a queue") for name in queues)
