"""The event log: a separate stream, which processes write while a client listens. Events expire after an hour.

A listener stores until when it listens, and each process that changes jobs reads that time. A process sends events
after the commit, without waiting for a reply: no job depends on them, so a crash may lose some.

A position has the time since which a client has been listening without a break, and a sequence number of the
stream. If the listeners have begun anew since then, events are missing.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import StoredJob, decode, encode
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.transaction import Transaction
from mainspring.jobs.events import Event, EventKind, EventPage
from mainspring.jobs.records import JobRecord
from mainspring.jobs.timestamps import MICROSECONDS

NOTE_LENGTH = 200
MARGIN = 5 * MICROSECONDS
"""A listener that comes less than this before the end of the listening time counts as one after a break.

Other processes learn of the listener by a notification, and some may stop writing events before the notification
arrives.
"""
_POSITION = re.compile(r"[0-9]{1,18}-[0-9]{1,18}", re.ASCII)


_decode_event = msgspec.msgpack.Decoder(Event).decode


class ListenerRecord(Struct, frozen=True, array_like=True):
    """The stored record of the listeners: the instant until which any client listens."""

    until: int
    began: int = 0
    """The instant since which clients have been listening without a break; 0 if an older version has listened."""


class NatsEventLog:
    """Writes events of jobs to the event log while a client listens, and reads them."""

    def __init__(self, jetstream: JetStream, names: SubjectNames) -> None:
        self._jetstream = jetstream
        self._names = names
        self._until = 0
        self.must_refresh = True

    def refresh(self) -> None:
        """Read from the server until when a client listens."""
        self.must_refresh = False
        self._until = max(self._until, self._read_listeners().until)

    def write(self, transaction: Transaction, kind: EventKind, job: JobRecord, note: str | None = None) -> None:
        """Write an event of a job after the commit of the transaction, if a client listens."""
        self.write_event(transaction, Event(kind, transaction.now, job.id, job.type, job.queue, note))

    def write_started(self, transaction: Transaction, job: StoredJob, at: int | None = None) -> None:
        """Write the `started` event of a job after the commit, if it was not written yet and a client listens.

        The caller stores the job record, with `is_start_unreported=False`.
        """
        if job.is_start_unreported:
            event = Event(EventKind.STARTED, at or job.started or transaction.now, job.id, job.type, job.queue)
            self.write_event(transaction, event)

    def write_failed(self, transaction: Transaction, job: JobRecord) -> None:
        """Write the `failed` event of a job after the commit, with the first line of its error, if a client
        listens.
        """
        line = (job.error or "").partition("\n")[0][:NOTE_LENGTH]
        self.write(transaction, EventKind.FAILED, job, line or None)

    def write_event(self, transaction: Transaction, event: Event) -> None:
        """Write an event after the commit of the transaction, if a client listens."""
        if self.has_listener(transaction):
            transaction.batch.send_event(self._names.job(event.id), self._names.events, encode(event))

    def has_listener(self, transaction: Transaction) -> bool:
        """Return whether a client listens at the time of the transaction, after reading that from the server if
        needed.
        """
        return self.has_listener_at(transaction.now)

    def has_listener_at(self, now: int) -> bool:
        """Return whether a client listens at this time, after reading that from the server if needed."""
        if self.must_refresh:
            self.refresh()
        return now < self._until

    @property
    def is_followed(self) -> bool:
        """Whether a client listens now, by the record that this process has read last."""
        return self._until > 0 and self._jetstream.now() < self._until

    def listen(self, until: int) -> str:
        """Ask all processes to write events until the instant `until`; return the position from which to read
        them. A later end that another client has asked for stays.
        """
        stored, now = self._read_listeners(), self._jetstream.now()
        began = stored.began if stored.until - now > MARGIN and stored.began else now
        listeners = ListenerRecord(max(until, stored.until), began)
        if listeners != stored:
            self._jetstream.store(self._names.listeners, encode(listeners))
        self._until = listeners.until
        self._jetstream.send([(f"{self._names.notifications}listen", b"")])
        return f"{began}-{self._jetstream.last_sequence(self._names.events_stream)}"

    def holds(self, position: str) -> bool:
        """Return whether clients have listened since this position without a break until now, and all events after
        it are stored. Return False for a text that is not a position.
        """
        if not _POSITION.fullmatch(position):
            return False
        began, sequence = map(int, position.split("-"))
        listeners = self._read_listeners()
        if listeners.began != began or listeners.until <= self._jetstream.now():
            return False
        first, last = self._jetstream.sequence_range(self._names.events_stream)
        return first - 1 <= sequence <= last

    def _read_listeners(self) -> ListenerRecord:
        data = self._jetstream.read_one(self._names.listeners).data
        return decode(data, ListenerRecord) if data else ListenerRecord(0)

    def read(self, after: str, limit: int) -> EventPage:
        """Return at most `limit` events after a position, once the server has processed what this process sent.

        `is_complete` is False if an event between `after` and the last event of the page is missing.
        """
        began, _, number = after.partition("-")
        start = int(number)
        self._jetstream.wait_until_processed(self._names.events)
        found = self._jetstream.scan(self._names.events, after=start, most=limit, stream=self._names.events_stream)
        events = [_decode_event(entry.data) for _, entry in found]
        positions = [f"{began}-{entry.revision}" for _, entry in found]
        is_complete = not found or found[-1][1].revision - start == len(found)
        return EventPage(events, positions[-1] if found else after, positions, is_complete=is_complete)
