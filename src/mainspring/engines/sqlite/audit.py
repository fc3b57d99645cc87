"""Stores, lists and deletes entries of the audit trail, in the table `audit`.

An entry is a row with its id and JSON. Ids sort by time, so the index of the ids serves lists and pruning. The
table is small, at most some ten thousand rows, so that other filters decode the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import apsw
import msgspec

from mainspring.engines.sqlite.codec import to_json
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.audit import AuditEntry, AuditQuery, id_at
from mainspring.jobs.audit_drafts import AuditDraft, Place
from mainspring.jobs.commands import Arrangement, Changed, Command, PauseSchedule, RemoveSchedule
from mainspring.jobs.engine import Retention
from mainspring.jobs.recurrence.schedule_records import Fired, Firing

MAX_DELETED = 500  # how many entries one prune deletes at most

PUT = "INSERT INTO audit VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET entry = ?2"
LATEST = "SELECT entry FROM audit WHERE id >= ?1 ORDER BY id DESC"
DELETE_BEFORE = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id < ?1 ORDER BY id LIMIT ?2)"
OLDEST_KEPT = "SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET ?1"
# batch of ids: [id, type, queue] of each job
PLACES_OF_JOBS = """
SELECT json_group_array(json_array(j.id, l.type, l.queue)) FROM json_each(?1) AS v
CROSS JOIN jobs AS j ON j.id = v.value CROSS JOIN lanes AS l ON l.id = j.lane
"""
PLACE_OF_SCHEDULE = "SELECT type, queue FROM schedules WHERE name = ?1"

_places = msgspec.json.Decoder(list[tuple[str, str, str]]).decode
_entry = msgspec.json.Decoder(AuditEntry).decode


class AuditWriter:
    """Stores audit entries about the changes of a unit (one transaction). For use inside that unit."""

    def __init__(self, store: Store) -> None:
        self._database = store.database

    def put(self, entry: AuditEntry | None) -> None:
        """Store an entry, or replace the one with the same id. None stores nothing."""
        if entry is not None:
            self._database.write(PUT, (entry.id, to_json(entry)))

    def change(
        self,
        execute: Callable[[Sequence[Command]], list[Changed]],
        commands: Sequence[Command],
        draft: AuditDraft,
    ) -> list[Changed]:
        """Execute commands, and return the answers. If a job was changed, also store an entry as `draft` says."""
        ids = to_json([command.id for command in commands])
        found = _places(self._database.write(PLACES_OF_JOBS, (ids,)))
        places = {job_id: (type_, queue) for job_id, type_, queue in found}
        answers = execute(commands)
        self.put(draft.for_commands(commands, answers, places))
        return answers

    def arrange(
        self,
        execute: Callable[[Arrangement], bool],
        arrangements: Sequence[Arrangement],
        draft: AuditDraft,
    ) -> list[bool]:
        """Execute arrangements (changes of queues, limits, tokens and other settings), and return the answers.

        Store an audit entry for each arrangement that changed something, if its kind is audited.
        """
        answers = []
        for index, arrangement in enumerate(arrangements):
            place = self._place_of(arrangement)
            answers.append(execute(arrangement))
            if answers[-1]:
                self.put(draft.for_arrangement(index, arrangement, place))
        return answers

    def _place_of(self, arrangement: Arrangement) -> Place | None:
        if not isinstance(arrangement, PauseSchedule | RemoveSchedule):
            return None
        found: Place | None = self._database.write(PLACE_OF_SCHEDULE, (arrangement.name,))
        return found

    def put_firings(self, firings: Sequence[Firing], answers: Sequence[Fired], draft: AuditDraft) -> None:
        """Store the audit entry of each schedule that was triggered and has made a job."""
        for firing, fired in zip(firings, answers, strict=True):
            self.put(draft.for_firing(firing, fired))


def prune_entries(write: Callable[..., Any], changes: Callable[[], int], retention: Retention, now: int) -> bool:
    """Delete at most `MAX_DELETED` audit entries that `retention` does not keep; return whether there may be more.

    `write` executes a statement, and `changes` returns how many rows the last one changed.
    """
    ends = []
    if retention.audit is not None:
        ends.append(id_at(now - retention.audit))
    if retention.most_audited is not None:
        oldest = write(OLDEST_KEPT, (retention.most_audited - 1,))
        if oldest is not None:
            ends.append(oldest)
    if not ends:
        return False
    write(DELETE_BEFORE, (max(ends), MAX_DELETED))
    return changes() >= MAX_DELETED


def read_entries(connection: apsw.Connection, query: AuditQuery) -> list[AuditEntry]:
    """List the audit entries that match a query, the latest first, at most `query.limit`."""
    found: list[AuditEntry] = []
    with closing(connection.execute(LATEST, (query.first_id,))) as rows:
        for (text,) in rows:
            entry = _entry(text)
            if query.matches(entry):
                found.append(entry)
                if len(found) == query.limit:
                    break
    return found


def read_all_entries(connection: apsw.Connection) -> Iterable[AuditEntry]:
    """Yield all audit entries, the latest first, for a migration to another store."""
    with closing(connection.execute(LATEST, ("",))) as rows:
        for (text,) in rows:
            yield _entry(text)
