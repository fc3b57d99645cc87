"""What the verbs of the engine share: the file, its lanes and lines, and the journal."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.journal import Journal
from mainspring.engines.sqlite.lanes import Lanes
from mainspring.engines.sqlite.limits import Buckets, LimitTable
from mainspring.engines.sqlite.settings import Settings
from mainspring.engines.sqlite.waiting_groups import GroupNames, Lines, Parking


class Store:
    """The parts of one open file. `wake` lets everybody look for jobs, once the current unit is committed."""

    def __init__(self, database: Database, now: Callable[[], int], wake: Callable[[], None]) -> None:
        self.database = database
        self.now = now
        self.wake = wake
        self.lanes = Lanes(database)
        self.journal = Journal(database, now)
        self.group_names = GroupNames(database)
        self.lines = Lines(database, now, wake)
        self._table = LimitTable(database)
        self.buckets = Buckets(database, self._table, now)
        self.parking = Parking(database, self.lines, self._table, self.buckets, now=now, wake=wake)
        self.settings = Settings(database, self._table, self.buckets, self.parking)

    def write_down(self) -> None:
        """Write what a unit has counted in memory, before it is committed."""
        self.buckets.write()

    def forget(self) -> None:
        """Read again what was remembered: it may have been rolled back."""
        self.lanes.forget()
        self._table.forget()
        self.buckets.forget()
