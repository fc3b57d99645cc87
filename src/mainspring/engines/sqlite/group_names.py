"""The names of groups, which claims give by number: read once from a job of the group, and remembered."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.groups import REMEMBERED, limits_of
from mainspring.engines.sqlite.line_statements import NAMES_OF_GROUPS
from mainspring.engines.sqlite.rows import LeaseRow, pairs_by_number, to_json


class GroupNames:
    """Names by number, as far as they were asked for. A name never changes, so there is nothing to take back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._names: dict[int, str] = {}
        self.limits: dict[int, tuple[str, ...]] = {}
        """The limits of the groups that were learned, by number."""

    def learn(self, rows: Iterable[LeaseRow]) -> dict[int, str]:
        """Return the names of the groups of rows, in their order; inside of a unit."""
        members = {number: row.seq for row in rows if (number := row.grp) is not None}
        unknown = [seq for number, seq in members.items() if number not in self._names]
        if len(self._names) + len(unknown) > max(REMEMBERED, len(members)):
            self._names.clear()
            self.limits.clear()
            unknown = list(members.values())
        if unknown:
            names = pairs_by_number(self._database.write(NAMES_OF_GROUPS, (to_json(unknown),)))
            self._names.update(names)
            self.limits.update((number, limits_of(name)) for number, name in names)
        return {number: self._names[number] for number in members}
