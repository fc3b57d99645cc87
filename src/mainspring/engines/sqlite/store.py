"""The parts of one open SQLite store: database, lanes, sequences and groups, limits, settings and event log."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.event_log import EventWriter
from mainspring.engines.sqlite.lanes import Lanes
from mainspring.engines.sqlite.limits import Buckets, LimitTable
from mainspring.engines.sqlite.settings import Settings
from mainspring.engines.sqlite.waiting_groups import GroupNames, Lines, Parking


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
        self.settings = Settings(database, self._table, self.buckets, self.parking)

    def forget(self) -> None:
        """Drop cached state, which may have been rolled back; the next use reads it again."""
        self.lanes.forget()
        self._table.forget()
        self.buckets.forget()
