"""The event log: a separate stream, which processes write while a client listens. Events expire after an hour.

A listener stores until when it listens, and each process that changes jobs reads that time. A process sends events
after the commit, without waiting for a reply: no job depends on them, so a crash may lose some.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import StoredJob, decode, encode
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.transaction import Transaction
from mainspring.jobs.events import Event, EventKind, EventPage
from mainspring.jobs.records import JobRecord

NOTE_LENGTH = 200


class ListenerRecord(Struct, frozen=True, array_like=True):
    """The stored record of the listeners: the time until which any client listens."""

    until: int


class NatsEventLog:
    """Writes events to the event log and reads them."""

    def __init__(self, jetstream: JetStream, names: SubjectNames) -> None:
        self._jetstream = jetstream
        self._names = names
        self._until = 0
        self.must_refresh = True

    def refresh(self) -> None:
        """Read from the server until when a client listens."""
        self.must_refresh = False
        data = self._jetstream.read_one(self._names.listeners).data
        if data:
            self._until = max(self._until, decode(data, ListenerRecord).until)

    def write(self, transaction: Transaction, kind: EventKind, job: JobRecord, note: str | None = None) -> None:
        """Write an event of a job, if a client listens, after the commit of the transaction."""
        self.write_event(transaction, Event(kind, transaction.now, job.id, job.type, job.queue, note))

    def write_started(self, transaction: Transaction, job: StoredJob, at: int | None = None) -> None:
        """Write the `started` event of a job, if it was not written yet. The caller writes the job record."""
        if job.is_start_unreported:
            event = Event(EventKind.STARTED, at or job.started or transaction.now, job.id, job.type, job.queue)
            self.write_event(transaction, event)

    def write_failed(self, transaction: Transaction, job: JobRecord) -> None:
        """Write the `failed` event of a job, with the first line of its error."""
        line = (job.error or "").partition("\n")[0][:NOTE_LENGTH]
        self.write(transaction, EventKind.FAILED, job, line or None)

    def write_event(self, transaction: Transaction, event: Event) -> None:
        """Write an event, if a client listens, after the commit of the transaction."""
        if self.has_listener(transaction):
            transaction.batch.send_event(self._names.job(event.id), self._names.events, encode(event))

    def has_listener(self, transaction: Transaction) -> bool:
        """Return whether a client listens at the time of the transaction."""
        if self.must_refresh:
            self.refresh()
        return transaction.now < self._until

    @property
    def is_followed(self) -> bool:
        """Whether a client listens now, by the record that this process has read last."""
        return self._until > 0 and self._jetstream.now() < self._until

    def listen(self, until: int) -> str:
        """Ask all processes to write events until an instant; return the position after which they are stored."""
        data = self._jetstream.read_one(self._names.listeners).data
        stored = decode(data, ListenerRecord).until if data else 0
        if until > stored:
            self._jetstream.store(self._names.listeners, encode(ListenerRecord(until)))
        self._until = max(until, stored)
        self._jetstream.send([(f"{self._names.notifications}listen", b"")])
        return str(self._jetstream.last_sequence(self._names.events_stream))

    def read(self, after: str, limit: int) -> EventPage:
        """Return at most `limit` events after a position."""
        self._jetstream.wait_until_processed(self._names.events)
        found = self._jetstream.scan(
            self._names.events, after=int(after), most=limit, stream=self._names.events_stream
        )
        events = [decode(entry.data, Event) for _, entry in found]
        return EventPage(events, str(found[-1][1].revision) if found else after)
