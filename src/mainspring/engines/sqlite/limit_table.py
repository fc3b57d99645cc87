"""The limits that hold, read again only when somebody has changed them."""

from __future__ import annotations

import apsw
import msgspec

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.database import Database
from mainspring.jobs.commands import PutLimit
from mainspring.jobs.limits import Limit

_rows = msgspec.json.Decoder(list[tuple[str, int, int | None, list[str]]]).decode


def read_limits(connection: apsw.Connection) -> list[PutLimit]:
    """List the limits, on a connection that only reads."""
    rows = _rows(connection.execute(sql.LIMITS).get)
    return [PutLimit(family, most, per, tuple(by)) for family, most, per, by in rows]


class LimitTable:
    """The limits of all families, inside of units."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._content: int | None = None  # the version of the content that was looked at,
        self._version: int | None = None  # and that of the limits in it
        self._limits: dict[str, Limit] = {}

    def limits(self) -> dict[str, Limit]:
        """Return all limits: another mapping when they have changed."""
        if self._database.version != self._content:
            version = self._database.write(sql.ARRANGEMENTS)
            if version != self._version:
                rows = _rows(self._database.write(sql.LIMITS))
                self._limits = {family: Limit(most, per) for family, most, per, _ in rows}
                self._version = version
            self._content = self._database.version
        return self._limits

    def forget(self) -> None:
        """Read everything again: what was read may have been rolled back."""
        self._content = self._version = None
