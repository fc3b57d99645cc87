"""Optimistic transactions on the stream.

A `Transaction` remembers the revision of each record that it reads. If each written record still has this revision
at the commit, the commit stores all writes. Otherwise the commit stores nothing, and the `TransactionManager` runs
the work again with current data. It also does so if the reply to the commit is lost: then the work must find out
whether its writes were stored. So the code of a transaction reads, decides and writes without locks.

Rule: if a decision depends on a record, the same transaction must write this record, or every transaction that
could make the decision wrong must write a record that this transaction writes, too. The commit does not check
records that the transaction has only read.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import StoredJob, decode, decode_job, encode
from mainspring.engines.nats.storage import StorageProblem
from mainspring.engines.nats.subject_names import SubjectNames, from_token
from mainspring.engines.nats.write_batch import MAX_BATCH, StoredMessage, Write, WriteBatch
from mainspring.errors import EngineUnavailable
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

T = TypeVar("T")
Item = TypeVar("Item")
S = TypeVar("S", bound=Struct)

MAX_TRIES = 200
MAX_READY_JOBS = 1_000
PAUSE_SECONDS = 0.001
TOMBSTONE_TTL = {"Nats-TTL": "604800s"}


class BatchTooLarge(Exception):
    """Raised if the writes of a transaction do not fit into one atomic batch of the server."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(f"{size} messages, and a batch has at most {MAX_BATCH}")


