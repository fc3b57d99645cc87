"""The agenda: a copy of all schedules, so that nobody asks the server at every turn which of them comes next.

It is read again when somebody has told of a change, and after two seconds at the latest: only what was stored
since the last time; schedules that were removed leave a mark. Newer revisions replace older ones, in whatever
order they become known. What is done on the strength of an outdated copy is refused by the server.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from threading import RLock

from mainspring.engines.nats.drafts import Entry
from mainspring.engines.nats.naming import from_token
from mainspring.engines.nats.stored import decode, encode
from mainspring.engines.nats.stored_schedules import GONE, REMOVED_KEPT_SECONDS, StoredSchedule
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord

FRESH = 2 * MICROSECONDS
REMOVED = {"Nats-TTL": f"{REMOVED_KEPT_SECONDS}s"}


class Agenda:
    """All schedules, and those that are not paused by their next occurrence. From any thread."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._lock = RLock()  # guards what follows
        self._known: dict[str, tuple[int, ScheduleRecord | None]] = {}  # with the revision of the stream
        self._order: list[tuple[int, str]] = []
        self._position = 0
        self._refreshed = 0
        self.must_refresh = True
        """Whether somebody has told of a change."""

    def forget(self) -> None:
        """Begin anew: the stream may be another one."""
        with self._lock:
            self._known.clear()
            self._order.clear()
            self._position = 0
            self.must_refresh = True

    # -- reading

    def next_firing(self) -> int | None:
        """Return the first occurrence of all."""
        with self._lock:
            self._refresh_if_needed()
            return self._order[0][0] if self._order else None

    def find_due(self, until: int, limit: int | None, names: Iterable[str] | None = None) -> list[ScheduleRecord]:
        """List what is due by then, the earliest first."""
        wanted = None if names is None else set(names)
        found: list[ScheduleRecord] = []
        with self._lock:
            self._refresh_if_needed()
            for due, name in self._order:
                if due > until or len(found) == limit:
                    break
                record = self._known[name][1]
                if record is not None and (wanted is None or name in wanted):
                    found.append(record)
        return found

    def read_all(self) -> list[ScheduleRecord]:
        """List all schedules as the server has them now, by name."""
        with self._lock:
            found = self._scan(after=0)
            latest = max((entry.revision for entry in found.values()), default=0)
            for name, (revision, _) in list(self._known.items()):
                if name not in found and revision <= latest:
                    self._drop(name)
            return sorted(
                (record for _, record in self._known.values() if record is not None),
                key=lambda record: record.name,
            )

    def _refresh_if_needed(self) -> None:
        now = self._workshop.now()
        if self.must_refresh or not 0 <= now - self._refreshed < FRESH:
            self.must_refresh = False  # before the look: a change that is told of meanwhile leads to another
            try:
                self._scan(self._position)
            except BaseException:
                self.must_refresh = True
                raise
            self._refreshed = now

    def _scan(self, after: int) -> dict[str, Entry]:
        """Read what was stored after a revision."""
        prefix = self._workshop.names.schedules
        found: dict[str, Entry] = {}
        while page := self._workshop.link.scan(f"{prefix}>", after=after):
            for subject, entry in page:
                name = from_token(subject.removeprefix(prefix))
                found[name] = entry
                self._learn(name, entry.revision, decode(entry.data, StoredSchedule) if entry.data else GONE)
            after = page[-1][1].revision
        self._position = max(self._position, after)
        return found

    def _learn(self, name: str, revision: int, stored: StoredSchedule) -> None:
        if name in self._known and self._known[name][0] > revision:
            return
        self._drop(name)
        record = stored.record
        self._known[name] = (revision, record)
        if record is not None and record.next_due is not None and not record.is_paused:
            insort(self._order, (record.next_due, name))

    def _drop(self, name: str) -> None:
        _, record = self._known.pop(name, (0, None))
        if record is not None and record.next_due is not None and not record.is_paused:
            del self._order[bisect_left(self._order, (record.next_due, name))]

    # -- writing

    def write(self, workspace: Workspace, name: str, stored: StoredSchedule) -> None:
        """Store a schedule; everybody is told."""
        subject = workspace.names.schedule(name)
        is_mark = stored.record is None and not stored.jobs
        workspace.put(subject, encode(stored), REMOVED if is_mark else None)
        self.tell(workspace)

        def note() -> None:
            with self._lock:
                self._learn(name, workspace.revisions()[subject], stored)

        workspace.draft.then(note)

    def tell(self, workspace: Workspace) -> None:
        """Tell all processes that schedules have changed, once for a workspace."""
        news = (f"{workspace.names.notes}schedule", b"")
        if news not in workspace.draft.sends:
            workspace.draft.send(*news)

    def correct(self, workspace: Workspace, name: str, stored: StoredSchedule) -> None:
        """What we knew was not true any more: take over what the workspace has read."""
        revision = workspace.entry(workspace.names.schedule(name)).revision

        def note() -> None:
            with self._lock:
                if revision:
                    self._learn(name, revision, stored)
                else:  # not even a mark is left, so what else we have missed can only be found by reading all
                    self._drop(name)
                    self._position = 0
                    self.must_refresh = True

        workspace.draft.then(note)
