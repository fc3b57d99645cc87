"""Transactions on one SQLite file: a unit is one transaction on the writing connection; other connections read.

Processes that write to one file queue for a `WriteLock`, a `flock` lock that the kernel grants in order. SQLite
itself waits by retrying after a pause, so a process that commits without a break wins nearly every time: a process
that wanted the lock every 10 ms waited half a second for it, and less than a millisecond with the file lock.
SQLite's lock still protects the file; the file lock only orders the writers.

A unit may run on the thread of a caller, where a `KeyboardInterrupt` or an exception of a signal handler can end
it at any instruction. `run` therefore acquires the lock with `call_with`, which releases it whatever happens. The
next unit removes what an interrupt left behind, an open transaction for instance.

Invariants
- One thread writes at a time, in units that are committed or rolled back as a whole.
- `_unit_thread` is the thread whose unit runs now. It is set and cleared by assignments without a call, where no
  interrupt comes, so an interrupted unit never leaves it behind: a thread that finds itself there is inside of its
  own unit.
- Errors of the driver leave this module as errors of Mainspring that name a remedy: see `translate`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread, get_ident
from types import ModuleType
from typing import Any, Literal, TypeAlias, TypeVar

import apsw

from mainspring.engines.sqlite.connections import ConnectionPool, FileConnectionPool, translate, translated
from mainspring.engines.sqlite.log_file import Checkpointer, LogGrower
from mainspring.engines.sqlite.provider import require_accessible
from mainspring.engines.sqlite.schema import MOVED, check, is_moved, migrate, moved_error, require_version
from mainspring.errors import EngineUnavailable
from mainspring.jobs.interruptible_lock import call_with

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: writers wait by SQLite's retries
    fcntl = None

Result = TypeVar("Result")

Durability: TypeAlias = Literal["full", "normal"]
Probe: TypeAlias = Callable[[str, str], None]
"""A callback before and after each statement of a unit: `probe("before", "COMMIT")`. Tests crash in it."""

CACHE_KIB = 16_384


class Database:
    """One SQLite file: runs units on it and lends connections for reading."""

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
    ) -> None:
        self.path = path
        self._is_export = is_export  # whether it may open a file whose jobs are moved to another store
        self._durability = durability
        self._probe = probe
        milliseconds = round(busy_timeout * 1_000)
        self._write_lock = WriteLock(path, timeout=busy_timeout)
        self._is_shared = is_shared
        self._connections: ConnectionPool = connections or FileConnectionPool(
            path, busy_timeout_ms=milliseconds, prepare_writer=self._prepare, on_close=self._write_lock.close
        )
        self._checkpointer: Checkpointer | None = None
        self._log_grower: LogGrower | None = None
        self._is_open = False
        self._writing = self._connections.writing  # held by a unit; guards what follows
        self._unit_thread = 0
        self._is_begun = False  # from the begin of a unit until its commit or rollback is complete
        self._is_committed = False  # the commit is done, and `after_commit` is not
        self._writer: apsw.Connection | None = None
        self._is_synchronous = True
        self._committed: int | None = None  # data version after the last unit, for which the schema was checked
        self.version = 0
        """Version of the content, valid inside a unit: grows when anything but own units may have changed it."""
        self._before_commit: list[Callable[[], None]] = []
        self.after_commit: Callable[[], None] = _nothing
        self.after_rollback: Callable[[], None] = _nothing

    def open(self) -> None:
        """Open the file, create it if it does not exist, and migrate its schema."""
        with self._writing, translated(self.path):  # no unit runs
            if self._is_open:
                return
            found = require_accessible(Path(self.path))
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
            self._connections.open_writer()
            self._is_open = True

    def _prepare(self, connection: apsw.Connection) -> None:
        # If two processes switch a new file to write-ahead logging at once, SQLite refuses one without waiting.
        with self._write_lock.held() if self._is_shared else nullcontext():
            self._prepare_file(connection)
        self._committed = None
        self._is_synchronous = self._durability == "full"
        connection.pragma("synchronous", "FULL" if self._is_synchronous else "NORMAL")
        connection.pragma("cache_size", -CACHE_KIB)
        connection.pragma("wal_autocheckpoint", 0)  # `Checkpointer` does it
        self._log_grower = LogGrower(connection) if self._durability == "full" else None

    def _prepare_file(self, connection: apsw.Connection) -> None:
        is_marked = self._is_export and is_moved(connection)
        if not is_marked:
            check(connection, self.path)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise EngineUnavailable(
                engine=f"SQLite file {self.path}",
                reason=f"its file system does not support write-ahead logging (journal mode {mode!r})",
                remedy="put the file on a local disk, not on a network share",
            )
        if not is_marked:
            migrate(connection, self.path)

    def close(self) -> None:
        """Close every connection. When the last process does so, SQLite copies the log into the file."""
        with self._writing:
            self._is_open = False
            if self._checkpointer is not None:
                self._checkpointer.close()
            self._connections.close()

    # -- writing

    def run(self, function: Callable[..., Result], *arguments: Any, durable: bool) -> Result:
        """Call a function in one transaction, and return its result; inside of a unit it joins that one."""
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
        """Run the block as one transaction, which commits or rolls back; a nested unit joins the outer one.

        For threads that no signal interrupts. Others call `run`.
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
        if self._is_begun:  # an interrupt ended the last unit, and its end, too
            self._end_unit()
        if not self._is_open:
            raise EngineUnavailable(
                engine=f"SQLite file {self.path}", reason="it is not open", remedy="open() the engine first"
            )
        self._is_begun = True
        self._writer = writer = self._connections.open_writer()
        if self._is_shared:
            self._write_lock.acquire()
        wanted = durable and self._durability == "full"
        if wanted != self._is_synchronous:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._is_synchronous = wanted
        self.write("BEGIN IMMEDIATE")
        if writer.data_version() != self._committed:  # another process wrote, perhaps a new schema
            self._require_usable(writer)
            self.version += 1
        if self._log_grower is not None and self._log_grower.is_nearly_full:
            self._log_grower.grow()

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
        except apsw.Error:  # a fork on this thread has closed the connection; the commit succeeded nevertheless
            self._committed = None
        self._end_unit()

    def _after_write(self, writer: apsw.Connection, checkpointer: Checkpointer) -> None:
        # The length of the log, in pages. A hook would be called inside of SQLite; this takes half a microsecond.
        pages, _ = writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        checkpointer.after_write(writer, pages)
        if self._log_grower is not None:
            self._log_grower.after_write(pages)

    def _end_unit(self) -> None:
        """End a unit: after its commit, or after an error or interrupt at any point. Calling it twice is harmless.

        An interrupt right after the commit may come before `_is_committed` is set. The unit then ends as if it
        was rolled back: the caches are read again, and workers are woken in either case.
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
        self._is_committed = self._is_begun = False

    def _require_usable(self, connection: apsw.Connection) -> None:
        if not (self._is_export and is_moved(connection)):
            require_version(connection, self.path)

    def write(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """Execute one statement in the current unit and return its one value or row, if it has one."""
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

    def before_commit(self, call: Callable[[], None]) -> None:
        """Register a call for the moment before the current unit commits; a rollback drops it."""
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
        """Lend a connection for reading, to any thread."""
        with translated(self.path), self._connections.reader() as connection:
            if connection.pragma("user_version") == MOVED and not self._is_export:
                raise moved_error(connection, self.path)
            yield connection

    def copy_to(self, path: str) -> None:
        """Write a consistent, compact copy to a new file."""
        with self._connections.temporary() as connection:
            connection.execute("VACUUM INTO ?", (path,))

    def change_detector(self) -> FileChangeDetector:
        """Create a change detector for one thread."""
        return FileChangeDetector(self._connections)


class FileChangeDetector:
    """Detects whether another connection has written to the file since the last call. For one thread."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._purpose = f"change detector {id(self)}"
        self._version: int | None = None

    def has_changed(self) -> bool:
        """Return whether the version counter of the file has changed; this reads one page."""
        try:
            with self._connections.dedicated(self._purpose) as connection:
                version: int = connection.pragma("data_version")  # data_version() would need a read first
        except apsw.Error:
            return True  # the next operation on the file reports the error
        before, self._version = self._version, version
        return before != version


