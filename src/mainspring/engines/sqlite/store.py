"""The components of one open SQLite store, and its settings: pauses, limits and redacted parameters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import apsw
import msgspec

from mainspring.engines.sqlite import waiting_statements as sql
from mainspring.engines.sqlite.codec import to_json
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.event_log import EventWriter
from mainspring.engines.sqlite.lanes import LaneCache
from mainspring.engines.sqlite.limits import BucketCounts, LimitCache, family_bounds
from mainspring.engines.sqlite.quotas import SubmitQuotas
from mainspring.engines.sqlite.settings_row import SettingsRow
from mainspring.engines.sqlite.waiting_groups import GroupCache, HeadSelector, ParkedGroups
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.callback_pauses import CallbackPauseRecord, replace_pause
from mainspring.jobs.commands import (
    ChangeCallbackPause,
    DropLimit,
    DropRedaction,
    PauseQueue,
    PutLimit,
    PutRedaction,
)
from mainspring.jobs.limits import Limit
from mainspring.jobs.records import NewJob

# ?1 job type, ?2 parameters
PUT_REDACTION = "INSERT OR IGNORE INTO redacted_parameters SELECT ?1, value FROM json_each(?2)"
DROP_REDACTION = "DELETE FROM redacted_parameters WHERE type = ?1"
PAUSES = "SELECT records FROM callback_pauses"
PUT_PAUSES = "INSERT OR REPLACE INTO callback_pauses (rowid, records) VALUES (1, ?1)"
REDACTIONS = "SELECT type, parameter FROM redacted_parameters ORDER BY type, parameter"


_pauses = msgspec.json.Decoder(tuple[CallbackPauseRecord, ...]).decode


def read_callback_pauses(connection: apsw.Connection) -> tuple[CallbackPauseRecord, ...]:
    """Return the stored pauses of receivers of callbacks."""
    stored: Any = connection.execute(PAUSES).get
    return () if stored is None else _pauses(stored)


def read_redactions(connection: apsw.Connection) -> dict[str, tuple[str, ...]]:
    """Return the stored redacted parameters, by job type."""
    rows: Any = connection.execute(REDACTIONS).fetchall()
    found: dict[str, tuple[str, ...]] = {}
    for type_, parameter in rows:
        found[type_] = (*found.get(type_, ()), parameter)
    return found


class Store:
    """The components of one open store, which share caches.

    `wake` wakes all workers after the current unit (one transaction) has been committed.
    """

    def __init__(self, database: Database, now: Callable[[], int], wake: Callable[[], None]) -> None:
        self.database = database
        self.now = now
        self.wake = wake
        self.lanes = LaneCache(database)
        self._row = SettingsRow(database)
        self.events = EventWriter(database, self._row, now)
        self.notes = EngineNotes()
        self.groups = GroupCache(database)
        self.heads = HeadSelector(database, now, wake)
        self._limits = LimitCache(database, self._row)
        self.bucket_counts = BucketCounts(database, self._limits, now)
        self.quotas = SubmitQuotas(database, self._limits, self.bucket_counts, now)
        self.parked_groups = ParkedGroups(
            database, self.heads, self._limits, self.bucket_counts, now=now, wake=wake
        )
        self.settings = StoreSettings(
            database,
            self._row,
            self._limits,
            bucket_counts=self.bucket_counts,
            parked_groups=self.parked_groups,
            quotas=self.quotas,
        )

    def forget(self) -> None:
        """Drop cached values, and what the current unit (transaction) has noted for statistics.

        Call it after a rollback, or when the store is closed.

        The next use reads the values again.
        """
        self.lanes.forget()
        self._row.forget()
        self._limits.forget()
        self.quotas.forget()
        self.bucket_counts.forget()
        self.notes.drop()


class EngineNotes:
    """Collects notes for statistics: what the calls of an engine did, but did not return.

    A rollback drops the notes of its unit.
    """

    def __init__(self) -> None:
        self._new: list[EngineNote] = []  # of the current unit
        self._committed: deque[EngineNote] = deque()

    def add(self, note: EngineNote) -> None:
        """Add a note for statistics about something that the current unit (transaction) does.

        The note counts when the unit is committed.
        """
        self._new.append(note)

    def add_jobs(self, jobs: Iterable[NewJob]) -> None:
        """Note for statistics that the current unit (transaction) stores these jobs, which no caller has
        submitted.
        """
        for (queue, type_), count in Counter((job.queue, job.type) for job in jobs).items():
            self.add(EngineNote("submitted", queue, type_, count))

    def keep(self) -> None:
        """Make the notes of the current unit (transaction) available to `take`, because the unit was committed."""
        if self._new:
            self._committed.extend(self._new)
            self._new.clear()

    def drop(self) -> None:
        """Drop the notes of a unit (transaction) that was rolled back."""
        self._new.clear()

    def take(self) -> list[EngineNote]:
        """Remove and return the notes of all transactions that were committed since the last call.

        Any thread may call it.
        """
        notes = []
        while self._committed:
            notes.append(self._committed.popleft())
        return notes


class StoreSettings:
    """Changes pauses, limits, quotas and redacted parameters. For use inside a unit (one transaction)."""

    def __init__(
        self,
        database: Database,
        row: SettingsRow,
        limits: LimitCache,
        *,
        bucket_counts: BucketCounts,
        parked_groups: ParkedGroups,
        quotas: SubmitQuotas,
    ) -> None:
        self._database = database
        self._row = row
        self._quotas = quotas
        self._limits = limits
        self._bucket_counts = bucket_counts
        self._parked_groups = parked_groups

    def change(
        self,
        command: PauseQueue | PutLimit | DropLimit | PutRedaction | DropRedaction | ChangeCallbackPause,
    ) -> bool:
        """Change one setting; return whether it was different before."""
        match command:
            case PauseQueue():
                return self.pause(command)
            case PutLimit():
                return self.put_limit(command)
            case DropLimit():
                return self.drop_limit(command)
            case PutRedaction() | DropRedaction():
                return self.change_redaction(command)
            case ChangeCallbackPause():
                return self.change_callback_pause(command)

    def pause(self, command: PauseQueue) -> bool:
        """Pause or resume a queue; return whether its state has changed.

        A pause takes the jobs of the queue back from workers that have not started them. A resume lets claims find
        the jobs of the queue again that wait for limits.
        """
        write = self._database.write
        write(sql.PAUSE_QUEUE if command.is_paused else sql.RESUME_QUEUE, (command.queue,))
        is_changed = self._database.changes() > 0
        if is_changed:
            if command.is_paused:
                write(sql.RELEASE_HELD_OF_QUEUE, (command.queue,))
            else:
                self._parked_groups.unpark_queue(command.queue)
            self._increment_version()
        return is_changed

    def put_limit(self, command: PutLimit) -> bool:
        """Store a limit or a quota; return whether it is new or has changed.

        If so, jobs that wait for it can be claimed again.
        """
        before = self._limits.all().get(command.family)
        by = to_json(command.by)
        self._database.write(sql.PUT_LIMIT, (command.family, command.most, command.per, by))
        is_changed = self._changed_limit(command.family)
        if is_changed:
            self._quotas.apply_change(command.family, is_dropped=False)
        after = Limit(command.most, command.per)
        if is_changed and before is not None and before.per is not None and after.per is not None:
            self._bucket_counts.change_rate(command.family, before, after)
        return is_changed

    def drop_limit(self, command: DropLimit) -> bool:
        """Delete a limit or a quota; return whether it existed.

        If so, jobs that wait for it can be claimed again.
        """
        self._database.write(sql.DROP_LIMIT, (command.family,))
        is_changed = self._changed_limit(command.family)
        if is_changed:
            self._quotas.apply_change(command.family, is_dropped=True)
        self._bucket_counts.delete_rates(command.family)
        return is_changed

    def change_redaction(self, command: PutRedaction | DropRedaction) -> bool:
        """Redact more parameters of a job type (`PutRedaction`), or no parameter of it any more (`DropRedaction`).

        Return whether the store has changed.
        """
        if isinstance(command, PutRedaction):
            self._database.write(PUT_REDACTION, (command.type, to_json(command.parameters)))
        else:
            self._database.write(DROP_REDACTION, (command.type,))
        return self._database.changes() > 0

    def change_callback_pause(self, command: ChangeCallbackPause) -> bool:
        """Replace the record of a paused receiver of callbacks; return False if it was changed before."""
        stored = self._database.write(PAUSES)
        pauses = replace_pause(() if stored is None else _pauses(stored), command.before, command.after)
        if pauses is not None:
            self._database.write(PUT_PAUSES, (to_json(pauses),))
        return pauses is not None

    def _changed_limit(self, family: str) -> bool:
        is_changed = self._database.changes() > 0
        if is_changed:
            self._increment_version()
            self._limits.forget()
            self._quotas.forget()
            self._bucket_counts.recount(family)
            self._parked_groups.unpark_family(family)
            self._database.write(sql.DELETE_RATE_WAITS_OF_FAMILY, family_bounds(family))
        return is_changed

    def _increment_version(self) -> None:
        self._database.write(sql.INCREMENT_SETTINGS_VERSION)
        self._row.forget()
