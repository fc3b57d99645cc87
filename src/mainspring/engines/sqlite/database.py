"""Transactions on one SQLite file. A unit is one transaction on the writing connection; other connections read.

Processes that write to one file wait for a `WriteLock`, a `flock` lock that the kernel grants in order. SQLite's
own lock is not granted in order: a process that waits for it tries again after a pause. So a process that commits
without a break gets SQLite's lock nearly every time. Another process, which wanted the lock every 10 ms, waited
half a second for SQLite's lock, and less than a millisecond for the file lock. SQLite's lock still protects the
file; the file lock only orders the writers.

A unit may run on the thread of a caller. There, a `KeyboardInterrupt` or an exception of a signal handler can end
the unit at any instruction. Therefore `run` acquires the lock `writing` with `call_with`, which releases the lock
in any case. If an interrupt leaves a transaction open, the next unit rolls it back.

Invariants
- One thread writes at a time, in units that are committed or rolled back as a whole.
- `_unit_thread` is the thread whose unit runs now. It is set and cleared by plain assignments. No interrupt comes
  during these, so an interrupted unit always clears it. If `_unit_thread` is the current thread, then the current
  code runs inside a unit.
- This module raises errors of Mainspring that name a remedy, instead of errors of the driver: see `translate`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread, get_ident
from types import ModuleType
from typing import Any, Literal, TypeAlias, TypeVar

import apsw

from mainspring.clock import Clock, SystemClock
from mainspring.engines.sqlite.connections import (
    ConnectionPool,
    FileConnectionPool,
    set_patience,
    translate,
    translated,
)
from mainspring.engines.sqlite.file_modes import create_file, open_file
from mainspring.engines.sqlite.file_watch import FileWatch
from mainspring.engines.sqlite.log_file import Checkpointer, LogGrower, sync_log
from mainspring.engines.sqlite.provider import require_accessible
from mainspring.engines.sqlite.read_only import may_write, open_immutable, read_only_error, user_name, write_remedy
from mainspring.engines.sqlite.schema import (
    APPLICATION_ID,
    APPLICATION_ID_PLACE,
    MOVED,
    check,
    is_moved,
    migrate,
    moved_error,
    require_own,
    require_version,
)
from mainspring.errors import EngineUnavailable
from mainspring.jobs.interruptible_lock import call_with

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # on Windows, writers only wait for SQLite's own lock
    fcntl = None

Result = TypeVar("Result")

Durability: TypeAlias = Literal["full", "normal"]
Probe: TypeAlias = Callable[[str, str], None]
"""A callback before and after each statement of a unit: `probe("before", "COMMIT")`.

