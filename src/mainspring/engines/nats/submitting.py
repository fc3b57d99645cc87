"""Submits jobs: a few plain ones one by one, many in one transaction, others with the records of their policies.

If a submit is sent again because its reply was lost, it recognizes its own jobs by their nonce.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from os import urandom

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats import unique_keys
from mainspring.engines.nats.event_log import NatsEventLog
from mainspring.engines.nats.job_records import StoredJob, change, make_job
from mainspring.engines.nats.limiters import limiters_of
from mainspring.engines.nats.queueing import JobQueue
from mainspring.engines.nats.transaction import BatchTooLarge, Transaction, TransactionManager
from mainspring.engines.nats.write_batch import Write
from mainspring.errors import ArgumentsTooLarge
from mainspring.jobs import transitions
from mainspring.jobs.events import EventKind
from mainspring.jobs.limits import family_of
from mainspring.jobs.records import Conflict, ConflictKind, NewJob
from mainspring.jobs.status import JobStatus

RESERVED_BYTES = 65_536
"""The bytes of a message that are reserved for other data than arguments: headers, and errors of attempts."""
FEW = 8
"""Up to this number, plain jobs are stored one by one, which is faster than a transaction."""
BATCH_SIZE = 450
"""The largest number of plain jobs in one transaction: two messages for each, and a few for new lanes."""


class JobWithNonce(Struct, frozen=True, gc=False):
    """A job to store, with a nonce (random text).

    A stored record with this nonce shows that this submit stored the job.
    """

    job: NewJob
    nonce: str


class JobSubmitter:
    """Stores the jobs that callers submit, and those that the engine makes itself."""

    def __init__(self, transactions: TransactionManager, job_queue: JobQueue, event_log: NatsEventLog) -> None:
        self._transactions = transactions
        self._job_queue = job_queue
        self._event_log = event_log
        self._last_place = 0

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        """Store jobs; return for each the conflict that kept it from being stored as a new job, or None.

        With `ConflictKind.REPLACED`, the stored job has got the arguments and the due time of the new one. Raise
        `ArgumentsTooLarge`, before anything is stored, if a job does not fit into a message.
        """
        for job in jobs:
            self._require_size(job)
        nonce = urandom(8).hex()
        items = [JobWithNonce(job, f"{nonce}{number}") for number, job in enumerate(jobs)]
        if len(items) == 1 and _is_plain(items[0].job):  # the usual case
            return self._store_plain(items)
        results: list[Conflict | None] = []
        for is_plain, group in groupby(items, lambda item: _is_plain(item.job)):
            part = list(group)
            if is_plain:
                for start in range(0, len(part), BATCH_SIZE):
                    results += self._store_plain(part[start : start + BATCH_SIZE])
            else:
                results += self._store_all(part)
        return results

    def _require_size(self, job: NewJob) -> None:
        """Raise `ArgumentsTooLarge` if the arguments of a job do not fit into a message of the server."""
        limit = self._transactions.jetstream.max_payload - RESERVED_BYTES
        if len(job.payload) > limit:
            raise ArgumentsTooLarge(
                handler=job.type, size=len(job.payload), limit=limit, setting="max_payload of the NATS server"
            )

    def _store_plain(self, items: list[JobWithNonce]) -> list[Conflict | None]:
        """Store plain jobs (without policies) on the assumption that their ids are free.

        Only if that fails, read the records and try again.
        """
        if len(items) == 1 or len({item.job.id for item in items}) == len(items):
            if len(items) <= FEW and self._store_few(items):
                return [None] * len(items)
            transaction = self._transactions.begin()
            for item in items:
                transaction.assume(transaction.names.job(item.job.id), 0, b"")
                self._store(transaction, item.job, item.nonce)
            if self._is_stored(transaction):
                return [None] * len(items)
        return self._store_all(items)

    def _is_stored(self, transaction: Transaction) -> bool:
        try:
            return self._transactions.commit(transaction)
        except BatchTooLarge:  # the jobs have many new lanes
            return False

    def _store_few(self, items: list[JobWithNonce]) -> bool:
        """Store plain jobs (without policies) without an atomic batch, which costs the server some milliseconds,
        whatever its size.

        For each job, first send the message that delivers it to a worker, then its record. A worker that gets the
        message before the record is stored returns it to the server, which delivers it again a little later.

        Return True if all jobs are stored, and False if some may be missing: then the caller stores all of them by
        a transaction, which finds those that are stored already. Store none and return False if a client listens
        to events, or if this process has not stored the lane of a job yet (the record of its queue, job type and
        priority, by which workers find the job): only a transaction writes events and lanes.
        """
        jetstream = self._transactions.jetstream
        now = jetstream.now()
        if self._event_log.has_listener_at(now):
            return False
        writes: list[Write] = []
        for item in items:
            job = self._make(now, item.job, item.nonce)
            if not self._job_queue.knows_lane(job):
                return False
            writes += self._job_queue.separate_writes(now, job)
        revisions = jetstream.store_each(writes)
        jetstream.note_record(max([revision or 0 for revision in revisions]))
        return None not in revisions

    def _store_all(self, items: list[JobWithNonce]) -> list[Conflict | None]:
        return self._transactions.run_many(
            items, lambda transaction, item: self.add(transaction, item.job, item.nonce), prefetch=_prefetch
        )

    def add(self, transaction: Transaction, job: NewJob, nonce: str) -> Conflict | None:
        """Store a job within a transaction and return None, or return the conflict that keeps it from being
        stored as a new job.

        With `ConflictKind.REPLACED`, the stored job gets the arguments and the due time of the new one. A job that
        an earlier try of the same submit has stored is no conflict: its record has the random text `nonce`.
        """
        existing = transaction.job(job.id)
        if existing is not None:
            if existing.nonce != nonce:
                return Conflict(job.id, ConflictKind.ID)
            if existing.status is JobStatus.PENDING and existing.owner is None and not existing.needs_admission:
                # The record was stored, but perhaps not the message.
                self._job_queue.enqueue(transaction, existing)
            return None
        if job.unique is not None or job.schedule is not None:
            conflict = unique_keys.find_conflict(transaction, job)
            if conflict is not None:
                self._resolve_conflict(transaction, job, conflict)
                return conflict
        stored = self._store(transaction, job, nonce)
        unique_keys.claim(transaction, stored)
        return None

    def _store(self, transaction: Transaction, job: NewJob, nonce: str) -> StoredJob:
        stored = self._make(transaction.now, job, nonce)
        self._job_queue.enqueue(transaction, stored)
        self._event_log.write(transaction, EventKind.SUBMITTED, stored)
        return stored

    def _make(self, now: int, job: NewJob, nonce: str) -> StoredJob:
        # Places grow with time, across all processes; within this process also for jobs of the same instant.
        self._last_place = max(self._last_place + 1, now * 1_000)
        return make_job(job, now=now, place=self._last_place, nonce=nonce)

    def _resolve_conflict(self, transaction: Transaction, job: NewJob, conflict: Conflict) -> None:
        existing = transaction.job(conflict.existing_id)
        assert existing is not None
        if conflict.kind is ConflictKind.UNIQUE:
            self._event_log.write(transaction, EventKind.DEDUPLICATED, existing)
            return
        renewed = transitions.replaced(self._job_queue.dequeue(transaction, existing), job)
        self._job_queue.enqueue(transaction, change(renewed, turn=job.due, search=job.search))
        self._event_log.write(transaction, EventKind.RESCHEDULED, renewed)


def _is_plain(job: NewJob) -> bool:
    """Return whether a job is plain (`NewJob.is_plain`) apart from its search keys, which need no other record."""
    return (replace(job, search=()) if job.search else job).is_plain


def _prefetch(transaction: Transaction, items: Sequence[JobWithNonce]) -> None:
    """Read the records that the jobs may conflict with, and their sequences and limits, in one request."""
    names = transaction.names
    subjects = [names.job(item.job.id) for item in items]
    subjects += [names.key(item.job.unique.key) for item in items if item.job.unique is not None]
    subjects += [names.limiter(family_of(name), name) for item in items for name in limiters_of(item.job)]
    transaction.prefetch(subjects)
