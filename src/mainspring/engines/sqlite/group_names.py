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

    def learn(self, rows: Iterable[LeaseRow]) -> None:
        """Look up the names of the groups of rows, inside of a unit."""
        members = {row.grp: row.seq for row in rows if row.grp is not None}
        unknown = members.keys() - self._names.keys()
        if len(self._names) + len(unknown) > max(REMEMBERED, len(members)):
            self._names.clear()
            unknown = set(members)
        if unknown:
            batch = to_json([members[number] for number in unknown])
            self._names.update(pairs_by_number(self._database.write(NAMES_OF_GROUPS, (batch,))))

    def name(self, number: int) -> str:
        """Return the name of a group that was learned."""
        return self._names[number]

    def limits(self, row: LeaseRow) -> tuple[str, ...]:
        """Return the limits of a job whose group was learned."""
        number = row.grp
        return () if number is None else limits_of(self._names[number])
