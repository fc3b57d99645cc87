"""Queues jobs: stores the message that delivers a waiting job to a worker, in the lane of the job.

A lane has the jobs of one queue, type and priority, and a consumer that all workers share. A worker pulls only
from lanes whose types it has handlers for. Each lane has a record: the submit of its first job stores it, and
workers read new ones.

A PENDING job without an owner has one message: in its lane if it is due soon, else a scheduled message that the
server publishes there shortly before the job is due. A job in a sequence or under limits has a scheduled reminder
until it is due. Then `admission` puts it into its lane, or makes it wait in line.

The message is stored in one transaction with the record, with two exceptions. A submit of a few plain jobs stores
the message of each job before its record: a worker that gets a message without a record returns it to the server
for a while, and drops it at the fifth delivery. A hand-over stores the record of the next job before its message.
A lane may also have outdated messages of jobs that were canceled or rescheduled: the worker that gets one reads
the record.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.job_records import StoredJob, encode
from mainspring.engines.nats.subject_names import SubjectNames, from_token
from mainspring.engines.nats.transaction import Transaction
from mainspring.engines.nats.write_batch import StoredMessage, Write, schedule_headers
from mainspring.jobs.timestamps import MICROSECONDS

APART = {"Mainspring-Record": "apart"}
"""The header of a message without data, whose job is in the record only.

