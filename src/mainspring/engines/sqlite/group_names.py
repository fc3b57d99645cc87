"""The names of groups, which jobs and claims give by number: written with the first job, read once, remembered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.groups import REMEMBERED, limits_of, number_of, takes_turns
from mainspring.engines.sqlite.rows import pairs_by_number, pairs_of_integers, to_json


class Row(Protocol):
    """A job, as it was read."""

    @property
    def grp(self) -> int | None:
        """The number of its group."""


class GroupNames:
    """Names by number, as far as they were asked for. A name never changes, so there is nothing to take back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.names: dict[int, str] = {}
        """Of the groups that were learned, by number,"""
        self.limits: dict[int, tuple[str, ...]] = {}
        """and their limits,"""
        self.take_turns: dict[int, bool] = {}
        """and whether they take turns with others."""

    def enter(self, counts: Mapping[str, int]) -> None:
        """Note that so many jobs have come into groups; those that leave are counted by triggers."""
        self._database.write(
            sql.ENTER_GROUPS, (to_json([(number_of(name), name, count) for name, count in counts.items()]),)
        )

    def enter_since(self, last: int, names: Iterable[str]) -> None:
        """Note that the jobs behind a row have come into groups, which are among these."""
        by_number = {number_of(name): name for name in names}
        counts = pairs_of_integers(self._database.write(sql.GROUPS_SINCE, (last,)))
        self.enter({by_number[number]: count for number, count in counts})

    def enter_like(self, job_id: str) -> None:
        """Note that one more job has come into the group of a job, if it has any."""
        self._database.write(sql.ENTER_GROUP_OF, (job_id,))

    def learn(self, rows: Iterable[Row]) -> list[int]:
        """Return the groups of rows, in their order, and know them; inside of a unit."""
        wanted = list(dict.fromkeys([number for row in rows if (number := row.grp) is not None]))
        unknown = [number for number in wanted if number not in self.names]
        if len(self.names) + len(unknown) > max(REMEMBERED, len(wanted)):
            self.names.clear()
            self.limits.clear()
            self.take_turns.clear()
            unknown = wanted
        if unknown:
            for number, name in pairs_by_number(self._database.write(sql.NAMES_OF_GROUPS, (to_json(unknown),))):
                self.names[number] = name
                self.limits[number] = limits_of(name)
                self.take_turns[number] = takes_turns(name)
        return wanted
