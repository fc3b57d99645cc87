"""Optimistic transactions on the stream.

A `Transaction` remembers the revision of each record that it reads. The commit stores all writes, if each written
record still has that revision; otherwise it stores nothing, and the `TransactionManager` runs the work again with
current data. So the code of a transaction reads, decides and writes without locks.

Rule: a record that a decision depends on must be written by that transaction, or by every transaction that could
make the decision wrong. The commit does not check records that were only read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import StoredJob, decode, decode_job, encode
from mainspring.engines.nats.subject_names import SubjectNames, from_token
from mainspring.engines.nats.write_batch import MAX_BATCH, StoredMessage, Write, WriteBatch
from mainspring.errors import EngineUnavailable
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

T = TypeVar("T")
Item = TypeVar("Item")
S = TypeVar("S", bound=Struct)

MAX_TRIES = 200
PAUSE_SECONDS = 0.001
TOMBSTONE_TTL = {"Nats-TTL": "604800s"}


class BatchTooLarge(Exception):
    """Raised if the writes of a transaction do not fit into one batch of the server."""


class Transaction:
    """The reads and writes of one attempt to run a transaction."""

    def __init__(
        self,
        jetstream: JetStream,
        names: SubjectNames,
        now: int,
        retention: Mapping[JobStatus, int],
        on_job_end: Callable[[Transaction, StoredJob, int], None],
    ) -> None:
        self.names = names
        self._retention = retention
        self._on_job_end = on_job_end
        self.now = now
        """The time of the transaction in microseconds, by the server's clock."""
        self.batch = WriteBatch()
        """The batch for unconditional writes, and for actions after the commit."""
        self.admitter: object = None
        """The limiters that `admission` has read and changed in this transaction."""
        self._jetstream = jetstream
        self._read: dict[str, StoredMessage] = {}
        self._jobs: dict[str, StoredJob | None] = {}  # as last read or written here
        self._written: dict[str, tuple[bytes, Mapping[str, str] | None]] = {}
        self._ready: dict[str, str] = {}  # subjects of ready messages, by the subject of the job's record
        self._indexes: dict[str, int] = {}  # of written records in the batch, by subject
        self._first = 0

    # -- records

    def prefetch(self, subjects: Iterable[str]) -> None:
        """Read many subjects at once, except those that were read already."""
        self._read.update(self._jetstream.read(subject for subject in subjects if subject not in self._read))

    def forget(self, subjects: Iterable[str]) -> None:
        """Let the next access read these subjects again, except those that are written here."""
        for subject in subjects:
            if subject not in self._written:
                self._read.pop(subject, None)
                if subject.startswith(self.names.jobs):
                    self._jobs.pop(from_token(subject.removeprefix(self.names.jobs)), None)

    def confirm(self, subject: str) -> None:
        """Read a subject again, alone, if it seems to have no message.

        The server promises no common instant for a read of many subjects. One that is replaced at the same time
        must not count as deleted.
        """
        if not self.stored(subject).revision:
            self.forget([subject])
            self.prefetch([subject])

    def assume(self, subject: str, revision: int, data: bytes) -> None:
        """Treat a subject as if it had been read, with this content."""
        self._read[subject] = StoredMessage(revision, data)

    def get(self, subject: str) -> bytes:
        """Return the data of a subject, as this transaction wrote or read it; empty if there is none."""
        written = self._written.get(subject)
        return self.stored(subject).data if written is None else written[0]

    def stored(self, subject: str) -> StoredMessage:
        """Return the message of a subject as this transaction read it."""
        if subject not in self._read:
            self.prefetch([subject])
        return self._read[subject]

    def put(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Write the data of a subject.

        The commit fails if another process changes it first; empty data clears it.
        """
        self.stored(subject)
        self._written[subject] = (data, headers)

    def get_struct(self, subject: str, kind: type[S]) -> S | None:
        """Return the decoded data of a subject; None if there is none."""
        data = self.get(subject)
        return decode(data, kind) if data else None

    def put_struct(self, subject: str, value: Struct) -> None:
        """Encode a struct and write it to a subject."""
        self.put(subject, encode(value))

    def delete(self, subject: str) -> None:
        """Replace the data of a subject with a tombstone. Readers see the deletion until the tombstone expires."""
        self.put(subject, b"", TOMBSTONE_TTL)

    def scan(self, subject: str, *, after: int = 0, most: int = 1_000) -> list[tuple[str, StoredMessage]]:
        """Return the messages of subjects with a wildcard, in the order in which they were stored."""
        return self._jetstream.scan(subject, after=after, most=most)

    def scan_each(self, places: Sequence[tuple[str, int]], *, most: int) -> list[list[tuple[str, StoredMessage]]]:
        """Scan several subjects with wildcards at once, each after its own revision."""
        return self._jetstream.scan_each(places, most=most)

    # -- jobs

    def job(self, job_id: str) -> StoredJob | None:
        """Return a job by its id; None if there is none."""
        if job_id not in self._jobs:
            data = self.get(self.names.job(job_id))
            self._jobs[job_id] = decode_job(data) if data else None
        return self._jobs[job_id]

    def job_at(self, subject: str) -> StoredJob | None:
        """Return the job whose record has this subject; None if there is none."""
        return self.job(from_token(subject.removeprefix(self.names.jobs)))

    def assume_job(self, job: StoredJob, revision: int) -> None:
        """Treat a job as if it had been read, with this revision of its record."""
        self._read[self.names.job(job.id)] = StoredMessage(revision, b"")
        self._jobs[job.id] = job

    def prefetch_jobs(self, job_ids: Iterable[str]) -> None:
        """Read many jobs at once."""
        self.prefetch(self.names.job(job_id) for job_id in job_ids)

    def put_job(self, job: StoredJob) -> None:
        """Write the record of a job. The server deletes the record of an ended job when its retention is over."""
        kept = self._retention.get(job.status) if job.is_over else None
        headers = None
        if kept is not None:
            left = max(1, ((job.finished or self.now) + kept - self.now) // MICROSECONDS)
            headers = {"Nats-TTL": f"{left}s"}
            self._on_job_end(self, job, left)
        self.put(self.names.job(job.id), encode(job), headers)
        self._jobs[job.id] = job

    def delete_job(self, job_id: str) -> None:
        """Delete the record of a job."""
        self.delete(self.names.job(job_id))
        self._jobs[job_id] = None

    def publish_ready(self, job: StoredJob) -> None:
        """Store the message that delivers a job to a worker, right behind the job record that is written here.

        The message has the content of the record. So the worker that gets it knows the record and its revision.
        """
        self._ready[self.names.job(job.id)] = self._ready_subject(job)

    def withdraw_ready(self, job: StoredJob) -> None:
        """Undo `publish_ready` in this transaction."""
        subject = self._ready_subject(job)
        self._ready = {record: ready for record, ready in self._ready.items() if ready != subject}

    def _ready_subject(self, job: StoredJob) -> str:
        return self.names.ready_of(job.queue, job.type, job.priority, job.id)

    def purge(self, *subjects: str) -> None:
        """Purge subjects after the commit."""
        self.batch.purge(*subjects)

    # -- committing

    def revisions(self) -> dict[str, int]:
        """Return the revisions of all records that this transaction stored, by subject."""
        return {subject: self._first + index for subject, index in self._indexes.items()}

    def last_record(self) -> int:
        """Return the revision of the last job record that this transaction stored; 0 if there was none."""
        jobs = self.names.jobs
        return max((at for subject, at in self.revisions().items() if subject.startswith(jobs)), default=0)

    def set_first_revision(self, first: int) -> None:
        """Record that all writes were stored, the first of them with this revision."""
        self._first = first

    @property
    def written(self) -> list[str]:
        """The subjects that this transaction writes."""
        return list(self._written)

    def independent_writes(self) -> list[Write] | None:
        """Return the writes if they are only job records, which can be stored one by one; otherwise None."""
        batch = self.batch
        has_more = batch.writes or batch.sends or batch.events or batch.purges or batch.has_callbacks
        are_jobs = all(subject.startswith(self.names.jobs) for subject in self._written)
        if self._ready or has_more or not self._written or not are_jobs:
            return None
        return self.conditional_writes()

    def conditional_writes(self) -> list[Write]:
        """Return the writes of records, each with the revision that it replaces."""
        return [
            Write(subject, data, self._read[subject].revision, headers)
            for subject, (data, headers) in self._written.items()
        ]

    def ready_of(self, subject: str) -> str | None:
        """Return the subject of the message that delivers a job, given that of its record; None: there is none."""
        return self._ready.get(subject)

    def set_revisions(self, revisions: dict[str, int | None]) -> None:
        """Record the revisions of job records that were stored one by one."""
        self._indexes = {subject: revision for subject, revision in revisions.items() if revision is not None}

    def build_batch(self) -> WriteBatch:
        """Return all writes as one batch: each record and its ready message, then the unconditional writes."""
        changes = WriteBatch()
        for subject, (data, headers) in self._written.items():
            self._indexes[subject] = changes.put(subject, data, self._read[subject].revision, headers)
            ready = self._ready.get(subject)
            if ready is not None:
                changes.put(ready, data)
        changes.writes.extend(self.batch.writes)
        if len(changes) > MAX_BATCH:
            raise BatchTooLarge
        changes.sends = [*self.batch.sends, *((subject, data) for _, subject, data in self.batch.events)]
        changes.purges = self.batch.purges
        return changes


class OrderedWrites:
    """Writes that need not be stored as one batch, if they are stored in this order."""

    def __init__(self) -> None:
        self.ended: list[Write] = []
        """The records of jobs that have ended."""
        self.limiters: list[Write] = []
        self.ready: list[tuple[Write, Write]] = []
        """The record and the message of each job that comes next."""
        self.keys: dict[str, str] = {}
        """By the record of a job: that of its limiter, or nothing. If one is not stored, the others must wait."""


class TransactionManager:
    """Begins transactions, and repeats work in new transactions until one commits."""

    def __init__(self, jetstream: JetStream, names: SubjectNames) -> None:
        self.jetstream = jetstream
        self.names = names
        self.on_job_end: Callable[[Transaction, StoredJob, int], None] = lambda _transaction, _job, _seconds: None
        """Called for a job that has ended and that the server will delete after some seconds."""
        self.retention: dict[JobStatus, int] = {}
        """How many microseconds after their end the server deletes jobs, by status; if missing, never."""

    def now(self) -> int:
        """Return the server's time, in microseconds."""
        return self.jetstream.now()

    def begin(self) -> Transaction:
        """Return a new transaction."""
        return Transaction(self.jetstream, self.names, self.now(), self.retention, self.on_job_end)

    def run(self, work: Callable[[Transaction], T]) -> T:
        """Run work in new transactions until one commits; return its result."""
        for attempt in range(MAX_TRIES):
            transaction = self.begin()
            result = work(transaction)
            if self.commit(transaction):
                return result
            time.sleep(PAUSE_SECONDS * random.random() * min(attempt, 20))  # noqa: TID251 - back-off
        raise EngineUnavailable(
            engine=f"NATS at {self.jetstream.address}",
            reason=f"other processes changed the same records {MAX_TRIES} times in a row",
            remedy="try again; if the error persists, let fewer jobs share one sequence, limit or unique key",
        )

    def commit_each(self, transaction: Transaction) -> set[str]:
        """Store the writes of a transaction; return the subjects that another process has changed meanwhile.

        Records that do not depend on each other are stored one by one: a batch costs the server some milliseconds
        more, and twice the work for each record.
        """
        writes = transaction.independent_writes()
        if writes is None:
            return set() if self.commit(transaction) else set(transaction.written)
        revisions = self.jetstream.store_each(writes)
        transaction.set_revisions(dict(zip((write.subject for write in writes), revisions, strict=True)))
        self.jetstream.note_record(transaction.last_record())
        return {write.subject for write, revision in zip(writes, revisions, strict=True) if revision is None}

    def commit_in_order(self, transaction: Transaction, writes: OrderedWrites) -> set[str]:
        """Store writes step by step; return the subjects that were not stored, or not all that follows from them.

        If a write is refused, or its reply is lost, the later steps of the same limiter are left out. The caller
        reads the records again and completes them.
        """
        keys = writes.keys
        revisions: dict[str, int | None] = {}
        ended = self._store(writes.ended, revisions)
        missed = {keys[subject] for subject in ended} - {""}
        missed |= set(self._store([write for write in writes.limiters if write.subject not in missed], revisions))
        ready = [pair for pair in writes.ready if keys[pair[0].subject] not in missed]
        unready = set(self._store([write for pair in ready for write in pair], revisions))
        missed |= {
            keys[record.subject] for record, message in ready if {record.subject, message.subject} & unready
        }
        transaction.set_revisions(revisions)
        self.jetstream.note_record(transaction.last_record())
        events = [(subject, data) for record, subject, data in transaction.batch.events if revisions.get(record)]
        self.jetstream.send(events)
        self._purge_in_order(transaction, revisions, missed)
        return missed | set(ended)

    def _store(self, writes: Sequence[Write], revisions: dict[str, int | None]) -> list[str]:
        """Store writes one by one, and note their revisions; return the subjects of those without a revision."""
        stored = self.jetstream.store_each(writes) if writes else []
        revisions.update(zip((write.subject for write in writes), stored, strict=True))
        return [write.subject for write, revision in zip(writes, stored, strict=True) if revision is None]

    def _purge_in_order(
        self, transaction: Transaction, revisions: Mapping[str, int | None], missed: set[str]
    ) -> None:
        """Purge messages older than these writes, except those of limiters that were not written."""
        unwritten = {subject.rpartition(".")[2] for subject in missed}
        oldest = min((revision for revision in revisions.values() if revision), default=0)
        purges = []
        for subject in transaction.batch.purges:
            own = revisions.get(subject)
            if own is not None:
                purges.append((subject, own + 1))  # the write has cleared the subject
            elif oldest and subject not in missed and self.names.limiter_of_line(subject) not in unwritten:
                purges.append((subject, oldest))
        self.jetstream.purge_before(purges)

    def commit(self, transaction: Transaction) -> bool:
        """Store all writes of a transaction; store none and return False if another process changed a record."""
        first = self.jetstream.commit(transaction.build_batch())
        if first is None:
            return False
        transaction.set_first_revision(first)
        self.jetstream.note_record(transaction.last_record())
        transaction.batch.run_callbacks()
        return True

    def run_many(
        self,
        items: Sequence[Item],
        work: Callable[[Transaction, Item], T],
        *,
        prefetch: Callable[[Transaction, Sequence[Item]], None] | None = None,
        batch_size: int = 200,
    ) -> list[T]:
        """Run work for each of many items, in as few transactions as possible. Each item sees earlier changes."""
        results: list[T] = []
        while items:
            part = items[:batch_size]
            try:
                results += self.run(partial(_run_each, part, work, prefetch))
            except BatchTooLarge:
                if len(part) == 1:
                    raise
                batch_size = max(1, len(part) // 4)
                continue
            items = items[len(part) :]
        return results


def _run_each(
    items: Sequence[Item],
    work: Callable[[Transaction, Item], T],
    prefetch: Callable[[Transaction, Sequence[Item]], None] | None,
    transaction: Transaction,
) -> list[T]:
    if prefetch is not None:
        prefetch(transaction, items)
    return [work(transaction, item) for item in items]
