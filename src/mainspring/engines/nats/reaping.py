"""Reaping: jobs that should have a message in the queue and have none are queued again.

No crash of ours leaves such a job. But an operator may purge a stream or delete a consumer, a server may lose what
it had not written to disk, and a bug may drop a message. A process that has the projection compares, once in a
while, what is overdue with what stands in the queue.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.rescuing import Rescuing
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.projecting import Projection
from mainspring.jobs.queries import Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus

AT_ONCE = 150
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)
OVERDUE = 60 * MICROSECONDS
"""How long a job may wait for its message before one looks."""

logger = logging.getLogger("mainspring.nats")


class Reaping:
    """Finds jobs that everybody has lost sight of."""

    def __init__(
        self,
        workshop: Workshop,
        projector: Projector,
        *,
        queueing: Queueing,
        rescuing: Rescuing,
        workers: Workers,
    ) -> None:
        self._workshop = workshop
        self._projector = projector
        self._queueing = queueing
        self._rescuing = rescuing
        self._workers = workers
        self._ends: dict[JobStatus | None, str | None] = {}  # where the last part of each state ended

    def reap(self, overdue: int = OVERDUE) -> list[str]:
        """Queue again what has no message; return which jobs."""
        before = self._workshop.now() - overdue
        projection = self._projector.catch_up()
        records = [
            record
            for status in ALIVE
            for record in self._next_page(projection, Query(status=status, due_until=before))
        ]
        reaped = [record.id for record in self._find_lost(records) if self._queue_again(record)]
        for job_id in reaped:
            logger.warning("job %s had no message in the queue, and was queued again", job_id)
        return reaped

    def _next_page(self, projection: Projection, query: Query) -> list[JobRecord]:
        """Return a part of what is overdue; the next time, the next part."""
        page = projection.find(replace(query, limit=AT_ONCE, after=self._ends.get(query.status)))
        self._ends[query.status] = page.end
        return page.records

    def _find_lost(self, records: list[JobRecord]) -> list[JobRecord]:
        """Return those of which there is neither a message nor a worker that has them."""
        messages = {record.id: self._messages_of(record) for record in records}
        found = self._workshop.link.read(subject for subjects in messages.values() for subject in subjects)
        silent = [
            record for record in records if not any(found[subject].revision for subject in messages[record.id])
        ]
        now = self._workshop.now()
        return [
            record for record in silent if record.owner is None or not self._workers.lease_left(record.owner, now)
        ]

    def _messages_of(self, record: JobRecord) -> list[str]:
        names = self._workshop.names
        ready = names.ready_of(record.queue, record.type, record.priority, record.id)
        return [ready, names.at("job", record.id), names.chore("enter", record.id)]

    def _queue_again(self, record: JobRecord) -> bool:
        return self._workshop.carry_through(lambda workspace: self._mend(workspace, record))

    def _mend(self, workspace: Workspace, record: JobRecord) -> bool:
        job = workspace.job(record.id)
        seen = (record.token, record.owner, record.status)
        if job is None or (job.token, job.owner, job.status) != seen:
            return False  # it has moved since
        if job.owner is not None:
            self._rescuing.rescue(workspace, job)
        elif job.is_gated and job.gates and not is_ready(job):
            return False  # it waits before its gates, where it has no message of its own
        elif is_ready(job) and job.is_gated:
            self._queueing.make_ready_again(workspace, job)
        else:
            self._queueing.enqueue(workspace, job)
        return True