def _nothing() -> None:
    return None


class WriteLock:
    """The lock for which the writers of one file queue. One thread of a process uses it at a time."""

    def __init__(self, path: str, *, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._descriptor: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the file lock during the block; if it is not granted in time, run the block without it."""
        try:
            self.acquire()
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Wait for the file lock, until a timeout."""
        if fcntl is not None and self._has_file():
            self._acquire()

    def release(self) -> None:
        """Release the file lock, if this process has it."""
        if fcntl is not None and self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _has_file(self) -> bool:
        if self._descriptor is None:
            with suppress(OSError):  # no file lock then: the writer waits by SQLite's retries
                self._descriptor = os.open(f"{self._path}-turn", os.O_CREAT | os.O_RDONLY, 0o666)
        return self._descriptor is not None

    def _acquire(self) -> None:
        """Wait for the file lock. `flock` has no timeout, so a helper thread waits if the lock is not free."""
        assert fcntl is not None
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait(self._descriptor)

    def _wait(self, descriptor: int) -> None:
        self._descriptor = None  # until the lock is granted: the helper thread closes it if this thread gives up
        waiter = _LockWaiter(descriptor)
        try:
            if waiter.wait_acquired(self._timeout):
                self._descriptor = descriptor
        except BaseException:  # an interrupt
            self._descriptor = None
            waiter.give_up()
            raise

    def close(self) -> None:
        """Close the lock file."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


class _LockWaiter:
    """A helper thread that waits for a lock, for a caller that gives up after a timeout."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._acquired = Event()
        self._claim = [None]  # the first to pop it decides: the helper gets the lock, or the caller gives up

    def wait_acquired(self, timeout: float) -> bool:
        """Wait for the lock. Return False after a timeout; the helper then frees it as soon as it gets it."""
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
        """Free the lock, now or as soon as the helper gets it."""
        try:
            self._claim.pop()
        except IndexError:
            with suppress(OSError):  # the caller had given up already, and the helper has closed it
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
