"""One SQLite file: units of work on the connection that writes, and connections that read.

Invariants
- One thread writes at a time, in units that are committed or rolled back as a whole.
- What the driver raises leaves this module as `EngineUnavailable`, which says what to do.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import RLock
from typing import Any, Literal, TypeAlias

import apsw

from mainspring.engines.sqlite.connections import Checkpointer, Connections, Lender
from mainspring.engines.sqlite.failures import translated
from mainspring.engines.sqlite.provider import require_sight
from mainspring.engines.sqlite.schema import check, is_moved, migrate, require_not_moved, require_version
from mainspring.engines.sqlite.turn import Turn
from mainspring.errors import EngineUnavailable

Durability: TypeAlias = Literal["full", "normal"]
Probe: TypeAlias = Callable[[str, str], None]
"""Called before and after every step on the store: `probe("before", "COMMIT")`. Tests crash in it."""

CACHE_KIB = 16_384


class Database:
    """The file."""

    def __init__(
        self,
        path: str,
        *,
        durability: Durability,
        busy_timeout: float,
        is_shared: bool,
        probe: Probe | None,
        is_mover: bool = False,
        connections: Lender | None = None,
    ) -> None:
        self.path = path
        self._is_mover = is_mover  # the one who may use a file whose jobs are moved elsewhere
        self._durability = durability
        self._probe = probe
        milliseconds = round(busy_timeout * 1_000)
        self._turn = Turn(path, patience=busy_timeout)
        self._is_shared = is_shared
        self._connections: Lender = connections or Connections(
            path, busy_timeout_ms=milliseconds, prepare_writer=self._prepare, on_close=self._turn.close
        )
        self._checkpointer: Checkpointer | None = None
        self._is_open = False
        self._writing = RLock()  # held by a unit; guards what follows
        self._writer: apsw.Connection | None = None
        self._is_synchronous = True
        self._committed: int | None = None  # the content as the last unit left it: its schema has been looked at
        self.version = 0
        """Of the content, inside of a unit: another than before if it may have changed but by units of here."""
        self.before_commit: Callable[[], None] = _nothing
        self.after_commit: Callable[[], None] = _nothing
        self.after_rollback: Callable[[], None] = _nothing

    def open(self) -> None:
        """Open or make the file, and bring its schema up to date."""
        with self._writing, translated(self.path):
            if self._is_open:
                return
            found = require_sight(Path(self.path))
            if found is not None and stat.S_ISDIR(found.st_mode):
                raise EngineUnavailable(
                    engine=f"SQLite file {self.path}",
                    reason="it is a directory",
                    remedy="name a file inside of it",
                )
            folder = Path(self.path).parent
            if not folder.is_dir():
                raise EngineUnavailable(
                    engine=f"SQLite file {self.path}",
                    reason=f"the directory {folder} does not exist",
                    remedy="create it, or name another file",
                )
            self._checkpointer = Checkpointer(self._connections)
            with self._connections.writer():
                self._is_open = True

    def _prepare(self, connection: apsw.Connection) -> None:
        # SQLite refuses two processes that switch a new file to write-ahead logging at once, without a wait.
        with self._turn.taken() if self._is_shared else nullcontext():
            self._prepare_file(connection)
        self._committed = None
        self._is_synchronous = self._durability == "full"
        connection.pragma("synchronous", "FULL" if self._is_synchronous else "NORMAL")
        connection.pragma("cache_size", -CACHE_KIB)
        if self._checkpointer is not None:
            connection.set_wal_hook(self._checkpointer.after_write)

    def _prepare_file(self, connection: apsw.Connection) -> None:
        is_left = self._is_mover and is_moved(connection)
        if not is_left:
            check(connection, self.path)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise EngineUnavailable(
                engine=f"SQLite file {self.path}",
                reason=f"its file system does not support write-ahead logging (journal mode {mode!r})",
                remedy="put the file on a local disk, not on a network share",
            )
        if not is_left:
            migrate(connection, self.path)

    def close(self) -> None:
        """Close every connection; the last one of all processes folds the log into the file."""
        with self._writing:
            self._is_open = False
            if self._checkpointer is not None:
                self._checkpointer.close()
            self._connections.close()

    # -- writing

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        """Commit what happens inside, or nothing of it; a unit inside of a unit belongs to the outer one."""
        with self._writing:
            if self._writer is not None:
                yield
                return
            if not self._is_open:
                raise EngineUnavailable(
                    engine=f"SQLite file {self.path}", reason="it is not open", remedy="open() the engine first"
                )
            turn = self._turn.taken() if self._is_shared else nullcontext()
            with translated(self.path), self._connections.writer() as writer, turn:
                self._writer = writer
                try:
                    self._set_synchronous(durable=durable)
                    self.write("BEGIN IMMEDIATE")
                    if writer.data_version() != self._committed:  # somebody else has written: perhaps a new schema
                        self._require_ours(writer)
                        self.version += 1
                    yield
                    self.before_commit()
                    self.write("COMMIT")
                    self._committed = writer.data_version()
                except BaseException:
                    self._roll_back()
                    raise
                finally:
                    self._writer = None
        self.after_commit()

    def _require_ours(self, connection: apsw.Connection) -> None:
        if not (self._is_mover and is_moved(connection)):
            require_version(connection, self.path)

    def write(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """Execute one statement of the current unit and return its one value, if it has one."""
        assert self._writer is not None, "outside of a unit"
        if self._probe is not None:
            self._probe("before", sql)
        value = self._writer.execute(sql, bindings).get
        if self._probe is not None:
            self._probe("after", sql)
        return value

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        assert self._writer is not None, "outside of a unit"
        return self._writer.changes()

    def _set_synchronous(self, *, durable: bool) -> None:
        assert self._writer is not None
        wanted = durable and self._durability == "full"
        if wanted != self._is_synchronous:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._is_synchronous = wanted

    def _roll_back(self) -> None:
        if self._writer is not None and self._writer.in_transaction:
            with suppress(apsw.Error):  # some errors have rolled back already; the first one is the one to tell
                self._writer.execute("ROLLBACK")
        self.after_rollback()

    # -- reading

    @contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """Lend a connection for reading, from any thread."""
        with translated(self.path), self._connections.reader() as connection:
            if not self._is_mover:
                require_not_moved(connection, self.path)
            yield connection

    def copy_to(self, path: str) -> None:
        """Write a consistent, compact copy to a new file."""
        with self._connections.lent() as connection:
            connection.execute("VACUUM INTO ?", (path,))

    def watch(self) -> ChangeWatch:
        """Make a watch for one thread."""
        return ChangeWatch(self._connections)


class ChangeWatch:
    """Answers whether somebody else has written since it was last asked. For one thread."""

    def __init__(self, connections: Lender) -> None:
        self._connections = connections
        self._purpose = f"watch {id(self)}"
        self._seen: int | None = None

    def has_changed(self) -> bool:
        """Look at the version counter of the file: a read of one page."""
        try:
            with self._connections.kept(self._purpose) as connection:
                version: int = connection.pragma(
                    "data_version"
                )  # data_version() stands still until somebody reads
        except apsw.Error:
            return True  # whoever looks next finds out what is wrong, and says so
        before, self._seen = self._seen, version
        return before != version


def _nothing() -> None:
    return None
