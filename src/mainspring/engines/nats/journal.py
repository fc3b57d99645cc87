"""What happens to jobs, written down while somebody listens: a stream of its own that forgets after an hour.

Listeners say until when they listen; everybody who changes jobs reads that. Events are sent after the change is
stored, without an answer: losing one in a crash does no harm to jobs.
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
    """Until when somebody listens."""

    until: int


class Journal:
    """Writes and reads events."""

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._names = names
        self._until = 0
        self.must_refresh = True

    def refresh(self) -> None:
        """Find out whether somebody listens."""
        self.must_refresh = False
        data = self._link.read_one(self._names.listeners).data
        if data:
            self._until = max(self._until, decode(data, Listening).until)

    def write(self, workspace: Workspace, kind: EventKind, job: JobRecord, note: str | None = None) -> None:
        """Tell of a job, once the workspace is stored."""
        self.write_event(workspace, Event(kind, workspace.now, job.id, job.type, job.queue, note))

    def tell_start(self, workspace: Workspace, job: StoredJob, at: int | None = None) -> None:
        """Tell that the handler of a job has begun, unless that was told; the caller writes the job."""
        if job.is_start_untold:
            event = Event(EventKind.STARTED, at or job.started or workspace.now, job.id, job.type, job.queue)
            self.write_event(workspace, event)

    def write_failed(self, workspace: Workspace, job: JobRecord) -> None:
        """Tell of a job that was given up, with the first line of why."""
        line = (job.error or "").partition("\n")[0][:NOTE_LENGTH]
        self.write(workspace, EventKind.FAILED, job, line or None)

    def write_event(self, workspace: Workspace, event: Event) -> None:
        """Tell of anything."""
        if self.is_heard(workspace):
            workspace.draft.send(self._names.events, encode(event))

    def is_heard(self, workspace: Workspace) -> bool:
        """Answer whether somebody listens."""
        if self.must_refresh:
            self.refresh()
        return workspace.now < self._until

    @property
    def is_followed(self) -> bool:
        """Whether there is a listener, as far as is known without asking the server."""
        return self._until > 0 and self._link.now() < self._until

    def listen(self, until: int) -> str:
        """Let events be written until an instant; return the place from which on there are some."""
        data = self._link.read_one(self._names.listeners).data
        stored = decode(data, Listening).until if data else 0
        if until > stored:
            self._link.store(self._names.listeners, encode(Listening(until)))
        self._until = max(until, stored)
        self._link.send([(f"{self._names.notes}listen", b"")])
        return str(self._link.last_sequence(self._names.events_stream))

    def read(self, after: str, limit: int) -> EventPage:
        """Return what happened after a place."""
        self._link.wait_for_order(self._names.events)
        found = self._link.scan(self._names.events, after=int(after), most=limit, stream=self._names.events_stream)
        events = [decode(entry.data, Event) for _, entry in found]
        return EventPage(events, str(found[-1][1].revision) if found else after)
