"""A queue as an operator sees it: paused, resumed, drained, counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mainspring.clock import Duration
from mainspring.jobs.commands import PauseQueue
from mainspring.jobs.handle import ManagerSource
from mainspring.jobs.ids import require_id
from mainspring.jobs.manager import JobManager
from mainspring.jobs.queries import Query
from mainspring.jobs.status import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """A snapshot of a queue."""

    name: str
    is_paused: bool
    pending: int
    running: int
    completed: int
    failed: int
    """Dead letters: jobs that failed and were not replayed."""
    canceled: int


class Queue:
    """One queue of an application, by name: `app.queue("mail")`."""

    def __init__(self, name: str, source: ManagerSource) -> None:
        self.name = require_id(name, "queue")
        self._source = source

    def pause(self) -> bool:
        """Let none of its jobs be taken, by any worker, until `resume`; False if it was paused already.

        Jobs that are RUNNING go on, those included that a worker has taken and has no thread for yet.
        """
        return self._source.manager().arrange([PauseQueue(self.name, True)])[0]

    def resume(self) -> bool:
        """Let its jobs start again; False if it was not paused."""
        return self._source.manager().arrange([PauseQueue(self.name, False)])[0]

    @property
    def is_paused(self) -> bool:
        """Whether its jobs are kept from starting."""
        return self.name in self._source.manager().engine.paused_queues()

    def drain(self, timeout: Duration | None = None) -> None:
        """Wait until none of its jobs is due or runs; those due later do not count. `TimeoutError` if too long."""
        paused = f" (it is paused: app.queue({self.name!r}).resume())" if self.is_paused else ""
        problem = f"queue {self.name!r} is not drained{paused}"
        self._source.manager().wait_until(self._is_drained, timeout, problem)

    def _is_drained(self) -> bool:
        engine = self._source.manager().engine
        now = engine.now()
        queries = (
            Query(status=JobStatus.PENDING, queue=self.name, due_until=now, limit=1),
            Query(status=JobStatus.RUNNING, queue=self.name, limit=1),
            Query(status=JobStatus.PENDING, queue=self.name, due_until=now, limit=1),  # a retry, a job from a job
        )
        return not any(engine.find(query).records for query in queries)

    def statistics(self) -> QueueStatistics:
        """Count its jobs."""
        (statistics,) = count_queues(self._source.manager(), [self.name])
        return statistics

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"


def queue_names(manager: JobManager) -> list[str]:
    """Return the names of all queues that anything is known of."""
    engine = manager.engine
    names = {*engine.queues(), *engine.paused_queues()}
    names.update(handler.options.queue for handler in manager.registry.all())
    names.update(schedule.queue for schedule in engine.schedules())
    return sorted(names)


def count_queues(manager: JobManager, names: Iterable[str]) -> list[QueueStatistics]:
    """Count the jobs of queues."""
    paused = manager.engine.paused_queues()
    found = []
    for name in names:
        counts = manager.counts(queue=name)
        by_status = {status.lower(): counts[status] for status in JobStatus}
        found.append(QueueStatistics(name=name, is_paused=name in paused, **by_status))
    return found


def require_queues(queues: list[str] | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the names of queues, or refuse what is none."""
    if isinstance(queues, str):
        raise TypeError(f"queues must be a list of names, got {queues!r}; write queues=[{queues!r}]")
    return None if queues is None else tuple(require_id(name, "a queue") for name in queues)
