"""One SQLite file: a connection that writes, connections that read, and checkpoints beside the work.

Invariants
- One thread writes at a time, in units that are committed or rolled back as a whole.
- What the driver raises leaves this module as `EngineUnavailable`, which says what to do.
- Checkpoints run on a connection and a thread of their own, so that no commit waits for one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, RLock, Thread
from typing import Any, Literal, TypeAlias

import apsw

from mainspring.engines.sqlite.schema import migrate
from mainspring.errors import EngineUnavailable, StoreCorrupt

Durability: TypeAlias = Literal["full", "normal"]
Probe: TypeAlias = Callable[[str, str], None]
"""Called before and after every step on the store: `probe("before", "COMMIT")`. Tests crash in it."""

CHECKPOINT_PAGES = 1_000
OVERDUE_PAGES = 20_000  # the log has outrun the checkpoints: the writer waits for one
CACHE_KIB = 16_384


class Database:
    """The file and its connections."""

    def __init__(self, path: str, *, durability: Durability, busy_timeout_ms: int, probe: Probe | None) -> None:
        self.path = path
        self._durability = durability
        self._busy_timeout_ms = busy_timeout_ms
        self._probe = probe
        self._writing = RLock()  # held by a unit
        self._writer: apsw.Connection | None = None
        self._is_synchronous = True
        self._is_in_unit = False
        self._readers: deque[apsw.Connection] = deque()
        self._checkpointer: Checkpointer | None = None
        self.after_commit: Callable[[], None] = _nothing
        self.after_rollback: Callable[[], None] = _nothing

    def open(self) -> None:
        """Open or make the file, and bring its schema up to date."""
        with self._writing, self._translated():
            if self._writer is not None:
                return
            if not Path(self.path).parent.is_dir():
                raise EngineUnavailable(
                    engine=f"SQLite file {self.path}",
                    reason=f"the directory {Path(self.path).parent} does not exist",
                    remedy="create it, or name another file",
                )
            connection = self.connect()
            try:
                _set_wal(connection, self.path)
                migrate(connection, self.path)
            except BaseException:
                connection.close()
                raise
            connection.pragma("synchronous", "FULL" if self._durability == "full" else "NORMAL")
            connection.pragma("cache_size", -CACHE_KIB)
            self._is_synchronous = self._durability == "full"
            self._checkpointer = Checkpointer(self.connect)
            connection.set_wal_hook(self._after_wal_write)
            self._writer = connection

    def close(self) -> None:
        """Close every connection; the last one of all processes folds the log into the file."""
        with self._writing:
            if self._checkpointer is not None:
                self._checkpointer.close()
                self._checkpointer = None
            while self._readers:
                self._readers.pop().close()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def connect(self) -> apsw.Connection:
        """Open a connection; whoever asked closes it."""
        connection = apsw.Connection(self.path)
        connection.set_busy_timeout(self._busy_timeout_ms)
        with suppress(apsw.Error):  # a build without blocking locks polls instead
            connection.setlk_timeout(self._busy_timeout_ms, 0)
        return connection

    # -- writing

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        """Commit what happens inside, or nothing of it; a unit inside of a unit belongs to the outer one."""
        with self._writing:
            if self._is_in_unit:
                yield
                return
            with self._translated():
                self._set_synchronous(durable=durable)
                self.write("BEGIN IMMEDIATE")
                self._is_in_unit = True
                try:
                    yield
                    self.write("COMMIT")
                except BaseException:
                    self._roll_back()
                    raise
                finally:
                    self._is_in_unit = False
        self.after_commit()

    def write(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """Execute one statement and return its one value, if it has one."""
        if self._writer is None:
            raise EngineUnavailable(
                engine=f"SQLite file {self.path}", reason="it is not open", remedy="open() the engine first"
            )
        if self._probe is not None:
            self._probe("before", sql)
        value = self._writer.execute(sql, bindings).get
        if self._probe is not None:
            self._probe("after", sql)
        return value

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        assert self._writer is not None
        return self._writer.changes()

    def _set_synchronous(self, *, durable: bool) -> None:
        wanted = durable and self._durability == "full"
        if wanted != self._is_synchronous and self._writer is not None:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._is_synchronous = wanted

    def _roll_back(self) -> None:
        if self._writer is not None and self._writer.in_transaction:
            with suppress(apsw.Error):  # some errors have rolled back already; the first one is the one to tell
                self._writer.execute("ROLLBACK")
        self.after_rollback()

    def _after_wal_write(self, connection: apsw.Connection, _schema: str, pages: int) -> int:
        if pages >= OVERDUE_PAGES:
            with suppress(apsw.Error):  # somebody reads or checkpoints; the next commit tries again
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        elif pages >= CHECKPOINT_PAGES and self._checkpointer is not None:
            self._checkpointer.request()
        return apsw.SQLITE_OK

    # -- reading

    @contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """Lend a connection for reading, from any thread."""
        with self._translated():
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self.connect_reader()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._readers.append(connection)

    def connect_reader(self) -> apsw.Connection:
        """Open a connection that cannot write; whoever asked closes it."""
        connection = self.connect()
        connection.pragma("query_only", 1)
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise _translate(error, self.path) from error


class ChangeWatch:
    """Answers whether somebody else has written since it was last asked. For one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: apsw.Connection | None = None
        self._seen: int | None = None

    def has_changed(self) -> bool:
        """Look at the version counter of the file: a read of one page."""
        try:
            if self._connection is None:
                self._connection = self._database.connect_reader()
            version = self._connection.data_version()
        except apsw.Error:
            return True  # whoever looks next finds out what is wrong, and says so
        before, self._seen = self._seen, version
        return before != version

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()


