"""The row of the table `settings`, in a cache.

It is read again after another process has written to the file, or this process has changed the row.
"""

from __future__ import annotations

import msgspec

from mainspring.engines.sqlite.database import Database

READ = "SELECT json_array(listening, arrangements) FROM settings"

_numbers = msgspec.json.Decoder(tuple[int, int]).decode


class SettingsRow:
    """Caches the row of settings until the row changes. Read it inside a unit (one transaction) only.

    Both values that a submit needs are read with one statement.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._version: int | None = None  # `Database.version` at which the row was read
        self._values = (0, 0)

    @property
    def listening(self) -> int:
        """The instant until which a client listens to events."""
        return self._read()[0]

    @property
    def arrangements(self) -> int:
        """A number that grows with every change of paused queues and limits."""
        return self._read()[1]

    def _read(self) -> tuple[int, int]:
        if self._version != self._database.version:
            self._values = _numbers(self._database.write(READ))
            self._version = self._database.version
        return self._values

    def forget(self) -> None:
        """Clear the cache, because this process has changed the row, or a rollback has undone a change."""
        self._version = None
