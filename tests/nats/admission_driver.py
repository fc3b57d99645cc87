"""Drives admission control on a real server: tests submit, start and end jobs step by step, by their own clock."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count

from mainspring.clock import Clock
from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import StoredJob, change, decode, encode, make_job
from mainspring.engines.nats.limiters import Limiter, admission_of, is_ready
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import SubjectNames, digest, from_token
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.engines.nats.write_batch import StoredMessage
from mainspring.jobs import transitions
from mainspring.jobs.commands import DropLimit, PauseQueue, PutLimit
from mainspring.jobs.limits import family_of
from mainspring.jobs.records import NewJob
from mainspring.jobs.status import JobStatus

MICROSECONDS = 1_000_000
WORKER = 7


class AdmissionDriver:
    """The admission control of one process, without an engine."""

    def __init__(self, url: str, prefix: str, clock: Clock) -> None:
        self.clock = clock
        settings = NatsSettings(prefix=prefix)
        self.names = SubjectNames(prefix)
        self.jetstream = JetStream([url], settings, self.names.stream, clock)
        self.jetstream.open()
        Streams(self.jetstream, self.names, settings).prepare()
        self.transactions = TransactionManager(self.jetstream, self.names)
        self.settings_cache = SettingsCache(self.transactions)
        self.admission = AdmissionControl(self.settings_cache)
        self._numbers = count()

    def close(self) -> None:
        self.jetstream.close()

    # -- settings

    def limit(self, family: str, most: int, per: float | None = None) -> bool:
        micros = None if per is None else round(per * MICROSECONDS)
        is_changed = self.settings_cache.change(PutLimit(family, most, micros))
        self.admission.apply_limit_changes(self.transactions, [family])
        return is_changed

    def drop_limit(self, family: str) -> bool:
        is_changed = self.settings_cache.change(DropLimit(family))
        self.admission.apply_limit_changes(self.transactions, [family])
        return is_changed

    def pause(self, queue: str, *, is_paused: bool = True) -> bool:
        is_changed = self.settings_cache.change(PauseQueue(queue, is_paused))
        self.admission.apply_queue_change(self.transactions, queue)
        return is_changed

    # -- jobs

    def submit(
        self,
        *job_ids: str,
        sequence: str | None = None,
        limits: tuple[str, ...] = (),
        after: float = 0,
        queue: str = "default",
    ) -> None:
        """Store jobs in one step, due so many seconds from now; those that are due request admission."""
        due = self.transactions.now() + round(after * MICROSECONDS)
        new = [
            NewJob(job_id, "ping", queue, 1, due, b"", "json", sequence=sequence, limits=limits)
            for job_id in job_ids
        ]
        self.transactions.run(lambda transaction: self._submit(transaction, new))

    def _submit(self, transaction: Transaction, jobs: Iterable[NewJob]) -> None:
        for new in jobs:
            place = transaction.now * 1_000 + next(self._numbers)
            job = make_job(new, now=transaction.now, place=place, nonce=new.id)
            transaction.put_job(job)
            if job.due <= transaction.now:
                self.admission.request(transaction, job)

    def enter(self, job_id: str) -> None:
        """Handle the reminder of a job that has become due."""
        self.transactions.run(
            lambda transaction: self.admission.request(transaction, need(transaction.job(job_id)))
        )

    def start(self, job_id: str) -> bool:
        """Start a job, if it is ready, and acknowledge its message; return whether it started."""
        job = self.job(job_id)
        ready = self.names.ready_of(job.queue, job.type, job.priority, job.id)
        revision = self.jetstream.read_one(ready).revision
        is_started = self.transactions.run(lambda transaction: self._start(transaction, job_id))
        if is_started:
            self.acknowledge(ready, revision)
        return is_started

    def acknowledge(self, subject: str, revision: int) -> None:
        """Delete a message, and none that was stored later."""
        self.jetstream.api(f"STREAM.PURGE.{self.names.stream}", {"filter": subject, "seq": revision + 1})

    def _start(self, transaction: Transaction, job_id: str) -> bool:
        job = need(transaction.job(job_id))
        if job.status is not JobStatus.PENDING or not is_ready(job):
            return False
        started = transitions.started(job, WORKER, transaction.now, is_held=False)
        transaction.put_job(self.admission.record_start(transaction, started))
        return True

    def end(self, job_id: str) -> None:
        """Complete a running job, as the engine does: by a hand-over if it can, or else by a batch."""
        while not self._try_to_end(job_id):
            pass

    def _try_to_end(self, job_id: str) -> bool:
        transaction = self.transactions.begin()
        job = need(transaction.job(job_id))
        if job.is_over:
            self.admission.finish(transaction, job)
        else:
            job = change(job, status=JobStatus.COMPLETED, owner=None)
            transaction.put_job(self.admission.release(transaction, job, keeps_sequence=False))
        ordered = self.admission.order_writes(transaction)
        if ordered is None:
            return self.transactions.commit(transaction)
        return not self.transactions.commit_in_order(transaction, ordered)

    def retry(self, job_id: str, after: float = 0, *, keeps_sequence: bool = True) -> None:
        """Queue a running job again."""
        self.transactions.run(
            lambda transaction: self._retry(transaction, job_id, after, keeps_sequence=keeps_sequence)
        )

    def _retry(self, transaction: Transaction, job_id: str, after: float, *, keeps_sequence: bool) -> None:
        due = transaction.now + round(after * MICROSECONDS)
        job = change(need(transaction.job(job_id)), status=JobStatus.PENDING, owner=None, due=due)
        if not keeps_sequence:
            job = change(job, turn=due)
        job = self.admission.release(transaction, job, keeps_sequence=keeps_sequence)
        transaction.put_job(job)
        if job.due <= transaction.now:
            self.admission.request(transaction, job)

    def cancel(self, job_id: str) -> None:
        """Cancel a waiting job."""
        self.transactions.run(lambda transaction: self._cancel(transaction, job_id))

    def _cancel(self, transaction: Transaction, job_id: str) -> None:
        job = need(transaction.job(job_id))
        assert job.status is JobStatus.PENDING
        transaction.purge(self.names.ready_of(job.queue, job.type, job.priority, job.id))
        job = self.admission.withdraw(transaction, job)
        transaction.put_job(change(job, status=JobStatus.CANCELED))

    def run(self, job_id: str) -> None:
        """Start and complete a job."""
        assert self.start(job_id), f"{job_id} may not start: {self.job(job_id).admission}"
        self.end(job_id)

    # -- reminders

    def wake(self, limiter: str) -> None:
        """Handle the reminder of a limiter."""
        self.transactions.run(lambda transaction: self.admission.wake(transaction, family_of(limiter), limiter))

    def wake_all(self) -> None:
        """Handle all wake-ups that are due."""
        for subject, entry in self.scan(f"{self.names.reminders}poke.>"):
            family, limiter, instant = decode(entry.data, tuple[str, str, int])
            if instant <= self.transactions.now():
                self.transactions.run(partial(self.admission.wake, family=family, name=limiter))
                self.acknowledge(subject, entry.revision)

    def has_wakeup(self, limiter: str) -> bool:
        """Whether a wake-up of a limiter is scheduled."""
        key = digest(limiter)
        found = self.jetstream.read([self.names.scheduled("poke", key), self.names.reminder("poke", key)])
        return any(entry.revision for entry in found.values())

    # -- reading

    def job(self, job_id: str) -> StoredJob:
        return need(self.transactions.begin().job(job_id))

    def state(self, job_id: str) -> str:
        return admission_of(self.job(job_id)).state

    def ready(self) -> list[str]:
        """Return the jobs that may start, in the order of their lane."""
        transaction = self.transactions.begin()
        found = [from_token(subject.rpartition(".")[2]) for subject, _ in self.scan(f"{self.names.ready}>")]
        transaction.prefetch_jobs(found)
        jobs = [need(transaction.job(job_id)) for job_id in found]
        return [job.id for job in jobs if job.status is JobStatus.PENDING and is_ready(job)]

    def limiter(self, name: str) -> Limiter | None:
        data = self.jetstream.read_one(self.names.limiter(family_of(name), name)).data
        return decode(data, Limiter) if data else None

    def empty_fronts(self, name: str) -> None:
        """Remove the fronts of a limiter's lines, as version 0.1 does when it writes the record."""
        limiter = self.limiter(name)
        assert limiter is not None
        for group in limiter.groups:
            group.front.clear()
        subject = self.names.limiter(family_of(name), name)
        self.transactions.run(lambda transaction: transaction.put(subject, encode(limiter)))

    def scan(self, subject: str) -> list[tuple[str, StoredMessage]]:
        return self.jetstream.scan(subject, most=5_000)


def need(job: StoredJob | None) -> StoredJob:
    assert job is not None
    return job
