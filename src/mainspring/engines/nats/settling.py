"""Settles leases: stores the outcomes of jobs, and the follow-up jobs and events that belong to each outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from secrets import token_hex

from msgspec.structs import replace

from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.dead_letters import DeadLetterWriter
from mainspring.engines.nats.deliveries import ACK, nak
from mainspring.engines.nats.event_log import NatsEventLog
from mainspring.engines.nats.job_records import StoredJob, change
from mainspring.engines.nats.leases import ActiveLeases
from mainspring.engines.nats.limiters import limiters_of
from mainspring.engines.nats.queueing import JobQueue
from mainspring.engines.nats.submitting import JobSubmitter
from mainspring.engines.nats.transaction import BatchTooLarge, Transaction, TransactionManager
from mainspring.engines.nats.workers import WorkerRegistry
from mainspring.engines.nats.write_batch import MAX_BATCH
from mainspring.errors import LimitExceeded
from mainspring.jobs import transitions
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.events import EventKind, event_after
from mainspring.jobs.limits import family_of
from mainspring.jobs.records import Lease, Outcome, OutcomeKind, ProgressReport
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transitions import RUNS_LATER
from mainspring.plurals import format_count

ENDS = (OutcomeKind.COMPLETED, OutcomeKind.FAILED, OutcomeKind.CANCELED)
BATCH_SIZE = 300
MAX_TRIES = 50


class NatsJobSettler:
    """Stores outcomes and progress of leased jobs, and ends the leases."""

    def __init__(
        self,
        transactions: TransactionManager,
        leases: ActiveLeases,
        workers: WorkerRegistry,
        *,
        submitter: JobSubmitter,
        job_queue: JobQueue,
        admission: AdmissionControl,
        event_log: NatsEventLog,
        dead_letters: DeadLetterWriter,
    ) -> None:
        self._transactions = transactions
        self._leases = leases
        self._workers = workers
        self._dead_letters = dead_letters
        self._letter_handlers: tuple[DeadLetterHandler, ...] = ()  # for the outcomes that are being stored
        self._submitter = submitter
        self._job_queue = job_queue
        self._admission = admission
        self._event_log = event_log
        self._uncertain: dict[tuple[str, int], str] = {}  # nonces of outcomes that may have been stored

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        """Store outcomes, and end their leases; return for each outcome whether its lease was still valid.

        After an error, the caller may settle the same outcomes again: this process recognizes those that were
        stored. Raise `LimitExceeded` if an outcome is too large for the server.
        """
        results: dict[int, bool] = {}
        new = token_hex(8)
        nonces = {number: self._nonce_of(outcome, f"{new}{number}") for number, outcome in enumerate(outcomes)}
        try:
            gives_up = any(outcome.kind is OutcomeKind.FAILED for outcome in outcomes)
            self._letter_handlers = self._dead_letters.handlers() if gives_up else ()
            simple, others = _partition(outcomes, has_letters=bool(self._letter_handlers))
            results |= self._settle_part(worker, simple, nonces, self._commit_in_order)
            results |= self._settle_part(worker, others, nonces, self._transactions.commit_each)
        except Exception:
            # The server may have stored some outcomes. If the worker sends them again, their nonces show that.
            for number, outcome in enumerate(outcomes):
                self._uncertain[outcome.lease.id, outcome.lease.token] = nonces[number][0]
            raise
        return [results[number] for number in range(len(outcomes))]

    def _settle_part(
        self,
        worker: int,
        outcomes: Sequence[tuple[int, Outcome]],
        nonces: Mapping[int, tuple[str, bool]],
        commit: Callable[[Transaction], set[str]],
    ) -> dict[int, bool]:
        results: dict[int, bool] = {}
        batch_size = BATCH_SIZE
        while len(results) < len(outcomes):
            batch = outcomes[len(results) : len(results) + batch_size]
            try:
                results |= self._settle_together(worker, dict(batch), nonces, commit)
                self._transactions.jetstream.restart_deadline()
            except BatchTooLarge as error:
                if len(batch) == 1:
                    raise LimitExceeded(
                        what=f"the end of job {batch[0][1].lease.id!r}, in records,",
                        size=error.size,
                        limit=MAX_BATCH,
                        remedy="let its handler make fewer jobs at its end, or put the job under fewer limits",
                    ) from error
                batch_size = max(1, len(batch) // 4)
        return results

    def _settle_together(
        self,
        worker: int,
        outcomes: Mapping[int, Outcome],
        nonces: Mapping[int, tuple[str, bool]],
        commit: Callable[[Transaction], set[str]],
    ) -> dict[int, bool]:
        results: dict[int, bool] = {}
        left = dict(outcomes)
        uncertain = {number for number in left if nonces[number][1]}
        for _ in range(MAX_TRIES):
            transaction = self._transactions.begin()
            self._read_jobs(transaction, worker, left, uncertain)
            for number, outcome in left.items():
                nonce = nonces[number][0]
                is_stored = number in uncertain and _was_stored(transaction, outcome, nonce)
                results[number] = is_stored or self._settle(transaction, worker, outcome, nonce)
                if is_stored or (number in uncertain and transaction.job(outcome.lease.id) is None):
                    self._finish(transaction, outcome)
            missed = commit(transaction)
            uncertain = {
                number
                for number, outcome in left.items()
                if not missed.isdisjoint(self._records_of(transaction, outcome))
            }
            done = [(outcome, results[number]) for number, outcome in left.items() if number not in uncertain]
            self._release_leases(worker, done)
            left = {number: left[number] for number in uncertain}
            if not left:
                return results
        raise self._transactions.jetstream.unavailable(
            f"{format_count(len(left), 'outcome was', 'outcomes were')} not stored in {MAX_TRIES} tries: each "
            "time, other processes changed the records of the jobs or of their limits, or replies were lost",
            remedy="try again",
        )

    def _commit_in_order(self, transaction: Transaction) -> set[str]:
        """Store the ends of jobs, and then that the next jobs of their sequences or limits are admitted.

        Store them as an atomic batch if they need one.

        Return the subjects of the records whose changes were not all stored.
        """
        ordered = None
        if not transaction.independent_writes():
            ordered = self._admission.order_writes(transaction)
        if ordered is None:
            return self._transactions.commit_each(transaction)
        return self._transactions.commit_in_order(transaction, ordered)

    def _finish(self, transaction: Transaction, outcome: Outcome) -> None:
        """Pass the place of a job in its sequence or limit to the next job, if an earlier try has stored its end.

        If the job has been deleted meanwhile, use the record of its lease.
        """
        job = transaction.job(outcome.lease.id)
        active = self._leases.get(outcome.lease.id)
        if job is None and active is not None:
            job = active.job
        elif job is None or not job.is_over:
            return
        self._admission.finish(transaction, job)

    def _records_of(self, transaction: Transaction, outcome: Outcome) -> list[str]:
        """Return the subjects of the records of a job, its sequence and its limits."""
        names, active = transaction.names, self._leases.get(outcome.lease.id)
        job = transaction.job(outcome.lease.id) or (active.job if active is not None else None)
        limiters = () if job is None else limiters_of(job)
        return [names.job(outcome.lease.id), *(names.limiter(family_of(limiter), limiter) for limiter in limiters)]

    def _nonce_of(self, outcome: Outcome, new: str) -> tuple[str, bool]:
        """Return the nonce (random text) that identifies an outcome, and whether the outcome may have been stored.

        An outcome that is settled for the first time gets the nonce `new`. The nonce of an earlier try is
        returned once.
        """
        nonce = self._uncertain.pop((outcome.lease.id, outcome.lease.token), None)
        return (new, False) if nonce is None else (nonce, True)

    def _limited_jobs(self, transaction: Transaction, outcomes: Iterable[Outcome]) -> list[StoredJob]:
        jobs = (transaction.job(outcome.lease.id) for outcome in outcomes if outcome.lease.frees_others)
        return [job for job in jobs if job is not None]

    def _read_jobs(
        self, transaction: Transaction, worker: int, outcomes: Mapping[int, Outcome], uncertain: set[int]
    ) -> None:
        """Read the jobs of outcomes, and the records of their sequences and limits.

        The record of a job with an active lease is known and need not be read, unless its outcome may have been
        stored.
        """
        unknown = []
        for outcome in outcomes.values():
            active = self._leases.get(outcome.lease.id)
            if active is not None and active.is_of(outcome.lease, worker):
                transaction.assume_job(active.job, active.revision)
            else:
                unknown.append(outcome.lease.id)
        transaction.prefetch_jobs(unknown)
        jobs = self._limited_jobs(transaction, outcomes.values())
        # To complete hand-overs, the jobs of uncertain outcomes must be read after their limiters.
        again = [transaction.names.job(outcomes[number].lease.id) for number in uncertain]
        transaction.forget(again)
        self._admission.prefetch(transaction, jobs, again)
        transaction.prefetch(again)

    def _settle(self, transaction: Transaction, worker: int, outcome: Outcome, nonce: str) -> bool:
        job = transaction.job(outcome.lease.id)
        outcome = _with_lost_start(job, outcome, worker)
        if job is None or job.place != outcome.lease.ref or not transitions.can_settle(job, outcome, worker):
            return False
        if outcome.kind is not OutcomeKind.HANDED_BACK:
            self._event_log.write_started(transaction, job, outcome.began)
        after = change(
            transitions.settled(job, outcome, transaction.now, worker_name=self._workers.name_of),
            settled_by=nonce,
            is_start_unreported=False,
        )
        steps_aside = job.steps_aside and outcome.kind in RUNS_LATER
        if steps_aside:
            after = change(after, turn=after.due)
        if job.needs_admission and job.status is JobStatus.RUNNING:
            keeps = after.status is JobStatus.PENDING and not steps_aside
            after = self._admission.release(transaction, after, keeps_sequence=keeps)
        if after.status is JobStatus.PENDING:
            self._job_queue.enqueue_again(transaction, job, after)
        else:
            self._store_end(transaction, after, outcome, nonce)
        self._write_event(transaction, after, outcome)
        return True

    def _store_end(self, transaction: Transaction, job: StoredJob, outcome: Outcome, nonce: str) -> None:
        names = transaction.names
        if job.status is JobStatus.COMPLETED:
            if outcome.follow_up is not None:
                self._submitter.add(transaction, outcome.follow_up, nonce)
            if outcome.keep_result_until is not None:
                job = change(job, keep_result_until=outcome.keep_result_until)
                subject, reminder = names.scheduled("forget", job.id), names.reminder("forget", job.id)
                transaction.batch.schedule(subject, reminder, outcome.keep_result_until)
        if job.expires is not None:
            transaction.batch.purge(names.scheduled("expire", job.id))
        if job.status is JobStatus.FAILED:
            self._dead_letters.store(transaction, job, self._letter_handlers)
        else:
            transaction.put_job(job)

    def _write_event(self, transaction: Transaction, job: StoredJob, outcome: Outcome) -> None:
        event = event_after(outcome.kind, job.status)
        if event is EventKind.FAILED:
            self._event_log.write_failed(transaction, job)
        elif event is not None:
            self._event_log.write(transaction, event, job)

    def _release_leases(self, worker: int, settled: Sequence[tuple[Outcome, bool]]) -> None:
        """End leases: acknowledge the messages of settled jobs, return those of refused outcomes to the server."""
        replies: list[tuple[str, bytes]] = []
        for outcome, is_accepted in settled:
            active = self._leases.get(outcome.lease.id)
            if active is not None and active.is_of(outcome.lease, worker):
                self._leases.drop(outcome.lease.id)
                replies.append((active.reply, ACK if is_accepted else nak(0)))
        self._transactions.jetstream.send(replies)

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        """Store progress reports, and write the `started` events of their jobs.

        Return for each report whether its job still runs under the same lease.
        """
        return self._transactions.run_many(
            reports,
            lambda transaction, report: self._report(transaction, worker, report),
            prefetch=_prefetch,
            may_last=True,
        )

    def _report(self, transaction: Transaction, worker: int, report: ProgressReport) -> bool:
        job = transaction.job(report.lease.id)
        if job is None or not _is_running(job, report.lease, worker):
            return False
        if report.progress is None and not job.is_start_unreported:
            return True
        self._event_log.write_started(transaction, job, transaction.now)
        after = change(job, is_start_unreported=False)
        if report.progress is not None:
            after = change(after, progress=report.progress)
            self._event_log.write(transaction, EventKind.PROGRESS, after)
        transaction.put_job(after)
        transaction.batch.after_commit(lambda: self._update_lease(transaction, after))
        return True

    def _update_lease(self, transaction: Transaction, job: StoredJob) -> None:
        active = self._leases.get(job.id)
        if active is not None and (active.job.place, active.job.token) == (job.place, job.token):
            active.job, active.revision = job, transaction.revisions()[transaction.names.job(job.id)]


def _partition(
    outcomes: Sequence[Outcome], *, has_letters: bool
) -> tuple[list[tuple[int, Outcome]], list[tuple[int, Outcome]]]:
    """Number the outcomes, and divide them: outcomes that only end their job, and all other outcomes.

    If there are dead-letter handlers (`has_letters`), a job that is given up makes other jobs.
    """
    simple: list[tuple[int, Outcome]] = []
    others: list[tuple[int, Outcome]] = []
    for number, outcome in enumerate(outcomes):
        is_simple = outcome.kind in ENDS and outcome.follow_up is None and outcome.keep_result_until is None
        is_simple &= not (has_letters and outcome.kind is OutcomeKind.FAILED)
        (simple if is_simple else others).append((number, outcome))
    return simple, others


def _prefetch(transaction: Transaction, reports: Sequence[ProgressReport]) -> None:
    transaction.prefetch_jobs(report.lease.id for report in reports)


def _was_stored(transaction: Transaction, outcome: Outcome, nonce: str) -> bool:
    """Return whether an earlier try has stored an outcome, so that only the server's reply was lost."""
    job = transaction.job(outcome.lease.id)
    return job is not None and (job.place, job.settled_by) == (outcome.lease.ref, nonce)


def _is_running(job: StoredJob, lease: Lease, worker: int) -> bool:
    return job.place == lease.ref and transitions.is_leased(job, lease, worker, JobStatus.RUNNING)


def _with_lost_start(job: StoredJob | None, outcome: Outcome, worker: int) -> Outcome:
    """Return an outcome, changed if it hands back a job whose start was stored although the reply was lost.

    Then the lease of the outcome is marked as started. Other outcomes are returned as they are.
    """
    lease = outcome.lease
    is_held = outcome.kind is OutcomeKind.HANDED_BACK and not lease.is_started
    if job is None or not is_held or not _is_running(job, lease, worker):
        return outcome
    return Outcome(replace(lease, is_started=True), outcome.kind)
