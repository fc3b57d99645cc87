"""Rescues jobs of dead workers, and queues jobs again whose message was lost or was skipped by a consumer.

A job keeps its message when a worker crashes. But an operator may purge a stream or delete a consumer, a server
may lose data that it had not written to disk, and a bug may drop a message. So a process with the projection
regularly checks whether overdue jobs have messages.

Server 2.15.1 was seen to skip messages after a purge: a consumer reported that it had nothing to deliver, although
its lane had a message. Mainspring no longer purges the subjects of lanes. In addition, each sweep checks one lane
for skipped messages; this costs one request, and a few more if the consumer of the lane has nothing to deliver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.dead_letters import DeadLetterWriter
from mainspring.engines.nats.event_log import NatsEventLog
from mainspring.engines.nats.job_records import StoredJob
from mainspring.engines.nats.limiters import is_ready
from mainspring.engines.nats.overdue import is_overdue
from mainspring.engines.nats.presence import PresenceMonitor
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.queueing import JobQueue, NatsLane, NatsLanes
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import from_token
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.engines.nats.workers import HeartbeatEntry, SilenceWatch, WorkerRegistry
from mainspring.jobs import transitions
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.events import EventKind
from mainspring.jobs.projection import Projection
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.jobs.trace_fields import trace_fields

SCAN_PAGE = 200

logger = logging.getLogger("mainspring.nats")

EVENTS = {JobStatus.PENDING: EventKind.RESCUED, JobStatus.CANCELED: EventKind.CANCELED}


class InFlightJobs:
    """Finds the jobs of a worker among the messages that were delivered and are not acknowledged."""

    def __init__(self, transactions: TransactionManager, streams: Streams, lanes: NatsLanes) -> None:
        self._transactions = transactions
        self._streams = streams
        self._lanes = lanes

    def of(self, worker: int) -> tuple[str, ...]:
        """Return the ids of the jobs that a worker has leased, running or not."""
        self._lanes.read_new(self._transactions.begin())
        infos = self._streams.consumer_infos(self._lanes.all.values())
        found: list[str] = []
        for subject, info in infos.items():
            if info["num_ack_pending"]:
                floor, last = info["ack_floor"]["stream_seq"], info["delivered"]["stream_seq"]
                found += self._of_lane(worker, subject, floor, last)
        return tuple(found)

    def _of_lane(self, worker: int, subject: str, floor: int, last: int) -> list[str]:
        found: list[str] = []
        while floor < last:
            page = self._transactions.jetstream.scan(subject, after=floor, most=SCAN_PAGE)
            ids = [from_token(name.rpartition(".")[2]) for name, entry in page if entry.revision <= last]
            transaction = self._transactions.begin()
            transaction.prefetch_jobs(ids)
            jobs = map(transaction.job, ids)
            found += [job.id for job in jobs if job is not None and job.owner == worker and not job.is_over]
            if len(page) < SCAN_PAGE:
                break
            floor = page[-1][1].revision
        return found


class NatsJobRescuer:
    """Rescues jobs of dead workers. The next `sweep` returns their ids."""

    def __init__(
        self,
        transactions: TransactionManager,
        workers: WorkerRegistry,
        *,
        job_queue: JobQueue,
        admission: AdmissionControl,
        event_log: NatsEventLog,
        dead_letters: DeadLetterWriter,
        monitor: PresenceMonitor,
        in_flight: InFlightJobs,
        max_crashes: int = MAX_CRASHES,
    ) -> None:
        self._transactions = transactions
        self._workers = workers
        self._job_queue = job_queue
        self._admission = admission
        self._event_log = event_log
        self._dead_letters = dead_letters
        self._monitor = monitor
        self.in_flight = in_flight
        """Finds the jobs of a worker that is no remote one."""
        self._max_crashes = max_crashes
        self._silences = SilenceWatch(transactions.jetstream.monotonic)
        self.lowest_worker: int | None = None
        """The lowest number of a worker that is no remote one and has not left, as the last sweep has read it."""
        self._rescued: list[str] = []
        self._quarantined: list[str] = []

    def rescue(self, transaction: Transaction, job: StoredJob) -> None:
        """Take a job from a dead worker, and queue it again, within a transaction.

        If the job has crashed too often, must not start a second time, or was asked to stop, the job ends instead.
        """
        was_running = job.status is JobStatus.RUNNING
        removed = self._workers.removal_of(job.owner) if was_running and job.owner is not None else None
        after = transitions.rescued(
            job,
            transaction.now,
            self._max_crashes,
            at_most_once=job.at_most_once,
            removed=removed,
            worker_name=self._workers.name_of,
        )
        if job.needs_admission and was_running:
            after = self._admission.release(transaction, after, keeps_sequence=after.status is JobStatus.PENDING)
        if after.status is JobStatus.PENDING:
            self._job_queue.enqueue_again(transaction, job, after)
        elif after.status is JobStatus.FAILED:
            self._dead_letters.store(transaction, after, self._dead_letters.handlers())
        else:
            transaction.put_job(after)
        if was_running:
            transaction.note(EngineNote("crashed" if removed is None else "interrupted", job.queue, job.type))
            self._event_log.write_started(transaction, job)
            self._report(transaction, after)

    def _report(self, transaction: Transaction, job: StoredJob) -> None:
        if job.status is JobStatus.FAILED:
            self._event_log.write_failed(transaction, job)
            transaction.batch.after_commit(lambda: self._quarantined.append(job.id))
        else:
            self._event_log.write(transaction, EVENTS[job.status], job)
            if job.status is JobStatus.PENDING:
                transaction.batch.after_commit(lambda: self._rescued.append(job.id))

    def sweep(
        self, remove_unauthorized: Callable[[dict[int, HeartbeatEntry]], bool]
    ) -> tuple[list[str], list[str]]:
        """Rescue the jobs of workers that have left jobs behind, were found dead, or are remote and silent.

        `remove_unauthorized` gets all workers, removes remote ones whose token has ended, and returns whether it
        found any.

        Return the ids of the jobs that were queued again since the last sweep, and of those that became dead
        letters. Only jobs that were running are in these lists. Also let the presence monitor watch the workers
        that are alive now.
        """
        self.take_over()
        entries = self._workers.read_all()
        if remove_unauthorized(entries):
            entries = self._workers.read_all()
        own = [number for number, (record, _) in entries.items() if record.remote is None and not record.has_left]
        self.lowest_worker = min(own, default=None)
        for number, (record, _) in entries.items():
            if record.has_left:
                self._rescue_all(number, record.left_behind)
        for number in self._silences.find_silent(entries):
            record, revision = entries[number]
            if self._workers.declare_dead(number, revision, tuple(record.leases)):
                logger.warning("remote worker %d sent no heartbeat within its lease, and counts as dead", number)
                self._rescue_all(number, tuple(record.leases))
        self._monitor.watch(self._workers.signs(entries), min(self._workers.numbers, default=0))
        rescued, self._rescued = self._rescued, []
        quarantined, self._quarantined = self._quarantined, []
        return rescued, quarantined

    def take_over(self) -> None:
        """Rescue the jobs of workers that the monitor has found dead since the last call.

        A worker that has sent a heartbeat or has left meanwhile is not touched.
        """
        for number, revision in self._monitor.take_dead().items():
            left_behind = self.in_flight.of(number)
            if self._workers.declare_dead(number, revision, left_behind):
                logger.warning(
                    "worker %d has lost its connection and counts as dead; jobs of it that are rescued now: %d",
                    number,
                    len(left_behind),
                )
                self._rescue_all(number, left_behind)

    def _rescue_all(self, number: int, left_behind: Sequence[str]) -> None:
        def rescue_left(transaction: Transaction, job_id: str) -> None:
            job = transaction.job(job_id)
            if job is not None and job.owner == number and not job.is_over:
                self.rescue(transaction, job)

        self._transactions.run_many(left_behind, rescue_left, batch_size=20, may_last=True)
        self._workers.delete(number)


STUCK = 5 * MICROSECONDS  # if a job is due for longer than this, a consumer may have skipped its message
LANE_PAGE = 50


class DeliveryRepair:
    """Finds messages that a consumer has skipped, one lane (queue, type and priority) at a time, and queues their
    jobs again.
    """

    def __init__(
        self, transactions: TransactionManager, streams: Streams, lanes: NatsLanes, job_queue: JobQueue
    ) -> None:
        self._transactions = transactions
        self._streams = streams
        self._lanes = lanes
        self._job_queue = job_queue
        self._turn = 0

    def repair_next_lane(self) -> list[str]:
        """Check the next lane (queue, type, priority): queue jobs again whose messages its consumer has skipped.

        Return the ids of these jobs. Do nothing while the consumer still delivers messages or waits for
        acknowledgements.
        """
        lanes = list(self._lanes.all)
        if not lanes:
            return []
        self._turn = (self._turn + 1) % len(lanes)
        return self._repair_lane(lanes[self._turn])

    def _repair_lane(self, lane: NatsLane) -> list[str]:
        subject = self._lanes.all[lane]
        if not self._streams.is_idle(subject):
            return []
        found = self._transactions.jetstream.scan(subject, most=LANE_PAGE)
        ids = [from_token(name.rpartition(".")[2]) for name, _ in found]
        results = self._transactions.run_many(ids, self._queue_again, prefetch=_prefetch)
        again = [job_id for job_id, is_done in zip(ids, results, strict=True) if is_done]
        for job_id in again:
            logger.warning(
                "job %s is overdue, and its consumer has skipped its message; the job was queued again",
                job_id,
                extra={"job": job_id},
            )
        return again

    def _queue_again(self, transaction: Transaction, job_id: str) -> bool:
        job = transaction.job(job_id)
        if job is None or job.status is not JobStatus.PENDING or job.owner is not None:
            return False
        if job.due > transaction.now - STUCK or (job.needs_admission and not is_ready(job)):
            return False  # the job may just have become due, or waits for its sequence or limits
        self._job_queue.make_ready_again(transaction, job)
        return True


def _prefetch(transaction: Transaction, job_ids: Sequence[str]) -> None:
    transaction.prefetch_jobs(job_ids)


PAGE_SIZE = 150
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)
OVERDUE = 60 * MICROSECONDS
"""How long a job must be overdue before `OrphanRepair` checks whether it has a message."""


class OrphanRepair:
    """Repairs orphans, here: overdue jobs that have neither a message nor a live worker.

    A message that the server should have published long ago counts as none.

    A job without an owner is queued again. A job of a dead worker is rescued. For a job that waits for its
    sequence or a limit, the places of ended jobs there are passed to waiting jobs.
    """

    def __init__(
        self,
        transactions: TransactionManager,
        projector: Projector,
        *,
        job_queue: JobQueue,
        admission: AdmissionControl,
        rescuer: NatsJobRescuer,
        workers: WorkerRegistry,
    ) -> None:
        self._transactions = transactions
        self._projector = projector
        self._job_queue = job_queue
        self._admission = admission
        self._rescuer = rescuer
        self._workers = workers
        self._ends: dict[JobStatus | None, str | None] = {}  # the end of the last page, by status

    def repair(self, overdue: int = OVERDUE) -> list[str]:
        """Repair jobs that have neither a message nor a live worker; return their ids.

        These are jobs whose due time passed `overdue` or more microseconds ago.

        Each call checks one page of PENDING jobs and one page of RUNNING jobs.
        """
        before = self._transactions.now() - overdue
        projection = self._projector.catch_up_for_maintenance()
        records = [
            record
            for status in ALIVE
            for record in self._next_page(projection, Query(status=status, due_until=before))
        ]
        repaired = [record for record in self._find_orphans(records) if self._queue_again(record)]
        for record in repaired:
            logger.warning(
                "job %s was overdue and would not have started: its message was lost, its worker was dead, or the "
                "sequence or limit that it waits for had not admitted the next job; this is repaired now",
                record.id,
                extra={"job": record.id, "handler": record.type, "type": record.type, "queue": record.queue}
                | trace_fields(record.headers),
            )
        return [record.id for record in repaired]

    def _next_page(self, projection: Projection, query: Query) -> list[JobRecord]:
        """Return the next page of overdue jobs, after that of the last call; after the last page, the first."""
        page = projection.find(replace(query, limit=PAGE_SIZE, after=self._ends.get(query.status)))
        self._ends[query.status] = page.end
        return page.records

    def _find_orphans(self, records: list[JobRecord]) -> list[JobRecord]:
        """Return those of the jobs that have neither a message nor a live worker."""
        messages = {record.id: self._messages_of(record, self._transactions.now()) for record in records}
        found = self._transactions.jetstream.read(
            subject for subjects in messages.values() for subject in subjects
        )
        unqueued = [
            record for record in records if not any(found[subject].revision for subject in messages[record.id])
        ]
        now = self._transactions.now()
        return [
            record
            for record in unqueued
            if record.owner is None or not self._workers.lease_left(record.owner, now)
        ]

    def _messages_of(self, record: JobRecord, now: int) -> list[str]:
        """Return the subjects of the messages that may start a job.

        A scheduled message does not count if it is long overdue: the server does not publish it any more.
        """
        names = self._transactions.names
        ready = names.ready_of(record.queue, record.type, record.priority, record.id)
        scheduled = [] if is_overdue(record.due, now) else [names.scheduled("job", record.id)]
        return [ready, names.reminder("enter", record.id), *scheduled]

    def _queue_again(self, record: JobRecord) -> bool:
        return self._transactions.run(lambda transaction: self._repair(transaction, record))

    def _repair(self, transaction: Transaction, record: JobRecord) -> bool:
        job = transaction.job(record.id)
        expected = (record.token, record.owner, record.status, record.due)
        if job is None or (job.token, job.owner, job.status, job.due) != expected:
            return False  # another process has changed the job meanwhile
        if job.owner is not None:
            self._rescuer.rescue(transaction, job)
        elif job.needs_admission and job.admission and not is_ready(job):
            return self._admission.finish_for(transaction, job)  # a waiting job needs no message in a lane
        elif is_ready(job) and job.needs_admission:
            self._job_queue.make_ready_again(transaction, job)
        else:
            self._job_queue.enqueue(transaction, job)
            transaction.purge(transaction.names.scheduled("job", job.id))  # the server did not publish it
        return True