class Transaction:
    """The reads and writes of one attempt to run a piece of work, which are committed all or none."""

    def __init__(
        self,
        jetstream: JetStream,
        names: SubjectNames,
        now: int,
        retention: Mapping[JobStatus, int],
        on_job_end: Callable[[Transaction, StoredJob, int], None],
        *,
        notes: deque[EngineNote],
    ) -> None:
        self.names = names
        self._notes = notes
        self._retention = retention
        self._on_job_end = on_job_end
        self.now = now
        """The time of the transaction in microseconds, by the server's clock."""
        self.batch = WriteBatch()
        """The batch for unconditional writes, and for actions after the commit."""
        self.admitter: object = None
        """The `admission.Admitter` of this transaction; None until it is needed."""
        self._jetstream = jetstream
        self._read: dict[str, StoredMessage] = {}
        self._jobs: dict[str, StoredJob | None] = {}  # by id, as last read or written here
        self._written: dict[str, tuple[bytes, Mapping[str, str] | None]] = {}
        self._ready: dict[str, str] = {}  # subjects of ready messages, by the subject of the job's record
        self._indexes: dict[str, int] = {}  # positions of written records in the batch, by subject
        self._first = 0

    # -- records

    def latest(self) -> int:
        """Return the latest that the server's time may be now, in microseconds: delays begin at it."""
        return self._jetstream.latest()

    def prefetch(self, subjects: Iterable[str]) -> None:
        """Read many subjects at once, except those that were read already."""
        unread = [subject for subject in subjects if subject not in self._read]
        if unread:
            self._read.update(self._jetstream.read(unread))

    def forget(self, subjects: Iterable[str]) -> None:
        """Let the next access read these subjects again, except those that are written here."""
        for subject in subjects:
            if subject not in self._written:
                self._read.pop(subject, None)
                if subject.startswith(self.names.jobs):
                    self._jobs.pop(from_token(subject.removeprefix(self.names.jobs)), None)

    def confirm(self, subject: str) -> None:
        """Read a subject again, alone, if the first read found no message.

        The server may read the subjects of one request at different instants. So it may miss a message that is
        replaced at the same time, and this message must not count as deleted.
        """
        if not self.stored(subject).revision:
            self.forget([subject])
            self.prefetch([subject])

    def assume(self, subject: str, revision: int, data: bytes) -> None:
        """Treat a subject as if it had been read, with this content."""
        self._read[subject] = StoredMessage(revision, data)

    def get(self, subject: str) -> bytes:
        """Return the data of a subject as this transaction has written or read it; empty if there is no data."""
        written = self._written.get(subject)
        return self.stored(subject).data if written is None else written[0]

    def stored(self, subject: str) -> StoredMessage:
        """Return the message of a subject as this transaction has read it, without its own writes.

        If the transaction has not read the subject yet, it does so now. Without a message, the revision is 0.
        """
        if subject not in self._read:
            self.prefetch([subject])
        return self._read[subject]

    def read_limiters(self) -> list[str]:
        """Return the subjects of the limiters (of sequences, limits and queues) that this transaction has read."""
        return [subject for subject in self._read if subject.startswith(self.names.limiters)]

    def put(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Write the data of a subject.

        The commit fails if another process changes the subject first. Empty data clears the subject.
        """
        self.stored(subject)
        self._written[subject] = (data, headers)

    def get_struct(self, subject: str, kind: type[S]) -> S | None:
        """Return the decoded data of a subject; None if the subject has no data."""
        data = self.get(subject)
        return decode(data, kind) if data else None

    def put_struct(self, subject: str, value: Struct) -> None:
        """Encode a struct and write it to a subject."""
        self.put(subject, encode(value))

    def delete(self, subject: str) -> None:
        """Replace the data of a subject with an empty message, which expires.

        Until then, readers see the deletion.
        """
        self.put(subject, b"", TOMBSTONE_TTL)

    def scan(self, subject: str, *, after: int = 0, most: int = 1_000) -> list[tuple[str, StoredMessage]]:
        """Return messages whose subjects match a wildcard, in the order in which they were stored.

        Return at most `most` messages, and only messages with a revision greater than `after`. The writes of this
        transaction are not among them.
        """
        return self._jetstream.scan(subject, after=after, most=most)

    def test_storage(self) -> StorageProblem | None:
        """Return why the server stores no messages; None if it stores a test message, or cannot be reached."""
        return self._jetstream.test_storage(self.names.storage_test)

    def scan_each(self, places: Sequence[tuple[str, int]], *, most: int) -> list[list[tuple[str, StoredMessage]]]:
        """Scan several wildcards at once. `places` has each wildcard, and the revision after which to begin."""
        return self._jetstream.scan_each(places, most=most)

    # -- jobs

    def job(self, job_id: str) -> StoredJob | None:
        """Return the job with this id; None if there is no such job."""
        if job_id not in self._jobs:
            data = self.get(self.names.job(job_id))
            self._jobs[job_id] = decode_job(data) if data else None
        return self._jobs[job_id]

    def current_job(self, job_id: str) -> StoredJob | None:
        """Read a job from the server again and return it as it is stored now.

        The transaction keeps its own copy.
        """
        data = self._jetstream.read_one(self.names.job(job_id)).data
        return decode_job(data) if data else None

    def job_at(self, subject: str) -> StoredJob | None:
        """Return the job whose record has this subject; None if there is no such job."""
        return self.job(from_token(subject.removeprefix(self.names.jobs)))

    def assume_job(self, job: StoredJob, revision: int) -> None:
        """Treat a job as if it had been read, with this revision of its record."""
        self._read[self.names.job(job.id)] = StoredMessage(revision, b"")
        self._jobs[job.id] = job

    def prefetch_jobs(self, job_ids: Iterable[str]) -> None:
        """Read the records of many jobs at once, except those that were read already."""
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
        """Add the ready message of a job, which delivers the job to a worker when its sequence and limits have
        admitted it.

        The caller also writes the record. The message is stored right behind the record of the job and contains
        the same data. So the worker that gets the message knows the record and its revision. The message has no
        data if the job gets the place of one that has ended (a hand-over).
        """
        self._ready[self.names.job(job.id)] = self._ready_subject(job)

    def withdraw_ready(self, job: StoredJob) -> None:
        """Do not store the message to workers that `publish_ready` has added for this job, if any."""
        subject = self._ready_subject(job)
        self._ready = {record: ready for record, ready in self._ready.items() if ready != subject}

    def _ready_subject(self, job: StoredJob) -> str:
        return self.names.ready_of(job.queue, job.type, job.priority, job.id)

    def note(self, note: EngineNote) -> None:
        """Add a note for statistics about something that this transaction does and its caller does not return.

        The note counts after the commit.
        """
        self.batch.after_commit(partial(self._notes.append, note))

    def purge(self, *subjects: str) -> None:
        """Purge subjects after the commit, and drop the unconditional writes to them."""
        self.batch.purge(*subjects)

    # -- committing

    def revisions(self) -> dict[str, int]:
        """Return the revisions of all records that this transaction has stored, by subject."""
        return {subject: self._first + index for subject, index in self._indexes.items()}

    def last_record(self) -> int:
        """Return the revision of the last job record that this transaction has stored; 0 if it has stored none."""
        jobs = self.names.jobs
        return max((at for subject, at in self.revisions().items() if subject.startswith(jobs)), default=0)

    def set_first_revision(self, first: int) -> None:
        """Record that all writes were stored, and that the first write got this revision."""
        self._first = first

    @property
    def written(self) -> list[str]:
        """The subjects that this transaction writes."""
        return list(self._written)

    def independent_writes(self) -> list[Write] | None:
        """Return the writes if all of them are job records, which can be stored one by one; otherwise None.

        Return None, too, if there are no writes, or if the commit has to store, send or do anything else.
        """
        batch = self.batch
        has_more = batch.writes or batch.sends or batch.events or batch.purges or batch.has_callbacks
        are_jobs = all(subject.startswith(self.names.jobs) for subject in self._written)
        if self._ready or has_more or not self._written or not are_jobs:
            return None
        return self.conditional_writes()

    def conditional_writes(self) -> list[Write]:
        """Return the writes of records, each with the revision that the write replaces."""
        return [
            Write(subject, data, self._read[subject].revision, headers)
            for subject, (data, headers) in self._written.items()
        ]

    @property
    def has_ready(self) -> bool:
        """Whether this transaction stores messages that offer jobs to workers."""
        return bool(self._ready)

    def ready_of(self, subject: str) -> str | None:
        """Return the subject of the message that offers a job to workers, given the subject of the job's record.

        Return None if this transaction stores no such message.
        """
        return self._ready.get(subject)

    def set_revisions(self, revisions: dict[str, int | None]) -> None:
        """Record the revisions of job records that were stored one by one."""
        self._indexes = {subject: revision for subject, revision in revisions.items() if revision is not None}

    def build_batch(self) -> WriteBatch:
        """Return all writes as one batch: each record with the message that offers its job to workers, then the
        unconditional writes.

        The records of limiters (sequences, limits and queues) come after those of jobs. The server stores the
        messages of a batch one after another, so a reader may see only the first of them. If it sees a limiter, it
        also sees its jobs.

        Raise `BatchTooLarge` if the batch would exceed the server's limit.
        """
        changes = WriteBatch()
        limiters = self.names.limiters
        for subject in sorted(self._written, key=lambda subject: subject.startswith(limiters)):
            data, headers = self._written[subject]
            self._indexes[subject] = changes.put(subject, data, self._read[subject].revision, headers)
            ready = self._ready.get(subject)
            if ready is not None:
                changes.put(ready, data)
        changes.writes.extend(self.batch.writes)
        if len(changes) > MAX_BATCH:
            raise BatchTooLarge(len(changes))
        changes.sends = [*self.batch.sends, *((subject, data) for _, subject, data in self.batch.events)]
        changes.purges = self.batch.purges
        return changes


class OrderedWrites:
    """Writes that need no atomic batch if they are stored in this order: ended jobs, limiters, ready jobs.

    A limiter is the record of a sequence or limit, and a ready job is one that it has admitted next.
    """

    def __init__(self) -> None:
        self.ended: list[Write] = []
        """The records of jobs that have ended."""
        self.limiters: list[Write] = []
        self.ready: list[tuple[Write, Write]] = []
        """The record and the ready message of each job that a limiter has admitted instead of an ended job."""
        self.keys: dict[str, str] = {}
        """The subject of each job's limiter, by the subject of the job; empty if the job has no limiter.

        If a write of a limiter is not stored, the later writes of the same limiter must not be stored either.
        """


class ReadyJobs:
    """The records of jobs that this process has stored last as ready, with their revisions.

    The worker of this process that gets the message of such a job need not read the record. If the record has
    changed meanwhile, the claim is refused, and is tried again with the record as it is then.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[StoredJob, int]] = {}  # by the revision of the job's message

    def put(self, message: int, job: StoredJob, revision: int) -> None:
        """Add the record of a job and its revision, given the revision of the message that offers the job.

        If there are many, the oldest is forgotten.
        """
        if len(self._jobs) >= MAX_READY_JOBS:
            del self._jobs[next(iter(self._jobs))]
        self._jobs[message] = (job, revision)

    def take(self, message: int) -> tuple[StoredJob, int] | None:
        """Remove and return the job that a message offers, and the revision of its record; None if unknown."""
        return self._jobs.pop(message, None)