Tests simulate crashes with it.
"""

CACHE_KIB = 16_384
QUEUED_NS = 500_000_000
"""A unit that begins so soon after one that could not get the locks was queued behind it."""


class Database:
    """One SQLite file. Runs units (transactions) that write to the file, and lends connections that read it."""

    def __init__(
        self,
        path: str,
        *,
        durability: Durability,
        busy_timeout: float,
        is_shared: bool,
        probe: Probe | None,
        is_export: bool = False,
        connections: ConnectionPool | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = path
        self._watch = None if connections is not None else FileWatch(path, clock or SystemClock())
        self._is_export = is_export  # whether to open a file whose jobs were moved to another store
        self._durability = durability
        self._probe = probe
        self._milliseconds = milliseconds = round(busy_timeout * 1_000)
        self._write_lock = WriteLock(path)
        self._refused_ns = 0  # when a unit has last waited in vain for the locks; 0 after one that got them
        self._is_shared = is_shared
        self._connections: ConnectionPool = connections or FileConnectionPool(
            path, busy_timeout_ms=milliseconds, prepare_writer=self._prepare, on_close=self._closed
        )
        self._checkpointer: Checkpointer | None = None
        self._log_grower: LogGrower | None = None
        self._is_open = False
        self._writing = self._connections.writing  # held by a unit; guards the following attributes
        self._unit_thread = 0
        self._is_begun = False  # from the begin of a unit until its commit or rollback is complete
        self._is_committed = False  # between the commit and the end of `after_commit`
        self._must_sync = False  # the current unit must be durable when it ends
        self._writer: apsw.Connection | None = None
        self._is_synchronous = True
        # SQLite's data version after the last commit, at which the schema was checked; None if it is not known
        self._committed: int | None = None
        self.version = 0
        """Version of the content, for use inside a unit. It grows if another process may have written."""
        self._before_commit: list[Callable[[], None]] = []
        self.after_commit: Callable[[], None] = _nothing
        self.after_rollback: Callable[[], None] = _nothing

    def open(self) -> None:
        """Open the file, create it if it does not exist, and migrate its schema. Do nothing if it is open.

        If this user may not write to the file, it is opened for reading. Raise `EngineUnavailable` if that fails,
        and `StoreMoved` if the jobs of the file were moved to another store.
        """
        with self._writing, translated(self.path):  # so that no unit runs
            if self._is_open:
                return
            found = require_accessible(Path(self.path))
            if found is not None and stat.S_ISDIR(found.st_mode):
                raise EngineUnavailable(
                    engine=f"SQLite file {self.path}",
                    reason="it is a directory",
                    remedy="name a file inside the directory",
                )
            folder = Path(self.path).parent
            if not folder.is_dir():
                raise EngineUnavailable(
                    engine=f"SQLite file {self.path}",
                    reason=f"the directory {folder} does not exist",
                    remedy="create the directory, or name another file",
                )
            self._checkpointer = Checkpointer(self._connections)
            self._require_own(found)
            create_file(Path(self.path))
            self._connections.is_read_only = found is not None and not may_write(Path(self.path))
            if not self._connections.is_read_only:
                try:
                    self._connections.open_writer()
                except (apsw.ReadOnlyError, apsw.CantOpenError):  # the folder or the file system is read-only
                    if found is None or not found.st_size:
                        raise
                    self._connections.is_read_only = True
            if self._connections.is_read_only:
                self._require_readable()
            self._is_open = True

    def _require_own(self, found: os.stat_result | None) -> None:
        """Raise `StoreCorrupt` if the file is that of another program. This writes nothing, also not beside it.

        A file whose first page says that it is a store is checked later, with its log.
        """
        if found is None or not found.st_size:
            return
        with closing(open_immutable(Path(self.path))) as connection:
            _, header = connection.read("main", 0, 0, APPLICATION_ID_PLACE.stop)
            if int.from_bytes(header[APPLICATION_ID_PLACE]) != APPLICATION_ID:
                with suppress(apsw.Error):  # the file is damaged, or not complete without its log
                    require_own(connection, self.path)

    def _require_readable(self) -> None:
        """Raise `EngineUnavailable` if the schema is not current, because a user who may not write cannot migrate
        it.
        """
        with self._connections.reader() as connection:
            if not (self._is_export and is_moved(connection)) and not check(connection, self.path):
                raise EngineUnavailable(
                    engine=f"SQLite file {self.path}",
                    reason=f"its schema must be migrated, and user {user_name()} may not write to it",
                    remedy=write_remedy(Path(self.path)),
                )

    def _prepare(self, connection: apsw.Connection) -> None:
        if self._watch is not None and self._is_open:  # after a fork, the path may have another file
            self._watch.check_read(connection)
        elif self._watch is not None:
            self._watch.begin()
        require_own(connection, self.path)  # before the lock, which creates a file beside it
        if not self._is_prepared(connection):
            # If two processes switch a new file to write-ahead logging at the same time, SQLite refuses one of
            # them without waiting. The lock lets them do it one after the other.
            with self._write_lock.held(self._milliseconds / 1_000) if self._is_shared else nullcontext():
                self._prepare_file(connection)
        self._committed = None
        self._is_synchronous = self._durability == "full"
        connection.pragma("synchronous", "FULL" if self._is_synchronous else "NORMAL")
        connection.pragma("cache_size", -CACHE_KIB)
        connection.pragma("wal_autocheckpoint", 0)  # because `Checkpointer` runs the checkpoints
        self._log_grower = LogGrower(connection) if self._durability == "full" else None
        if self._watch is not None:
            self._watch.opened(connection)

    def _is_prepared(self, connection: apsw.Connection) -> bool:
        """Return whether the file has a write-ahead log and the current schema. Then opening it needs no lock."""
        if connection.pragma("journal_mode") != "wal":
            return False
        return (self._is_export and is_moved(connection)) or check(connection, self.path)

    def _prepare_file(self, connection: apsw.Connection) -> None:
        is_marked = self._is_export and is_moved(connection)
        if not is_marked:
            check(connection, self.path)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise EngineUnavailable(
                engine=f"SQLite file {self.path}",
                reason=f"SQLite cannot use write-ahead logging for it (its journal mode stays {mode!r})",
                remedy="put the file on a local disk; many network file systems do not support it",
            )
        if not is_marked:
            migrate(connection, self.path)

    def _closed(self) -> None:
        """Close the lock of writers, and forget the log, after all connections of the pool were closed."""
        self._write_lock.close()
        if self._watch is not None:
            self._watch.closed()

    def close(self) -> None:
        """Close every connection of this process.

        When the last process closes the file, SQLite copies the log into it.
        """
        with self._writing:
            self._is_open = False
            if self._checkpointer is not None:
                self._checkpointer.close()
            self._connections.close()

    # -- writing

    def run(self, function: Callable[..., Result], *arguments: Any, durable: bool) -> Result:
        """Call a function in one unit (transaction), and return its result.

        The unit is committed, or rolled back if the function raises an error. Inside a unit, the function joins
        this unit. With `durable`, the commit is on the disk when this method returns, if `durability` is "full".
        """
        me = get_ident()
        if self._unit_thread == me:
            return function(*arguments)
        run: Callable[..., Result] = self._run_as
        return call_with(self._writing, run, me, durable, function, arguments)

    def _run_as(
        self,
        me: int,
        durable: bool,  # noqa: FBT001
        function: Callable[..., Result],
        arguments: tuple[Any, ...],
    ) -> Result:
        self._unit_thread = me
        try:
            self._begin(durable=durable)
            result = function(*arguments)
            self._commit()
        except BaseException as error:
            self._end_unit()
            if isinstance(error, apsw.Error):
                raise translate(error, self.path) from error
            raise
        finally:
            self._unit_thread = 0
        return result

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        """Run a `with` block in one unit (transaction), which is committed, or rolled back after an error.

        A nested unit joins the outer unit. This method is for threads that no signal interrupts. Other threads
        must call `run`.
        """
        me = get_ident()
        if self._unit_thread == me:
            yield
            return
        with self._writing:
            self._unit_thread = me
            try:
                self._begin(durable=durable)
                yield
                self._commit()
            except BaseException as error:
                self._end_unit()
                if isinstance(error, apsw.Error):
                    raise translate(error, self.path) from error
                raise
            finally:
                self._unit_thread = 0

    def _begin(self, *, durable: bool) -> None:
        if self._is_begun:  # an interrupt has also interrupted `_end_unit` of the last unit
            self._end_unit()
        if not self._is_open:
            raise EngineUnavailable(
                engine=f"SQLite file {self.path}", reason="the file is not open", remedy="open() the engine first"
            )
        if self._connections.is_read_only:
            raise read_only_error(self.path)
        self._is_begun = True
        self._writer = writer = self._connections.open_writer()
        if self._watch is not None:
            self._watch.check_begin(writer)
        wanted = durable and self._durability == "full"
        if wanted != self._is_synchronous:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._is_synchronous = wanted
        if self._refused_ns or (self._is_shared and not self._write_lock.acquire_at_once()):
            self._wait_and_begin(writer, self._milliseconds)
        else:
            self._begin_transaction()
        if writer.data_version() != self._committed:  # another process may have written, perhaps a new schema
            self._require_usable(writer)
            self.version += 1
        if self._log_grower is not None and self._log_grower.is_nearly_full:
            self._log_grower.grow()

    def _wait_and_begin(self, writer: apsw.Connection, patience: int) -> None:
        """Wait for the file lock and for SQLite's own lock, `patience` milliseconds in all. Begin a transaction.

        A unit that was queued behind one that has just waited in vain tries once, and does not wait.
        """
        began = SystemClock.monotonic_ns()
        if self._refused_ns and began - self._refused_ns < QUEUED_NS:
            patience = 0
        if self._is_shared:
            self._write_lock.acquire(patience / 1_000)
        waited = (SystemClock.monotonic_ns() - began) // 1_000_000
        set_patience(writer, max(0, patience - waited))
        try:
            self._begin_transaction()
        finally:
            set_patience(writer, self._milliseconds)

    def _begin_transaction(self) -> None:
        try:
            self.write("BEGIN IMMEDIATE")
        except apsw.BusyError:
            self._refused_ns = SystemClock.monotonic_ns()
            raise
        self._refused_ns = 0

    def _commit(self) -> None:
        while self._before_commit:
            self._before_commit.pop()()
        assert self._writer is not None
        self._committed = None
        self.write("COMMIT")
        self._is_committed = True
        try:
            self._committed = self._writer.data_version()
            if self._checkpointer is not None:
                self._after_write(self._writer, self._checkpointer)
        except apsw.Error:  # the commit has succeeded; perhaps a fork on this thread has closed the connection
            self._committed = None
        if self._must_sync and not self._is_synchronous and self._durability == "full":
            self._sync_log()
        self._end_unit()

    def _after_write(self, writer: apsw.Connection, checkpointer: Checkpointer) -> None:
        # Ask SQLite for the length of the log, in pages, which takes half a microsecond. A hook could report it,
        # too, but Python code must not run inside a call of SQLite.
        pages, _ = writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if self._watch is not None:
            self._watch.check_commit(writer)
        checkpointer.after_write(writer, pages)
        if self._log_grower is not None:
            self._log_grower.after_write(pages)

    def _end_unit(self) -> None:
        """End a unit after its commit, or after an error or interrupt at any point. A second call does nothing.

        An interrupt right after the commit may come before `_is_committed` is set. Then the unit ends as if it had
        been rolled back. This does no harm: caches are read again, and workers are woken in either case.
        """
        if not self._is_begun:
            return
        if not self._is_committed:
            self._roll_back()
        self._writer = None
        if self._is_shared:
            self._write_lock.release()
        if self._is_committed:
            self.after_commit()
        self._is_committed = self._is_begun = self._must_sync = False

    def _require_usable(self, connection: apsw.Connection) -> None:
        if not (self._is_export and is_moved(connection)):
            require_version(connection, self.path)

    def write(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """Execute one statement in the current unit.

        Return the first row: its value if it has one column, else a tuple; None if there is no row.
        """
        assert self._writer is not None, "outside of a unit"
        if self._probe is not None:
            self._probe("before", sql)
        value = self._writer.execute(sql, bindings).get
        if self._probe is not None:
            self._probe("after", sql)
        return value

    def changes(self) -> int:
        """Return how many rows the last statement of the current unit changed."""
        assert self._writer is not None, "outside of a unit"
        return self._writer.changes()

    def require_sync(self) -> None:
        """Make the current unit durable with its commit, even if it was begun with `durable=False`.

        Without effect if `durability` is not "full".
        """
        self._must_sync = True

    def _sync_log(self) -> None:
        try:
            sync_log(self.path)
        except OSError as error:
            raise EngineUnavailable(
                engine=f"SQLite file {self.path}",
                reason=f"its log could not be written to the disk ({error}); the change is stored, but a power "
                "failure may undo it",
                remedy="check the disk",
            ) from error

    def before_commit(self, call: Callable[[], None]) -> None:
        """Register a function that is called right before the current unit is committed. A rollback drops it."""
        self._before_commit.append(call)

    def _roll_back(self) -> None:
        self._before_commit.clear()
        with suppress(apsw.Error):  # SQLite may have rolled back already; the caller gets the first error
            if self._writer is not None and self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        self.after_rollback()

    # -- reading

    @contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """Lend a connection for reading; raise `StoreMoved` if the jobs of the file were moved to another store.

        Any thread may call this method.
        """
        watch = None if self._connections.is_read_only else self._watch  # a read-only store may be replaced
        with translated(self.path):
            if watch is not None:
                watch.check_path()  # before a connection opens the path
            with self._connections.reader() as connection:
                if watch is not None:
                    watch.check_read(connection)
                if connection.pragma("user_version") == MOVED and not self._is_export:
                    raise moved_error(connection, self.path)
                yield connection

    def copy_to(self, path: str) -> None:
        """Write a consistent, compact copy of the database to a new file. Raise `apsw.Error` if that fails."""
        if self._watch is not None and not self._connections.is_read_only:
            self._watch.check_path()
        create_file(Path(path))
        with self._connections.temporary() as connection:
            connection.execute("VACUUM INTO ?", (path,))

    def change_detector(self) -> FileChangeDetector:
        """Create an object that detects writes to the file by other connections. Only one thread may use it."""
        return FileChangeDetector(self._connections)


class FileChangeDetector:
    """Detects whether another connection has written to the file since the last call. For use by one thread."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._purpose = f"change detector {id(self)}"
        self._version: int | None = None

    def has_changed(self) -> bool:
        """Return True if another connection has written since the last call, at the first call, and on an error.

        This call reads one page of the file.
        """
        try:
            with self._connections.dedicated(self._purpose) as connection:
                version: int = connection.pragma("data_version")  # the method data_version() needs a read first
        except apsw.Error:
            return True  # the next operation on the file reports the error
        before, self._version = self._version, version
        return before != version


