"""Remote workers on NATS: their records, which any process may change, and the leases that the records list.

The record of a remote worker is a heartbeat record as that of any worker, with the terms of the worker and its
leases: the id of each job, and the reply subject of the job's message. No process keeps the message in progress.
After a claim, the message goes back to the server for the time of a lease. The process that gets it then finds
that the owner of the job is alive, and returns it again; if the worker has died, the job is rescued.

A process that dies between the claim of a job and the change of the worker's record leaves a job that no record
lists. The process that gets the message of this job then hands the job back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from mainspring.engines.nats.audit import RecordArrangement
from mainspring.engines.nats.deliveries import ACK, nak
from mainspring.engines.nats.leases import ActiveLeases
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.engines.nats.workers import HeartbeatEntry, HeartbeatRecord
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.commands import DirectWorker, RemoveWorker
from mainspring.jobs.records import Lease, RemoteTerms, RunningLease, WorkerInfo
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.permissions import TOKEN_CALLER
from mainspring.security.tokens import TokenRecord, removal_reason

T = TypeVar("T")

logger = logging.getLogger("mainspring.nats")


class NatsRemoteWorkers:
    """Stores, renews and removes the records of remote workers, with the leases of their jobs."""

    def __init__(self, transactions: TransactionManager, leases: ActiveLeases) -> None:
        self._transactions = transactions
        self._jetstream = transactions.jetstream
        self._names = transactions.names
        self._active = leases

    def enroll(self, info: WorkerInfo) -> int:
        """Store the record of a new remote worker, and return its number."""
        number = self._jetstream.store(self._names.worker_numbers, b"")
        self._jetstream.purge(self._names.worker_numbers)

        def work(transaction: Transaction) -> None:
            record = HeartbeatRecord(
                info.name,
                info.process,
                info.types,
                transaction.now,
                queues=info.queues,
                timeouts=info.timeouts,
                remote=info.remote,
            )
            transaction.put_struct(self._names.worker(number), record)

        self._transactions.run(work)
        return number

    def terms_of(self, worker: int) -> RemoteTerms | None:
        """Return the terms of a remote worker; None if the worker is no remote one, has left or has died."""
        record = self._read(self._transactions.begin(), worker)
        return None if record is None else record.remote

    def renew(self, worker: int, longest_lease: int | None = None) -> bool:
        """Store a heartbeat of a remote worker, and shorten a lease that is longer than `longest_lease`.

        Return False if the worker is no remote one, has left or has died.
        """

        def renewed(record: HeartbeatRecord, now: int) -> HeartbeatRecord:
            terms = record.remote
            if terms is not None and longest_lease is not None and terms.lease > longest_lease:
                terms = replace(terms, lease=longest_lease)
            return replace(record, beat=now, remote=terms)

        return self._change(worker, renewed)

    def keep(self, worker: int, leases: Sequence[Lease], terms: RemoteTerms) -> bool:
        """Store the leases that this process has just claimed for a remote worker in the worker's record.

        The messages of these jobs go back to the server, which may deliver them again after the time of a lease.
        Return False if the worker has left or has died meanwhile: then the caller hands the jobs back.
        """
        # This process has the leases no longer, whatever happens now: it would take their messages for its own.
        found = [active for lease in leases if (active := self._active.drop(lease.id)) is not None]
        replies = {active.job.id: active.reply for active in found}
        try:
            is_kept = self._change(worker, lambda record, now: _with_leases(record, replies, now))
        except (
            EngineUnavailable
        ):  # the process that gets the messages next finds out whether the leases are stored
            self._jetstream.send([(reply, nak(0)) for reply in replies.values()])
            raise
        delay = nak(terms.lease / MICROSECONDS) if is_kept else nak(0)
        self._jetstream.send([(reply, delay) for reply in replies.values()])
        return is_kept

    def forget(self, worker: int, ids: Sequence[str]) -> None:
        """Remove the leases of settled jobs from the record of a remote worker, and acknowledge their messages.

        This counts as a heartbeat. Do nothing if the worker has left or has died. If the server cannot be reached,
        only log that: the messages are dropped when they are delivered again.
        """
        replies: list[str] = []

        def drop(record: HeartbeatRecord, now: int) -> HeartbeatRecord:
            replies[:] = [reply for job_id, reply in record.leases.items() if job_id in ids]
            kept = {job_id: reply for job_id, reply in record.leases.items() if job_id not in ids}
            return replace(record, leases=kept, beat=now)

        try:
            self._change(worker, drop)
        except (
            EngineUnavailable
        ) as error:  # the outcomes are stored; their messages are dropped when they come again
            logger.warning("the record of remote worker %d still lists leases of settled jobs: %s", worker, error)
            return
        self._jetstream.send([(reply, ACK) for reply in replies])

    def leave(self, worker: int) -> bool:
        """Remove a remote worker; return False if it is no remote one, has left or has died.

        The next sweep rescues the jobs that it leaves.
        """

        subject = self._names.worker(worker)

        def work(transaction: Transaction) -> HeartbeatRecord | None:
            record = self._read(transaction, worker)
            if record is not None:
                left = replace(record, beat=0, left_behind=tuple(record.leases), has_left=True)
                transaction.put_struct(subject, left)
            return record

        record = self._transactions.run(work)
        if record is not None and not record.leases:
            self._jetstream.drop(subject)
        return record is not None

    def leased(self, worker: int) -> list[RunningLease]:
        """List the leases of the jobs that a remote worker is running; none if it has left or has died."""
        transaction = self._transactions.begin()
        record = self._read(transaction, worker)
        if record is None or not record.leases:
            return []
        transaction.prefetch_jobs(record.leases)
        found: list[RunningLease] = []
        for job in map(transaction.job, record.leases):
            if job is not None and (job.owner, job.status) == (worker, JobStatus.RUNNING):
                lease = transitions.lease_of(job, job.place, is_started=True, at_most_once=job.at_most_once)
                started = job.started or job.due
                asked = max(job.stop_asked or 0, started) if job.stop_requested else None
                found.append(RunningLease(lease, started, asked))
        return found

    def direct(self, arrangement: DirectWorker, record_change: RecordArrangement) -> bool:
        """Store whether a remote worker should run, be quiet or terminate; return whether this changed anything.

        If it does, `record_change` is called in the same transaction. Return False, too, if the worker is no
        remote one, has left or has died.
        """
        attempts: list[bool] = []

        def work(transaction: Transaction) -> None:
            record = self._read(transaction, arrangement.number)
            terms = None if record is None else record.remote
            attempts.append(terms is not None and terms.direction is not arrangement.direction)
            if record is not None and terms is not None and attempts[-1]:
                after = replace(record, remote=replace(terms, direction=arrangement.direction))
                transaction.put_struct(self._names.worker(arrangement.number), after)
                record_change(transaction, None)

        self._transactions.run(work)
        return any(attempts)

    def remove(
        self,
        arrangement: RemoveWorker,
        record_change: RecordArrangement,
        find_jobs: Callable[[int], Sequence[str]],
    ) -> bool:
        """Declare that a worker has left; return whether this changed anything.

        If it does, `record_change` is called in the same transaction. The next sweep rescues the jobs of the
        worker: those in its record, or, of a worker that is no remote one, those that `find_jobs` finds.
        """
        attempts: list[bool] = []

        def work(transaction: Transaction) -> None:
            subject = self._names.worker(arrangement.number)
            record = transaction.get_struct(subject, HeartbeatRecord)
            attempts.append(record is not None and not record.has_left)
            if record is not None and attempts[-1]:
                terms = record.remote
                left = replace(
                    record,
                    beat=0,
                    left_behind=tuple(find_jobs(arrangement.number) if terms is None else record.leases),
                    has_left=True,
                    remote=None if terms is None else replace(terms, removed=arrangement.reason),
                )
                transaction.put_struct(subject, left)
                record_change(transaction, None)

        self._transactions.run(work)
        return any(attempts)

    def _read(self, transaction: Transaction, worker: int) -> HeartbeatRecord | None:
        record = transaction.get_struct(self._names.worker(worker), HeartbeatRecord)
        return None if record is None or record.remote is None or record.has_left else record

    def _change(self, worker: int, change: Callable[[HeartbeatRecord, int], HeartbeatRecord]) -> bool:
        def work(transaction: Transaction) -> bool:
            record = self._read(transaction, worker)
            if record is None:
                return False
            transaction.put_struct(self._names.worker(worker), change(record, transaction.now))
            return True

        return self._transactions.run(work)


def find_unauthorized(
    entries: Mapping[int, HeartbeatEntry], read_tokens: Callable[[], Sequence[TokenRecord]], now: int
) -> list[RemoveWorker]:
    """Return the removals of the remote workers whose token was revoked or has expired.

    `read_tokens` is called only if a remote worker with a token is alive.
    """
    callers = {
        number: record.remote.caller.removeprefix(TOKEN_CALLER)
        for number, (record, _) in entries.items()
        if record.remote is not None and not record.has_left and record.remote.caller.startswith(TOKEN_CALLER)
    }
    tokens = {token.id: token for token in read_tokens()} if callers else {}
    return [
        RemoveWorker(number, removal_reason(is_revoked=tokens[caller].revoked is not None))
        for number, caller in callers.items()
        if caller in tokens and tokens[caller].ended(now) is not None
    ]


def _with_leases(record: HeartbeatRecord, replies: dict[str, str], now: int) -> HeartbeatRecord:
    return replace(record, leases={**record.leases, **replies}, beat=now)
