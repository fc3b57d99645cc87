"""Events of jobs: written to a stream of their own while a client listens, and deleted there after an hour.

A listener stores until when it listens, and each process that changes jobs reads that. Events are sent after the
change is stored, without an answer: losing one in a crash does no harm to jobs.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.stored import StoredJob, decode, encode
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.events import Event, EventKind, EventPage
from mainspring.jobs.records import JobRecord

NOTE_LENGTH = 200


class Listening(Struct, frozen=True, array_like=True):
    """Until when a client listens."""

    until: int


class NatsJournal:
    """Writes and reads events."""

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._names = names
        self._until = 0
        self.must_refresh = True

    def refresh(self) -> None:
        """Read until when a client listens."""
        self.must_refresh = False
        data = self._link.read_one(self._names.listeners).data
        if data:
            self._until = max(self._until, decode(data, Listening).until)

    def write(self, workspace: Workspace, kind: EventKind, job: JobRecord, note: str | None = None) -> None:
        """Write an event of a job, once the transaction is stored."""
        self.write_event(workspace, Event(kind, workspace.now, job.id, job.type, job.queue, note))

    def tell_start(self, workspace: Workspace, job: StoredJob, at: int | None = None) -> None:
        """Write the `started` event of a job, if it is still to be written; the caller writes the job."""
        if job.is_start_untold:
            event = Event(EventKind.STARTED, at or job.started or workspace.now, job.id, job.type, job.queue)
            self.write_event(workspace, event)

    def write_failed(self, workspace: Workspace, job: JobRecord) -> None:
        """Write the event of a job that failed for good, with the first line of its error."""
        line = (job.error or "").partition("\n")[0][:NOTE_LENGTH]
        self.write(workspace, EventKind.FAILED, job, line or None)

    def write_event(self, workspace: Workspace, event: Event) -> None:
        """Write an event, if a client listens."""
        if self.is_heard(workspace):
            workspace.draft.send(self._names.events, encode(event))

    def is_heard(self, workspace: Workspace) -> bool:
        """Return whether a client listens."""
        if self.must_refresh:
            self.refresh()
        return workspace.now < self._until

    @property
    def is_followed(self) -> bool:
        """Whether a client listens, as far as is known without a request to the server."""
        return self._until > 0 and self._link.now() < self._until

    def listen(self, until: int) -> str:
        """Have all processes write events until an instant; return the position from which on there are some."""
        data = self._link.read_one(self._names.listeners).data
        stored = decode(data, Listening).until if data else 0
        if until > stored:
            self._link.store(self._names.listeners, encode(Listening(until)))
        self._until = max(until, stored)
        self._link.send([(f"{self._names.notes}listen", b"")])
        return str(self._link.last_sequence(self._names.events_stream))

    def read(self, after: str, limit: int) -> EventPage:
        """Return the events after a position."""
        self._link.wait_for_order(self._names.events)
        found = self._link.scan(self._names.events, after=int(after), most=limit, stream=self._names.events_stream)
        events = [decode(entry.data, Event) for _, entry in found]
        return EventPage(events, str(found[-1][1].revision) if found else after)