class TransactionManager:
    """Begins transactions, and repeats work in new transactions until one commits."""

    def __init__(self, jetstream: JetStream, names: SubjectNames) -> None:
        self.jetstream = jetstream
        self.names = names
        self.on_job_end: Callable[[Transaction, StoredJob, int], None] = lambda _transaction, _job, _seconds: None
        """Called for each ended job that the server will delete, with the number of seconds until then."""
        self.ready_jobs = ReadyJobs()
        """The jobs to which hand-overs of this process have given the place of an ended job."""
        self.notes: deque[EngineNote] = deque()
        """What committed transactions did beside the answers of their calls. Any thread may take a note away."""
        self.retention: dict[JobStatus, int] = {}
        """How many microseconds after its end the server deletes a job, by status.

        The server does not delete jobs with a status that is not in this mapping.
        """

    def now(self) -> int:
        """Return the server's time, in microseconds."""
        return self.jetstream.now()

    def begin(self) -> Transaction:
        """Return a new transaction."""
        return Transaction(
            self.jetstream, self.names, self.now(), self.retention, self.on_job_end, notes=self.notes
        )

    def run(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a new transaction, again after each failed commit, and return its result.

        After `MAX_TRIES` failed commits, raise `EngineUnavailable`. Raise `BatchTooLarge` if the writes do not fit
        into one batch.
        """
        with self.jetstream.shared_deadline():
            for attempt in range(MAX_TRIES):
                transaction = self.begin()
                result = work(transaction)
                if self.commit(transaction):
                    return result
                time.sleep(PAUSE_SECONDS * random.random() * min(attempt, 20))  # noqa: TID251 - back-off
        raise EngineUnavailable(
            engine=f"NATS at {self.jetstream.address}",
            reason=f"{MAX_TRIES} commits in a row failed, because other processes changed the same records or "
            "replies were lost",
            remedy="try again; if the error persists, let fewer jobs share one sequence, limit or unique key",
        )

    def commit_each(self, transaction: Transaction) -> set[str]:
        """Store the writes of a transaction; return the subjects that may not have been stored.

        A write is not stored if another process has changed the record meanwhile. It may be stored or not if its
        reply was lost. Records that do not depend on each other are stored one by one, because a batch costs the
        server some milliseconds more, and twice the work for each record.
        """
        writes = transaction.independent_writes()
        if writes is None:
            return set() if self.commit(transaction) else set(transaction.written)
        revisions = self.jetstream.store_each(writes)
        transaction.set_revisions(dict(zip((write.subject for write in writes), revisions, strict=True)))
        self.jetstream.note_record(transaction.last_record())
        return {write.subject for write, revision in zip(writes, revisions, strict=True) if revision is None}

    def commit_in_order(self, transaction: Transaction, writes: OrderedWrites) -> set[str]:
        """Store writes in the order of a hand-over; then send the events of stored records, and purge.

        In a hand-over, an ended job passes its place under a limiter (a sequence or limit) to the next job.

        If a write is refused, or its reply is lost, the later writes of the same limiter are left out. Return the
        subjects of ended jobs that were not stored, and of limiters whose writes were not all stored. The caller
        reads these records again and completes the hand-overs.
        """
        keys = writes.keys
        revisions: dict[str, int | None] = {}
        ended = self._store(writes.ended, revisions)
        missed = {keys[subject] for subject in ended} - {""}
        missed |= set(self._store([write for write in writes.limiters if write.subject not in missed], revisions))
        ready = [pair for pair in writes.ready if keys[pair[0].subject] not in missed]
        self._store([write for pair in ready for write in pair], revisions)
        if ready:
            self.jetstream.pulls.expect_messages()
        for record, message in ready:
            revision, offered = revisions[record.subject], revisions[message.subject]
            job = transaction.job_at(record.subject)
            if revision is None or offered is None:
                missed.add(keys[record.subject])
            elif job is not None:
                self.ready_jobs.put(offered, job, revision)
        transaction.set_revisions(revisions)
        self.jetstream.note_record(transaction.last_record())
        events = [(subject, data) for record, subject, data in transaction.batch.events if revisions.get(record)]
        self.jetstream.send(events)
        self._purge_in_order(transaction, revisions, missed)
        return missed | set(ended)

    def _store(self, writes: Sequence[Write], revisions: dict[str, int | None]) -> list[str]:
        """Store writes one by one, and add their revisions to `revisions`; return the subjects not stored."""
        stored = self.jetstream.store_each(writes) if writes else []
        revisions.update(zip((write.subject for write in writes), stored, strict=True))
        return [write.subject for write, revision in zip(writes, stored, strict=True) if revision is None]

    def _purge_in_order(
        self, transaction: Transaction, revisions: Mapping[str, int | None], missed: set[str]
    ) -> None:
        """Purge subjects after the writes of `commit_in_order`, except those of jobs that wait for a sequence or
        limit that was not written.

        Purge only messages that are older than the first of these writes.
        """
        unwritten = {subject.rpartition(".")[2] for subject in missed}
        oldest = min((revision for revision in revisions.values() if revision), default=0)
        purges = transaction.batch.purges if oldest else ()
        self.jetstream.purge_before(
            [(subject, oldest) for subject in purges if self.names.limiter_of_line(subject) not in unwritten]
        )

    def commit(self, transaction: Transaction) -> bool:
        """Store all writes of a transaction, do what is to be done after the commit, and return True.

        If another process has changed one of the written records meanwhile, store nothing and return False. Also
        return False if the reply was lost; then the writes are stored all or none. Raise `BatchTooLarge` if the
        writes do not fit into one batch.
        """
        first = self.jetstream.commit(transaction.build_batch())
        if first is None:
            return False
        transaction.set_first_revision(first)
        self.jetstream.note_record(transaction.last_record())
        if transaction.has_ready:
            self.jetstream.pulls.expect_messages()
        transaction.batch.run_callbacks()
        return True

    def run_many(
        self,
        items: Sequence[Item],
        work: Callable[[Transaction, Item], T],
        *,
        prefetch: Callable[[Transaction, Sequence[Item]], None] | None = None,
        batch_size: int = 200,
        may_last: bool = False,
    ) -> list[T]:
        """Run work for each of many items, with up to `batch_size` items in one transaction; return the results.

        The work for an item sees the changes of the items before it. If a transaction fails, those before it stay
        committed. Raise `BatchTooLarge` if the writes for one item do not fit into a batch. With `may_last`, the
        timeout of the call begins again after each transaction.
        """
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
            if may_last:
                self.jetstream.restart_deadline()
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
