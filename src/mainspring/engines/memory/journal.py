"""The journal: what happened to jobs, written down only while somebody listens. The latest events are kept."""

from __future__ import annotations

from collections import deque
from itertools import islice

from mainspring.engines.memory.reading import to_place
from mainspring.jobs.engine import Event, EventKind, EventPage, JobRecord

KEPT = 10_000


class Journal:
    """Events, each with a number that grows."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._last = 0
        self._until = 0
        self._untold: set[str] = set()  # jobs whose start was committed, and whose `started` event is to come

    def listen(self, until: int) -> str:
        """Let events be written down until then; return the place after the last one."""
        self._until = max(self._until, until)
        return str(self._last)

    def write(self, kind: EventKind, job: JobRecord, now: int, note: str | None = None) -> None:
        """Note what happened to a job."""
        if self._until > now:
            self._add(Event(kind, now, job.id, job.type, job.queue, note))

    def is_followed(self, now: int) -> bool:
        """Answer whether events are written."""
        return self._until > now

    def note_start(self, job: JobRecord, now: int) -> None:
        """Expect that the handler of a job begins: `tell_start` writes its event then."""
        if self.is_followed(now):
            self._untold.add(job.id)
        else:
            self._untold.discard(job.id)

    def tell_start(self, job: JobRecord, now: int, at: int | None = None) -> None:
        """Write the `started` event of an attempt, unless it was written."""
        if job.id in self._untold:
            self._untold.remove(job.id)
            if self.is_followed(now):
                self._add(Event(EventKind.STARTED, at or now, job.id, job.type, job.queue))

    def take_start_back(self, job: JobRecord) -> None:
        """Write no `started` event: the job was handed back."""
        self._untold.discard(job.id)

    def write_failed(self, job: JobRecord, now: int) -> None:
        """Note that a job was given up, and why in a line."""
        lines = (job.error or "").splitlines()
        self.write(EventKind.FAILED, job, now, lines[0] if lines else None)

    def write_skipped(self, schedule: str, type_: str, queue: str, note: str, now: int) -> None:
        """Note that an occurrence of a schedule made no job."""
        if self._until > now:
            self._add(Event(EventKind.SKIPPED, now, schedule, type_, queue, note))

    def read(self, after: str, limit: int) -> EventPage:
        """Return what happened after a place."""
        place = to_place(after)
        first = self._last - len(self._events)  # the number before the first one that is kept
        start = max(0, place - first)
        events = list(islice(self._events, start, start + limit))
        return EventPage(events, str(first + start + len(events)) if events else after)

    def _add(self, event: Event) -> None:
        self._last += 1
        self._events.append(event)
