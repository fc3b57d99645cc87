"""Pruning: forgetting jobs whose time is over.

The server does it by itself for jobs that end while their retention is known. A process that has the projection
finds the rest, a few at a time: jobs of earlier settings, and those beyond the number that is to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mainspring.engines.nats.projector import Projector
from mainspring.jobs.commands import Changed, Command, Delete
from mainspring.jobs.engine import Pruned, Retention
from mainspring.jobs.projecting import Projection
from mainspring.jobs.queries import Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus

AT_ONCE = 500
COUNTED = (JobStatus.COMPLETED, JobStatus.CANCELED)


class Pruning:
    """Finds what can be forgotten, and forgets it."""

    def __init__(self, projector: Projector, change: Callable[[Sequence[Command]], list[Changed]]) -> None:
        self._projector = projector
        self._change = change

    def prune(self, retention: Retention, now: int) -> Pruned:
        """Forget a few jobs."""
        projection = self._projector.catch_up()
        found = {record.id: record for record in self._find_old(projection, retention, now)}
        if len(found) < AT_ONCE:
            found |= {record.id: record for record in self._find_beyond(projection, retention, len(found))}
        chosen = list(found.values())[:AT_ONCE]
        answers = self._change([Delete(record.id, record.status) for record in chosen])
        deleted = sum(answer.is_done for answer in answers)
        return Pruned(deleted, is_more=deleted > 0 and len(found) >= AT_ONCE)

    def _find_old(self, projection: Projection, retention: Retention, now: int) -> Iterator[JobRecord]:
        """Return those whose time is over: among the first ones of each state, as they end about in that order."""
        for status, kept in kept_by_status(retention).items():
            page = projection.find(Query(status=status, limit=AT_ONCE))
            yield from (record for record in page.records if (record.finished or now) + kept <= now)

    def _find_beyond(self, projection: Projection, retention: Retention, already: int) -> list[JobRecord]:
        if retention.most is None:
            return []
        counts = projection.counts()
        excess = sum(counts[status] for status in COUNTED) - retention.most - already
        if excess <= 0:
            return []
        most = min(excess, AT_ONCE)
        pages = [projection.find(Query(status=status, limit=most)).records for status in COUNTED]
        return sorted((record for page in pages for record in page), key=_created)[:most]


def kept_by_status(retention: Retention) -> dict[JobStatus, int]:
    """Return how long jobs that ended like this are kept; those that are kept for ever are not named."""
    kept = {
        JobStatus.COMPLETED: retention.completed,
        JobStatus.CANCELED: retention.canceled,
        JobStatus.FAILED: retention.failed,
    }
    return {status: time for status, time in kept.items() if time is not None}


def _created(record: JobRecord) -> int:
    return record.created