class Checkpointer:
    """Folds the log into the file on a thread of its own, when asked."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._changed = Condition()  # guards everything below
        self._thread: Thread | None = None
        self._is_requested = False
        self._is_closed = False

    def request(self) -> None:
        """Ask for a checkpoint, soon."""
        with self._changed:
            self._is_requested = True
            if self._thread is None:
                self._thread = Thread(target=self._run, name="mainspring-checkpoint", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """End the thread and wait for it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            connection = self._connect()
        except apsw.Error:
            return
        while True:
            with self._changed:
                while not (self._is_requested or self._is_closed):
                    self._changed.wait()
                self._is_requested = False
                if self._is_closed:
                    break
            with suppress(apsw.Error):  # another process is at it, or the disk is full: the log just stays longer
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        connection.close()


def _set_wal(connection: apsw.Connection, path: str) -> None:
    mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        raise EngineUnavailable(
            engine=f"SQLite file {path}",
            reason=f"its file system does not support write-ahead logging (journal mode {mode!r})",
            remedy="put the file on a local disk, not on a network share",
        )


def _translate(error: apsw.Error, path: str) -> EngineUnavailable:
    engine = f"SQLite file {path}"
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreCorrupt(
            engine=engine,
            reason=f"the file is damaged or not a database ({error})",
            remedy="restore a backup, or move the file away to begin with an empty one",
        )
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and _is_out_of_room(error)):
        return EngineUnavailable(
            engine=engine, reason=f"the disk is full ({error})", remedy="make room; nothing stored before is lost"
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return EngineUnavailable(
            engine=engine,
            reason=f"it cannot be written ({error})",
            remedy=f"give user {os.geteuid()} write access to the file and to its directory",
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return EngineUnavailable(
            engine=engine,
            reason=f"another process held its lock for too long ({error})",
            remedy="look for a stopped process or an open transaction on this file, and try again",
        )
    return EngineUnavailable(
        engine=engine, reason=f"{type(error).__name__}: {error}", remedy="see the log; nothing of this was stored"
    )


def _is_out_of_room(error: apsw.Error) -> bool:
    return getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE)


def _nothing() -> None:
    return None
