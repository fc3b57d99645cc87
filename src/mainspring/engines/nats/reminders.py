"""Reminders: messages that the server delivers at a given time, for any worker to handle.

    enter    a job in a sequence or under limits is due, and requests admission
    expire   the time in which a job had to start is over
    poke     a limiter may admit jobs again, for example because a rate has tokens
    forget   the time for which a result was kept is over

A reminder contains no decision: the worker that gets it reads the records to find whether there is anything to do.
A reminder that is delivered early is kept until it is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.dead_letters import DeadLetterWriter
from mainspring.engines.nats.deliveries import ACK, Delivery, FetchRequest, nak
from mainspring.engines.nats.delivery_buffer import DeliveryBuffer
from mainspring.engines.nats.event_log import NatsEventLog
from mainspring.engines.nats.job_records import StoredJob, change, decode
from mainspring.engines.nats.limiters import is_ready
from mainspring.engines.nats.queueing import JobQueue
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import from_token
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

BATCH_SIZE = 50
PAUSE_SECONDS = 5.0

logger = logging.getLogger("mainspring.nats")


class ReminderHandler:
    """Handles the reminders that the server has delivered to this process.

    A reminder is a message that the server delivers to any worker at a given time, such as when a job expires.
    """

    def __init__(
        self,
        transactions: TransactionManager,
        streams: Streams,
        delivery_buffer: DeliveryBuffer,
        *,
        admission: AdmissionControl,
        job_queue: JobQueue,
        event_log: NatsEventLog,
        dead_letters: DeadLetterWriter,
        wake: Callable[[], None],
    ) -> None:
        self._transactions = transactions
        self._streams = streams
        self._delivery_buffer = delivery_buffer
        self._admission = admission
        self._job_queue = job_queue
        self._event_log = event_log
        self._dead_letters = dead_letters
        self._wake = wake
        # By subject: reminders that are not due yet, that did not fit into one batch, or that must be repeated.
        self._kept: dict[str, Delivery] = {}
        self._next_wakeup: int | None = None

    def consumer(self) -> str:
        """Return the name of the consumer that delivers reminders to workers; create the consumer if needed.

        A reminder is a message that the server delivers to any worker at a given time, such as when a job expires.
        """
        return self._streams.consumer_of(f"{self._transactions.names.reminders}>")

    def handle_due(self, *, fetches: bool = False) -> None:
        """Handle at most `BATCH_SIZE` due reminders that were delivered, and acknowledge them.

        A reminder asks any worker to do something at a given time, such as to expire a job.

        First fetch more if any were delivered since the last call, or if `fetches` is true. Keep the other
        reminders, and schedule a wake-up for the earliest of them. Raise `EngineUnavailable` if the server cannot
        be reached.
        """
        delivered = self._delivery_buffer.take_reminders()
        if delivered or fetches:
            delivered += self._delivery_buffer.fetch([FetchRequest(self.consumer(), BATCH_SIZE)])
        self._keep(delivered)
        now = self._transactions.now()
        due = [delivery for delivery in self._kept.values() if _due_of(delivery) <= now][:BATCH_SIZE]
        if due:
            for delivery in due:
                del self._kept[delivery.subject]
            self._handle_all(due)
        self._schedule_wakeup(now)

    def _handle_all(self, deliveries: list[Delivery]) -> None:
        """Handle and acknowledge reminders (such as that a job expires), up to `BATCH_SIZE` in one transaction.

        A reminder that fails is logged and delivered again later, so it does not block the claiming of jobs. If
        the server is unavailable, all reminders that were not handled are kept for the next call, and the error is
        raised.
        """
        reply = ACK
        try:
            self._transactions.run_many(deliveries, self._handle, prefetch=self._prefetch, batch_size=BATCH_SIZE)
        except EngineUnavailable:
            self._keep(deliveries)
            raise
        except Exception:
            if len(deliveries) > 1:
                self._keep(deliveries)
                for delivery in deliveries:
                    del self._kept[delivery.subject]
                    self._handle_all([delivery])
                return
            logger.exception(
                "the reminder %s, a message such as that a job expires, could not be handled; the server delivers "
                "it again in %g s",
                deliveries[0].subject,
                PAUSE_SECONDS,
            )
            reply = nak(PAUSE_SECONDS)
        self._transactions.jetstream.send([(delivery.reply, reply) for delivery in deliveries])

    def _keep(self, deliveries: Sequence[Delivery]) -> None:
        self._kept |= {delivery.subject: delivery for delivery in deliveries}

    def _prefetch(self, transaction: Transaction, deliveries: Sequence[Delivery]) -> None:
        keys = [self._split(delivery) for delivery in deliveries]
        ids = [from_token(key) for kind, key in keys if kind != "poke"]
        transaction.prefetch_jobs(ids)
        jobs = (transaction.job(job_id) for job_id in ids)
        self._admission.prefetch(transaction, [job for job in jobs if job is not None])

    def _split(self, delivery: Delivery) -> tuple[str, str]:
        kind, _, key = delivery.subject.removeprefix(self._transactions.names.reminders).partition(".")
        return kind, key

    def _schedule_wakeup(self, now: int) -> None:
        """Schedule a wake-up for the earliest of the reminders (messages for a given time) that are kept.

        Do nothing if none is kept.
        """
        if not self._kept:
            return
        due = min(_due_of(delivery) for delivery in self._kept.values())
        if self._next_wakeup is None or not now < self._next_wakeup <= due:
            self._next_wakeup = due
            self._transactions.jetstream.call_after(max(0, due - now) / MICROSECONDS, self._wake)

    def kept_replies(self) -> list[str]:
        """Return the reply subjects of reminders (messages for a given time) that are not due or not handled."""
        return [delivery.reply for delivery in list(self._kept.values())]

    def drop_kept(self) -> list[str]:
        """Drop the delivered reminders (messages for a given time) that are not due or not handled yet.

        Return their reply subjects.
        """
        replies = self.kept_replies()
        self._kept.clear()
        return replies

    def _handle(self, transaction: Transaction, delivery: Delivery) -> None:
        kind, key = self._split(delivery)
        if kind == "poke":
            family, limiter, _ = decode(delivery.data, tuple[str, str, int])
            self._admission.wake(transaction, family, limiter)
            return
        job = transaction.job(from_token(key))
        if job is None:
            return
        if kind == "enter":
            self._enter(transaction, job)
        elif kind == "expire" and job.expires is not None and job.starts == 0:
            self._expire(transaction, job, job.expires)
        elif kind == "forget" and job.keep_result_until is not None and job.keep_result_until <= transaction.now:
            transaction.put_job(change(job, result=None, keep_result_until=None))

    def _enter(self, transaction: Transaction, job: StoredJob) -> None:
        if job.status is JobStatus.PENDING and job.owner is None and not is_ready(job):
            # The job is due; or it was rescheduled while the server published this reminder, and the server may
            # have deleted the new scheduled message.
            self._job_queue.enqueue(transaction, job)

    def _expire(self, transaction: Transaction, job: StoredJob, expires: int) -> None:
        if expires <= transaction.now:
            self.expire(transaction, job)
        elif job.status is JobStatus.PENDING:  # the job got a later expiry while the server published the reminder
            names = transaction.names
            transaction.batch.schedule(
                names.scheduled("expire", job.id), names.reminder("expire", job.id), expires
            )

    def expire(self, transaction: Transaction, job: StoredJob) -> None:
        """Make a job that has not started a dead letter, because its expiry has passed.

        A job with an owner is left alone.
        """
        if job.status is JobStatus.PENDING and job.owner is None:
            after = transitions.expired(self._job_queue.dequeue(transaction, job), transaction.now)
            self._dead_letters.store(transaction, after, self._dead_letters.handlers())
            self._event_log.write_failed(transaction, after)
            transaction.note(EngineNote("expired", job.queue, job.type))


def _due_of(delivery: Delivery) -> int:
    """Return when a reminder (a message for any worker) is due: the last element of its data; else at once."""
    return int(decode(delivery.data, list[Any])[-1]) if delivery.data else 0
