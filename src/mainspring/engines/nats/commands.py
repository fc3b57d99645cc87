"""Carries out commands on single jobs: cancel, reschedule, reopen, replay, edit, delete, change limits.

A command changes the record of a job, its messages in the queue, its limiters and its unique keys in one
transaction. The transaction commits only if no other process has changed the record meanwhile. So if a cancel and
a start happen at the same time, one of them sees the other and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mainspring.engines.nats import unique_keys
from mainspring.engines.nats.audit import AuditRecorder
from mainspring.engines.nats.event_log import NatsEventLog
from mainspring.engines.nats.job_records import StoredJob, change
from mainspring.engines.nats.queueing import JobQueue
from mainspring.engines.nats.schedule_records import add_job
from mainspring.engines.nats.submitting import JobSubmitter
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.jobs import transitions
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.audit_drafts import Place
from mainspring.jobs.commands import (
    CancelJob,
    Changed,
    ChangeLimits,
    Command,
    Delete,
    Edit,
    Reopen,
    Replay,
    Reschedule,
)
from mainspring.jobs.events import EventKind
from mainspring.jobs.status import FINAL, JobStatus

BATCH_SIZE = 50
"""The largest number of commands in one transaction."""


class _CommandAttempt(NamedTuple):
    """An attempt to carry out commands in one transaction."""

    jobs: dict[str, StoredJob | None]
    """The jobs as the attempt leaves them, if it is stored."""
    results: dict[int, Changed]
    """The answers, by the numbers of the commands."""


class NatsCommands:
    """Carries out commands on jobs within transactions."""

    def __init__(self, *, job_queue: JobQueue, submitter: JobSubmitter, event_log: NatsEventLog) -> None:
        self._job_queue = job_queue
        self._submitter = submitter
        self._event_log = event_log

    def carry_out_all(
        self,
        transactions: TransactionManager,
        commands: Sequence[Command],
        recorder: AuditRecorder | None = None,
    ) -> list[Changed]:
        """Carry out commands in order, many in one transaction; return an answer for each.

        The recorder adds an audit entry to each transaction. If the reply to a commit is lost, the next attempt
        reads the jobs again. If they are as an earlier attempt left them, that attempt was stored, and its results
        are returned. It need not be the last attempt: a commit may be stored after the next attempt has begun.
        """
        attempts: list[_CommandAttempt] = []
        places: dict[str, Place] = {}  # the types and queues of the jobs, for the recorder
        results: dict[int, Changed] = {}
        last = 0  # the number of the last command of the transaction

        def begin(transaction: Transaction, numbered: Sequence[tuple[int, Command]]) -> None:
            attempts.append(_CommandAttempt({}, {}))
            self.prefetch(transaction, [command for _, command in numbered])
            nonlocal last
            last = numbered[-1][0]

        def work(transaction: Transaction, numbered: tuple[int, Command]) -> Changed:
            number, command = numbered
            job = transaction.job(command.id)
            if recorder is not None and job is not None:
                places[command.id] = (job.type, job.queue)
            result = _stored_result(attempts, number, command.id, job)
            # a RUNNING job is asked to stop again, because the notification of its worker may be lost, too
            if result is None or (job is not None and job.status is JobStatus.RUNNING):
                result = self.carry_out(transaction, command)
            attempts[-1].results[number] = results[number] = result
            attempts[-1].jobs[command.id] = transaction.job(command.id)
            if recorder is not None and number == last:
                done = commands[: last + 1]
                recorder.add_commands(transaction, done, [results[index] for index in range(len(done))], places)
            return result

        return transactions.run_many(list(enumerate(commands)), work, prefetch=begin, batch_size=BATCH_SIZE)

    def prefetch(self, transaction: Transaction, commands: Sequence[Command]) -> None:
        """Read the jobs of these commands, in one request."""
        transaction.prefetch_jobs(command.id for command in commands)

    def carry_out(self, transaction: Transaction, command: Command) -> Changed:
        """Carry out one command, if the job exists and its status allows it; return the answer.

        The answer has `is_done=False` if nothing was done, and the status None if there is no such job.
        """
        job = transaction.job(command.id)
        if job is None:
            return Changed(False, None)
        match command:
            case CancelJob():
                return Changed(self.cancel(transaction, job), job.status)
            case Reopen() | Replay() if job.status is JobStatus.FAILED:
                return self._run_again(transaction, job, command)
            case Edit() if job.status is JobStatus.FAILED:
                changes = {"payload": command.payload, "codec": command.codec, "search": command.search}
                transaction.put_job(change(job, **changes, **_new_headers(command)))
            case Delete() if job.status in FINAL and command.status in (None, job.status):
                _delete(transaction, job)
            case Reschedule() if job.status is JobStatus.PENDING:
                freed = self._remove_from_queue(transaction, job, keeps_turn=transitions.keeps_turn(job))
                self._job_queue.enqueue(transaction, _rescheduled(freed, command))
                self._event_log.write(transaction, EventKind.RESCHEDULED, job)
            case ChangeLimits() if job.status is JobStatus.PENDING:
                freed = self._remove_from_queue(transaction, job, keeps_turn=transitions.keeps_turn(job))
                self._job_queue.enqueue(transaction, change(freed, limits=command.limits))
            case _:
                return Changed(False, job.status)
        return Changed(True, job.status)

    def cancel(self, transaction: Transaction, job: StoredJob) -> bool:
        """Cancel a PENDING job and return True; otherwise return False, and ask a RUNNING job to stop."""
        if job.status is JobStatus.PENDING:
            transaction.put_job(transitions.canceled(self._remove_from_queue(transaction, job), transaction.now))
            self._event_log.write(transaction, EventKind.CANCELED, job)
            return True
        if job.status is JobStatus.RUNNING:
            if not job.stop_requested:
                transaction.put_job(change(job, stop_requested=True, stop_asked=transaction.now))
            transaction.batch.send(f"{transaction.names.notifications}stop", job.id.encode())
        return False

    def _remove_from_queue(
        self, transaction: Transaction, job: StoredJob, *, keeps_turn: bool = False
    ) -> StoredJob:
        """Remove a PENDING job from its queue; return its record without the lease that a worker may have.

        With `keeps_turn`, it keeps its place in its sequence. The caller stores the returned record.
        """
        return transitions.lease_revoked(self._job_queue.dequeue(transaction, job, keeps_turn=keeps_turn))

    def _run_again(self, transaction: Transaction, job: StoredJob, command: Reopen | Replay) -> Changed:
        if job.replayed_as is not None:
            return Changed(False, job.status, job.replayed_as)  # the dead letter was replayed as another job
        if isinstance(command, Replay):
            search = job.search if command.payload is None else command.search
            copy = replace(transitions.copy_of(job, command), search=search)
            conflict = self._submitter.add(transaction, copy, nonce=f"replay of {job.id}")
            if conflict is not None:
                return Changed(False, job.status, conflict.existing_id)
            transaction.put_job(change(job, replayed_as=command.new_id))
            transaction.note(EngineNote("submitted", job.queue, job.type))
            return Changed(True, job.status)
        holder = unique_keys.find_alive_holder(transaction, job)
        if holder is not None:
            return Changed(False, job.status, holder, is_unique_conflict=True)
        # the record of the key is written, so that of this reopening and a concurrent submit only one succeeds
        unique_keys.claim(transaction, job)
        add_job(transaction, job)
        reopened = change(transitions.reopened(job, command.due), turn=command.due, **_new_headers(command))
        self._job_queue.enqueue(transaction, reopened)
        self._event_log.write(transaction, EventKind.REOPENED, job)
        return Changed(True, job.status)


def _stored_result(
    attempts: Sequence[_CommandAttempt], number: int, job_id: str, job: StoredJob | None
) -> Changed | None:
    """Return the answer to a command from the attempt that left the job as it is now; None if there is none."""
    for attempt in reversed(attempts[:-1]):
        if number in attempt.results and attempt.jobs.get(job_id) == job:
            return attempt.results[number]
    return None


def _rescheduled(job: StoredJob, command: Reschedule) -> StoredJob:
    turn = job.turn if transitions.keeps_turn(job) else command.due
    return change(job, due=command.due, turn=turn, **_new_headers(command))


def _new_headers(command: Reschedule | Reopen | Edit) -> dict[str, object]:
    """Return the new headers of a job, as a field of its record; empty if the command has no new signature."""
    return {} if command.headers is None else {"headers": command.headers}


def _delete(transaction: Transaction, job: StoredJob) -> None:
    names = transaction.names
    transaction.delete_job(job.id)
    unique_keys.release(transaction, job)
    transaction.withdraw_ready(job)
    transaction.purge(*(names.scheduled(kind, job.id) for kind in ("job", "expire", "forget")))