def _nothing() -> None:
    return None


class WriteLock:
    """A file lock that processes which write to one SQLite file acquire in the order of their requests.

    The caller ensures that one thread of a process uses it at a time. A process that cannot get the file lock
    writes without it: SQLite's own lock still protects the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Hold the file lock during a `with` block. After the timeout, run the block without the lock."""
        try:
            self.acquire(seconds)
            yield
        finally:
            self.release()

    def acquire(self, seconds: float) -> None:
        """Wait for the file lock. Return without it after the timeout, or if no lock file can be opened."""
        if not self.acquire_at_once():
            assert self._descriptor is not None
            self._wait(self._descriptor, seconds)

    def acquire_at_once(self) -> bool:
        """Return whether this process has the file lock now, and not another one.

        If no lock file can be opened, return True, too: writers then do without the lock.
        """
        if fcntl is None or not self._has_file():
            return True
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Release the file lock, if this process has it."""
        if fcntl is not None and self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _has_file(self) -> bool:
        if self._descriptor is None:
            with suppress(OSError):  # then there is no file lock, and the writer only waits for SQLite's own lock
                self._descriptor = open_file(Path(f"{self._path}-turn"), os.O_RDONLY)
        return self._descriptor is not None

    def _wait(self, descriptor: int, seconds: float) -> None:
        """Wait for the file lock. `flock` has no timeout, so a helper thread waits."""
        self._descriptor = None  # until the lock is granted; the helper closes it if this thread gives up
        waiter = _LockWaiter(descriptor)
        try:
            if waiter.wait_acquired(seconds):
                self._descriptor = descriptor
        except BaseException:  # an interrupt
            self._descriptor = None
            waiter.give_up()
            raise

    def close(self) -> None:
        """Close the lock file, which releases the lock."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


class _LockWaiter:
    """A helper thread that waits for a lock, for a caller that gives up after a timeout."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._acquired = Event()
        self._claim = [None]  # popped by the helper when it gets the lock, or by a caller that gives up

    def wait_acquired(self, timeout: float) -> bool:
        """Wait for the lock, and return True. After the timeout return False; the helper will free the lock."""
        Thread(target=self._wait, name="mainspring-write-lock", daemon=True).start()
        if self._acquired.wait(timeout):
            return True
        try:
            self._claim.pop()
        except IndexError:  # the helper got the lock at the last moment
            self._acquired.wait()
            return True
        return False

    def give_up(self) -> None:
        """Free the lock at once, or as soon as the helper gets it."""
        try:
            self._claim.pop()
        except IndexError:
            with suppress(OSError):  # after a timeout, the helper may have closed the descriptor already
                os.close(self._descriptor)

    def _wait(self) -> None:
        assert fcntl is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            self._claim.pop()
        except IndexError:
            os.close(self._descriptor)  # this frees the lock
            return
        self._acquired.set()
