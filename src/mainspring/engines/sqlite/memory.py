"""`memory://`: the SQLite engine on a database in the memory of this process.

There is only one connection, because another connection could not see the database. The connection is lent to one
thread at a time, for reading and for writing. There is no file, so there are no file locks, no write-ahead log and
no workers in other processes. The jobs exist as long as the engine object: `close` keeps them. A forked child
cannot use them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import RLock

import apsw

from mainspring.clock import Clock
from mainspring.engines.sqlite.connections import STATEMENT_CACHE_SIZE, suspend_for_forks
from mainspring.engines.sqlite.database import Database, Probe
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.schema import migrate
from mainspring.errors import EngineUnavailable
from mainspring.jobs.engine import MAX_CRASHES, Capability

PATH = ":memory:"


class MemoryEngine(SqliteEngine):
    """The engine of `memory://`: keeps jobs in the memory of this process."""

    capabilities = frozenset(Capability) - {Capability.SHARED, Capability.BACKUP}

    def __init__(
        self, *, clock: Clock | None = None, max_crashes: int = MAX_CRASHES, probe: Probe | None = None
    ) -> None:
        self.path = PATH
        self._assemble(MemoryDatabase(probe), clock, is_shared=False, max_crashes=max_crashes)

    @property
    def description(self) -> str:
        return "memory of this process (jobs are lost when it ends)"

    def backup(self, path: str) -> None:
        raise EngineUnavailable(
            engine=self.description, reason="memory cannot be backed up", remedy="use a sqlite:/// store"
        )


class MemoryDatabase(Database):
    """A database without a file. The database is open from the beginning, and `close` leaves it open."""

    def __init__(self, probe: Probe | None) -> None:
        super().__init__(
            PATH,
            durability="normal",
            busy_timeout=0,
            is_shared=False,
            probe=probe,
            connections=MemoryConnectionPool(),
        )
        self._is_synchronous = False
        self._is_open = True

    def open(self) -> None:
        """Do nothing, because the database is open from the beginning."""

    def close(self) -> None:
        """Do nothing, because the jobs must outlive the engine's `close`."""


class MemoryConnectionPool:
    """Lends the only connection to a database in memory, to one thread at a time.

    A fork waits until no thread uses the connection. The fork does not close the connection, because a database in
    memory has no file locks that a child process could count wrongly.
    """

    def __init__(self) -> None:
        self.is_read_only = False
        self.writing = RLock()  # held while the connection is lent, and during a fork
        self._connection: apsw.Connection | None = None
        suspend_for_forks(self)

    @contextmanager
    def _lend(self) -> Iterator[apsw.Connection]:
        """Lend the only connection to this thread for a `with` block, after waiting while another thread has it.

        A thread may borrow the connection several times at once.
        """
        with self.writing:
            yield self.open_writer()

    def open_writer(self) -> apsw.Connection:
        """Return the only connection; the first call opens the database. The caller must hold `writing`."""
        if self._connection is None:
            self._connection = _open_copy()
        return self._connection

    def writer(self) -> AbstractContextManager[apsw.Connection]:
        """Lend the only connection to this thread for a `with` block, to write."""
        return self._lend()

    def reader(self) -> AbstractContextManager[apsw.Connection]:
        """Lend the only connection to this thread for a `with` block, to read."""
        return self._lend()

    def dedicated(self, _purpose: str) -> AbstractContextManager[apsw.Connection]:
        """Lend the only connection to this thread for a `with` block, whatever the purpose."""
        return self._lend()

    def temporary(self) -> AbstractContextManager[apsw.Connection]:
        """Lend the only connection to this thread for a `with` block. The connection stays open afterwards."""
        return self._lend()

    def close(self) -> None:
        """Do nothing, because the jobs must outlive the engine's `close`."""

    def suspend(self) -> None:
        """Wait until no other thread uses the connection, and lend it to no other thread until `resume`."""
        self.writing.acquire()

    def resume(self) -> None:
        """Undo one `suspend`: lend the connection again."""
        self.writing.release()

    def resume_in_child(self) -> None:
        """Undo, in a forked child, one `suspend` that the parent called before the fork."""
        self.writing.release()


def _open_copy() -> apsw.Connection:
    """Return the connection to a new database in memory, with the current schema and no jobs.

    The database is copied from a template, because that is ten times faster than to run the migrations.
    """
    connection = apsw.Connection(PATH, statementcachesize=STATEMENT_CACHE_SIZE)
    with connection.backup("main", _empty_database(os.getpid()), "main") as copying:
        copying.step()
    return connection


@cache
def _empty_database(_process: int) -> apsw.Connection:
    """Return the database from which new ones are copied. It has the current schema and no jobs.

    Each process makes it once.
    """
    connection = apsw.Connection(PATH)
    migrate(connection, PATH)
    return connection