A server takes a message without data and headers for the end of the deliveries to a request from another account.
"""


class NatsLane(Struct, frozen=True, gc=False):
    """The queue, job type and priority that all jobs of one consumer share."""

    queue: str
    type: str
    priority: int


class NatsLanes:
    """The lanes (queue, job type and priority) that this process knows.

    Only the thread that claims jobs reads `all` and calls `read_new`.
    """

    def __init__(self, names: SubjectNames) -> None:
        self._names = names
        self._announced: set[NatsLane] = set()
        self.all: dict[NatsLane, str] = {}
        """For each lane (queue, type and priority), the subject of its jobs, with a wildcard."""
        self._position = 0
        self.must_read = True
        """Whether other processes may have stored new lanes (queue, type and priority)."""

    def clear(self) -> None:
        """Forget all lanes (queue, job type and priority), because the stream may have been created again."""
        self._announced.clear()
        self.all.clear()
        self._position = 0
        self.must_read = True

    def announce(self, transaction: Transaction, job: StoredJob) -> None:
        """Store the lane of a job (queue, type, priority) and notify workers, unless this process has done so."""
        lane = NatsLane(job.queue, job.type, job.priority)
        subject = self._names.lane(lane.queue, lane.type, lane.priority)
        if lane not in self._announced and subject not in transaction.batch:
            transaction.batch.put(subject, encode(lane))
            transaction.batch.send(f"{self._names.notifications}lane")
            transaction.batch.after_commit(lambda: self._record_announced(lane))

    def knows(self, job: StoredJob) -> bool:
        """Return whether this process has stored the lane of a job (queue, type, priority), which workers need."""
        return NatsLane(job.queue, job.type, job.priority) in self._announced

    def _record_announced(self, lane: NatsLane) -> None:
        self._announced.add(lane)
        self.must_read = True

    def read_new(self, transaction: Transaction) -> list[NatsLane]:
        """Read the lanes (queue, type, priority) that were stored since the last read; return the new ones."""
        self.must_read = False
        new: list[NatsLane] = []
        while found := transaction.scan(f"{self._names.lanes}>", after=self._position):
            new += self._add(found)
        return new

    def _add(self, found: list[tuple[str, StoredMessage]]) -> list[NatsLane]:
        new = []
        for subject, entry in found:
            lane, ready = read_lane(self._names, subject)
            if lane not in self.all:
                self.all[lane] = ready
                new.append(lane)
            self._position = max(self._position, entry.revision)
        return new


def read_lane(names: SubjectNames, subject: str) -> tuple[NatsLane, str]:
    """Return the lane (queue, type, priority) whose record has this subject, and the wildcard of its jobs."""
    tokens = subject.removeprefix(names.lanes)
    queue, type_, priority = tokens.split(".")
    return NatsLane(from_token(queue), from_token(type_), int(priority)), f"{names.ready}{tokens}.*"


LEAD = 1 * MICROSECONDS
"""How long before its due time the server delivers a job, so that a worker can hold it and start it in time."""


class JobQueue:
    """Offers jobs to workers, now or at their due time, by messages in their lanes (queue, type, priority), and
    removes them.
    """

    def __init__(self, admission: AdmissionControl, lanes: NatsLanes, names: SubjectNames) -> None:
        self._admission = admission
        self._lanes = lanes
        self._names = names

    def enqueue(self, transaction: Transaction, job: StoredJob) -> None:
        """Store a waiting job, with the message that delivers it now or shortly before it is due.

        For a job in a sequence or under limits, request admission if it is due; otherwise store a reminder, which
        a worker gets at the due time. Also store a reminder of the job's expiry, if any, and its lane (queue, type
        and priority), unless this process has stored the lane before.
        """
        self._lanes.announce(transaction, job)
        names, batch = transaction.names, transaction.batch
        transaction.put_job(job)
        if job.expires is not None:
            batch.schedule(names.scheduled("expire", job.id), names.reminder("expire", job.id), job.expires)
        if job.needs_admission:
            if job.due <= transaction.now:
                self._admission.request(transaction, job)
            else:  # a worker keeps the reminder until the job is due, because no worker holds such a job
                subject, reminder = names.scheduled("job", job.id), names.reminder("enter", job.id)
                batch.schedule(subject, reminder, job.due - LEAD, encode([job.due]))
        elif job.due <= transaction.now + LEAD:
            transaction.publish_ready(job)
        else:
            ready = names.ready_of(job.queue, job.type, job.priority, job.id)
            batch.schedule(names.scheduled("job", job.id), ready, job.due - LEAD)

    def make_ready_again(self, transaction: Transaction, job: StoredJob) -> None:
        """Store the message again that offers a job to workers; the sequence and the limits of the job have
        admitted it.
        """
        transaction.put_job(job)
        transaction.publish_ready(job)

    def knows_lane(self, job: StoredJob) -> bool:
        """Return whether this process has stored the lane of a job (queue, type, priority), which workers need."""
        return self._lanes.knows(job)

    def separate_writes(self, now: int, job: StoredJob) -> list[Write]:
        """Return the message and the record of a new job without policies, to be stored in this order.

        A worker that gets the message before the record is stored returns it to the server for a while. A
        scheduled message does not replace that of another job with the same id.
        """
        names = self._names
        ready = names.ready_of(job.queue, job.type, job.priority, job.id)
        record = Write(names.job(job.id), encode(job), 0)
        if job.due <= now + LEAD:
            return [Write(ready, b"", headers=APART), record]
        return [Write(names.scheduled("job", job.id), b"", 0, schedule_headers(ready, job.due - LEAD)), record]

    def enqueue_again(self, transaction: Transaction, before: StoredJob, after: StoredJob) -> None:
        """Store a job that has run and will run again: as `enqueue`, and without the reminder of an expiry that
        the job has lost by its start.
        """
        if before.expires is not None and after.expires is None:
            transaction.purge(transaction.names.scheduled("expire", before.id))
        self.enqueue(transaction, after)

    def dequeue(self, transaction: Transaction, job: StoredJob, *, keeps_turn: bool = False) -> StoredJob:
        """Remove a waiting job from its sequence and limits, and delete its scheduled messages.

        With `keeps_turn`, a job that holds its sequence keeps it, and one that waits for its sequence keeps its
        place in the line. Return the changed job. The caller writes or deletes the record of the job.

        A message that offers the job to workers stays: the worker that gets it reads the record and ignores the
        message. This message is not purged: after a purge of a subject that a consumer delivers, the server
        (2.15.1) may skip the next message there.
        """
        names = transaction.names
        transaction.withdraw_ready(job)
        transaction.purge(names.scheduled("job", job.id))
        if job.expires is not None:
            transaction.purge(names.scheduled("expire", job.id))
        if not job.needs_admission:
            return job
        return self._admission.withdraw(transaction, job, keeps_turn=keeps_turn)
