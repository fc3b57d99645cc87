"""Rescues jobs of dead workers, and repairs deliveries: lost messages, and messages that a consumer has skipped.

No crash of a worker leaves a job without a message. But an operator may purge a stream or delete a consumer, a
server may lose data that it had not written to disk, and a bug may drop a message. So a process with the
projection regularly compares the overdue jobs with the messages in the queue.

Server 2.15.1 was seen to skip messages after a purge: a consumer reported nothing to deliver, although a message
was there. Mainspring does not purge such subjects any more. Each sweep checks one lane, which costs one request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.journal import NatsJournal
from mainspring.engines.nats.naming import from_token
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.queueing import NatsLane, NatsLanes, Queueing
from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workers import HeartbeatRecord, Workers
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs import transitions
from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.events import EventKind
from mainspring.jobs.projection import Projection
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

EVENTS = {JobStatus.PENDING: EventKind.RESCUED, JobStatus.CANCELED: EventKind.CANCELED}


class Rescuing:
    """Rescues jobs of dead workers. The next `sweep` returns which jobs."""

    def __init__(
        self,
        workshop: Workshop,
        workers: Workers,
        *,
        queueing: Queueing,
        gates: Gates,
        journal: NatsJournal,
        max_crashes: int = MAX_CRASHES,
    ) -> None:
        self._workshop = workshop
        self._workers = workers
        self._queueing = queueing
        self._gates = gates
        self._journal = journal
        self._max_crashes = max_crashes
        self._rescued: list[str] = []
        self._quarantined: list[str] = []

    def rescue(self, workspace: Workspace, job: StoredJob) -> None:
        """Take a job from a dead worker, and queue it again, unless its crashes or a stop request end it."""
        was_running = job.status is JobStatus.RUNNING
        after = transitions.rescued(job, workspace.now, self._max_crashes)
        if job.is_gated and was_running:
            after = self._gates.leave(workspace, after, keeps_sequence=after.status is JobStatus.PENDING)
        if after.status is JobStatus.PENDING:
            self._queueing.enqueue(workspace, after)
        else:
            workspace.put_job(after)
        if was_running:
            self._journal.tell_start(workspace, job)
            self._tell(workspace, after)

    def _tell(self, workspace: Workspace, job: StoredJob) -> None:
        if job.status is JobStatus.FAILED:
            self._journal.write_failed(workspace, job)
            workspace.draft.then(lambda: self._quarantined.append(job.id))
        else:
            self._journal.write(workspace, EVENTS[job.status], job)
            if job.status is JobStatus.PENDING:
                workspace.draft.then(lambda: self._rescued.append(job.id))

    def sweep(self) -> tuple[list[str], list[str]]:
        """Rescue jobs that workers left behind; return those rescued, and quarantined, since the last sweep."""
        for number, sign in self._workers.read_all().items():
            if sign.has_left:
                self._rescue_all(number, sign)
        rescued, self._rescued = self._rescued, []
        quarantined, self._quarantined = self._quarantined, []
        return rescued, quarantined

    def _rescue_all(self, number: int, sign: HeartbeatRecord) -> None:
        def rescue_left(workspace: Workspace, job_id: str) -> None:
            job = workspace.job(job_id)
            if job is not None and job.owner == number and not job.is_over:
                self.rescue(workspace, job)

        self._workshop.carry_through_many(sign.left_behind, rescue_left, at_once=20)
        self._workers.forget(number)


STUCK = 5 * MICROSECONDS
LANE_PAGE = 50

logger = logging.getLogger("mainspring.nats")


class Overlooked:
    """Finds messages that a consumer has skipped, one lane after another."""

    def __init__(self, workshop: Workshop, streams: Streams, lanes: NatsLanes, queueing: Queueing) -> None:
        self._workshop = workshop
        self._streams = streams
        self._lanes = lanes
        self._queueing = queueing
        self._turn = 0

    def look(self) -> list[str]:
        """Check the next lane; queue the jobs again that were skipped there, and return their ids."""
        lanes = list(self._lanes.all)
        if not lanes:
            return []
        self._turn = (self._turn + 1) % len(lanes)
        return self._look_at(lanes[self._turn])

    def _look_at(self, lane: NatsLane) -> list[str]:
        subject = self._lanes.all[lane]
        if not self._streams.is_idle(subject):
            return []
        found = self._workshop.link.scan(subject, most=LANE_PAGE)
        ids = [from_token(name.rpartition(".")[2]) for name, _ in found]
        answers = self._workshop.carry_through_many(ids, self._queue_again, before=_prefetch)
        again = [job_id for job_id, is_done in zip(ids, answers, strict=True) if is_done]
        for job_id in again:
            logger.warning("job %s was overlooked by its consumer, and was queued again", job_id)
        return again

    def _queue_again(self, workspace: Workspace, job_id: str) -> bool:
        job = workspace.job(job_id)
        if job is None or job.status is not JobStatus.PENDING or job.owner is not None:
            return False
        if job.due > workspace.now - STUCK or (job.is_gated and not is_ready(job)):
            return False  # it may just have become due, or waits for its sequence or limits
        self._queueing.make_ready_again(workspace, job)
        return True


def _prefetch(workspace: Workspace, job_ids: Sequence[str]) -> None:
    workspace.prefetch_jobs(job_ids)


AT_ONCE = 150
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)
OVERDUE = 60 * MICROSECONDS
"""How long a job may be overdue before its message is checked."""


class Reaping:
    """Finds jobs that have neither a message nor a live worker."""

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
        self._ends: dict[JobStatus | None, str | None] = {}  # by status: the end of the last page

    def reap(self, overdue: int = OVERDUE) -> list[str]:
        """Queue jobs again that have no message; return their ids."""
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
        """Return a page of overdue jobs; each call returns the next page."""
        page = projection.find(replace(query, limit=AT_ONCE, after=self._ends.get(query.status)))
        self._ends[query.status] = page.end
        return page.records

    def _find_lost(self, records: list[JobRecord]) -> list[JobRecord]:
        """Return the jobs that have neither a message nor a live worker."""
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
            return False  # it has changed since
        if job.owner is not None:
            self._rescuing.rescue(workspace, job)
        elif job.is_gated and job.gates and not is_ready(job):
            return False  # it waits for its sequence or limits, and needs no message in the queue
        elif is_ready(job) and job.is_gated:
            self._queueing.make_ready_again(workspace, job)
        else:
            self._queueing.enqueue(workspace, job)
        return True
