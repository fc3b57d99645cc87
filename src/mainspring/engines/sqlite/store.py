"""The parts of one open SQLite store, and its settings: paused queues and limits."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.codec import to_json
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.event_log import EventWriter
from mainspring.engines.sqlite.lanes import Lanes
from mainspring.engines.sqlite.limits import Buckets, LimitTable, family_bounds
from mainspring.engines.sqlite.waiting_groups import GroupNames, Lines, Parking
from mainspring.jobs.commands import DropLimit, PauseQueue, PutLimit
from mainspring.jobs.limits import Limit


class Store:
    """The parts of one open store. `wake` wakes all workers after the current unit (one transaction) commits."""

    def __init__(self, database: Database, now: Callable[[], int], wake: Callable[[], None]) -> None:
        self.database = database
        self.now = now
        self.wake = wake
        self.lanes = Lanes(database)
        self.events = EventWriter(database, now)
        self.group_names = GroupNames(database)
        self.lines = Lines(database, now, wake)
        self._table = LimitTable(database)
        self.buckets = Buckets(database, self._table, now)
        self.parking = Parking(database, self.lines, self._table, self.buckets, now=now, wake=wake)
        self.settings = StoreSettings(database, self._table, self.buckets, self.parking)

    def forget(self) -> None:
        """Drop cached state, which may have been rolled back; the next use reads it again."""
        self.lanes.forget()
        self._table.forget()
        self.buckets.forget()


class StoreSettings:
    """Pauses queues and changes limits; for use inside a unit (one transaction)."""

    def __init__(self, database: Database, table: LimitTable, buckets: Buckets, parking: Parking) -> None:
        self._database = database
        self._table = table
        self._buckets = buckets
        self._parking = parking

    def pause(self, command: PauseQueue) -> bool:
        """Pause or resume a queue; return whether it changed."""
        write = self._database.write
        write(sql.PAUSE_QUEUE if command.is_paused else sql.RESUME_QUEUE, (command.queue,))
        is_changed = self._database.changes() > 0
        if is_changed:
            if command.is_paused:
                write(sql.TAKE_BACK_HELD, (command.queue,))
            else:
                self._parking.admit_queue(command.queue)
            write(sql.ARRANGED)
        return is_changed

    def put_limit(self, command: PutLimit) -> bool:
        """Define a limit, and let groups that wait for it try again; return whether it changed."""
        before = self._table.limits().get(command.family)
        by = to_json(command.by)
        self._database.write(sql.PUT_LIMIT, (command.family, command.most, command.per, by))
        is_changed = self._changed_limit(command.family)
        after = Limit(command.most, command.per)
        if is_changed and before is not None and before.per is not None and after.per is not None:
            self._buckets.change_pace(command.family, before, after)
        return is_changed

    def drop_limit(self, command: DropLimit) -> bool:
        """Delete a limit, and unpark the groups that wait for it; return whether there was one."""
        self._database.write(sql.DROP_LIMIT, (command.family,))
        is_changed = self._changed_limit(command.family)
        self._buckets.forget_pace(command.family)
        return is_changed

    def _changed_limit(self, family: str) -> bool:
        is_changed = self._database.changes() > 0
        if is_changed:
            self._database.write(sql.ARRANGED)
            self._table.forget()
            self._buckets.recount(family)
            self._parking.admit_family(family)
            self._database.write(sql.WAIT_FOR_FAMILY_NO_MORE, family_bounds(family))
        return is_changed
