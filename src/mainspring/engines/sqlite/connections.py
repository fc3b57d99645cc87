"""Opens the connections of this process to one file, lends them to threads, and closes them before a fork.

SQLite's file locks belong to a process, and SQLite counts them in memory. A forked child with an inherited
connection would count locks that the child does not hold. So all connections are closed before a fork, and the
parent reopens the connections that it needs.

Invariants
- One thread at a time uses a connection. Meanwhile the thread holds the lock `writing`, or shares the fork lock. A
  fork blocks further threads, and waits until no other thread uses a connection.
- A signal handler or finalizer may fork while its own thread uses a connection. This connection is closed, too:
  its transaction is rolled back, and its next statement fails, in the parent and in the child. A connection must
  not be closed inside a call of SQLite. So no Python code may run inside such a call, and there are no hooks.
- Locks are acquired in this order: `writing`, the fork lock.
- Statements that are executed repeatedly stay prepared.

Errors of SQLite become errors of Mainspring that name the file, the reason and the remedy.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Condition, RLock, get_ident, local
from typing import Protocol
from weakref import WeakSet

import apsw

from mainspring.engines.sqlite.lock_holders import find_holder
from mainspring.engines.sqlite.read_only import read_only_address, write_remedy
from mainspring.errors import EngineUnavailable, MainspringError, RefusedByStore, StoreCorrupt

_DISK_FULL_CODES = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_TRUNCATE)

_DATA_ERRORS = (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError, apsw.RangeError, apsw.SQLError)


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Convert errors of SQLite that a `with` block raises to errors of Mainspring: see `translate`."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error


def translate(error: apsw.Error, path: str) -> MainspringError:
    """Return the error of Mainspring for an error of SQLite. It names the file, the reason and the remedy."""
    engine = f"SQLite file {path}"
    if isinstance(error, _DATA_ERRORS):
        return RefusedByStore(
            engine=engine,
            reason=f"{type(error).__name__}: {error}",
            is_too_large=isinstance(error, apsw.TooBigError),
        )
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreCorrupt(
            engine=engine,
            reason=f"the file is damaged or not a database ({error})",
            remedy="restore a backup, or move the file away to start with an empty store",
        )
    if isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in _DISK_FULL_CODES:
        return EngineUnavailable(
            engine=engine,
            reason=f"the disk is full, or SQLite could not write to it ({error})",
            remedy="free some space, or check the disk; the jobs that were stored before are not lost",
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return EngineUnavailable(
            engine=engine,
            reason=f"the file cannot be opened or written ({error})",
            remedy=write_remedy(Path(path)),
        )
    if isinstance(error, apsw.ConnectionClosedError):
        return EngineUnavailable(
            engine=engine,
            reason="the process forked, or closed the store, in the middle of this call on the same thread",
            remedy="make the call again; do not fork in signal handlers and finalizers",
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return EngineUnavailable(
            engine=engine,
            reason=f"{find_holder(path)} held the lock of the file for too long ({error})",
            remedy="look whether that is a suspended process or has an open transaction, and try again; a longer "
            "wait is possible with ?timeout= in the URL of the store",
        )
    return EngineUnavailable(
        engine=engine,
        reason=f"{type(error).__name__}: {error}",
        remedy="read the log of this process; the failed operation has stored nothing",
    )


# How many statements a connection keeps prepared. The engine has fewer statements, even if `insert_few` is counted
# once for each number of jobs.
STATEMENT_CACHE_SIZE = 200


def set_patience(connection: apsw.Connection, milliseconds: int) -> None:
    """Let a connection wait so long for locks of other connections, and then raise `apsw.BusyError`."""
    connection.set_busy_timeout(milliseconds)
    with suppress(apsw.Error):  # a build of SQLite without blocking locks polls instead
        connection.setlk_timeout(milliseconds, 0)


class ConnectionPool(Protocol):
    """Opens the connections to one database, and lends them to threads."""

    writing: RLock
    """A re-entrant lock. The thread that uses the writing connection holds it, and so does a fork."""
    is_read_only: bool
    """Whether to open connections that only read, and create no files beside the database: see `read_only`."""

    def open_writer(self) -> apsw.Connection:
        """Return the writing connection; open it if needed. The calling thread must hold `writing`."""

    def writer(self) -> AbstractContextManager[apsw.Connection]:
        """Lend the writing connection to this thread for a `with` block."""

    def reader(self) -> AbstractContextManager[apsw.Connection]:
        """Lend a connection for reading to this thread for a `with` block."""

    def dedicated(self, purpose: str) -> AbstractContextManager[apsw.Connection]:
        """Lend to this thread, for a `with` block, the connection that is reserved for `purpose`.

        Only one thread may use the connection of a purpose.
        """

    def temporary(self) -> AbstractContextManager[apsw.Connection]:
        """Lend a new connection to this thread for a `with` block, and close it afterwards."""

    def close(self) -> None:
        """Close all connections of the pool."""


class FileConnectionPool:
    """Opens connections to one file, lends them, and closes them all before a fork or on `close`."""

    def __init__(
        self,
        path: str,
        *,
        busy_timeout_ms: int,
        prepare_writer: Callable[[apsw.Connection], None],
        on_close: Callable[[], None],
    ) -> None:
        self._path = path
        self._busy_timeout_ms = busy_timeout_ms
        self._prepare_writer = prepare_writer
        self._on_close = on_close
        self.is_read_only = False
        self.writing = RLock()
        self._fork_lock = _ForkLock()
        self._writer: apsw.Connection | None = None
        self._readers: deque[apsw.Connection] = deque()
        self._lent: dict[int, apsw.Connection] = {}  # readers in use, by their `id`
        self._dedicated: dict[str, apsw.Connection] = {}  # each for one purpose and one thread
        suspend_for_forks(self)

    def connect(self) -> apsw.Connection:
        """Open a connection, which only reads if `is_read_only` is set. The caller must close it."""
        if self.is_read_only:
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            address = read_only_address(Path(self._path))
            connection = apsw.Connection(address, flags=flags, statementcachesize=STATEMENT_CACHE_SIZE)
        else:
            connection = apsw.Connection(self._path, statementcachesize=STATEMENT_CACHE_SIZE)
        set_patience(connection, self._busy_timeout_ms)
        return connection

    @contextmanager
    def writer(self) -> Iterator[apsw.Connection]:
        """Lend the writing connection to this thread for a `with` block."""
        with self.writing:
            yield self.open_writer()

    def open_writer(self) -> apsw.Connection:
        """Return the writing connection; open it if needed. The calling thread must hold `writing`."""
        if self._writer is None:
            self._writer = self._make_writer()
        return self._writer

    def _make_writer(self) -> apsw.Connection:
        connection = self.connect()
        try:
            self._prepare_writer(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """Lend a connection that only reads to this thread for a `with` block."""
        with self._fork_lock:
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self.connect()
                connection.pragma("query_only", 1)
            self._lent[id(connection)] = connection
            try:
                yield connection
            except BaseException:
                self._lent.pop(id(connection), None)
                connection.close()
                raise
            if self._lent.pop(id(connection), None) is not None:  # no fork has closed the connection
                if self.is_read_only:  # the next use may find other files beside the store
                    connection.close()
                else:
                    self._readers.append(connection)

    @contextmanager
    def dedicated(self, purpose: str) -> Iterator[apsw.Connection]:
        """Lend to this thread, for a `with` block, the connection that is reserved for `purpose`.

        Only one thread may use the connection of a purpose.
        """
        with self._fork_lock:
            connection = self._dedicated.get(purpose)
            if connection is None:
                connection = self._dedicated[purpose] = self.connect()
            yield connection

    @contextmanager
    def temporary(self) -> Iterator[apsw.Connection]:
        """Lend a new connection to this thread for a `with` block, and close it afterwards."""
        with self._fork_lock:
            connection = self.connect()
            try:
                yield connection
            finally:
                connection.close()

    def close(self) -> None:
        """Wait until no other thread uses a connection, and close all connections. The next use opens new ones."""
        self.suspend()
        self.resume()

    # -- forks

    def suspend(self) -> None:
        """Block further threads, wait until no other thread uses a connection, and close all connections."""
        self.writing.acquire()
        self._fork_lock.acquire_exclusive()
        for connection in (self._writer, *self._readers, *self._lent.values(), *self._dedicated.values()):
            if connection is not None:
                connection.close()
        self._writer = None
        self._readers.clear()
        self._lent.clear()
        self._dedicated.clear()
        self._on_close()

    def resume(self) -> None:
        """Undo one `suspend`: lend connections again."""
        self._fork_lock.release_exclusive()
        self.writing.release()

    def resume_in_child(self) -> None:
        """Release `writing` in a forked child. The child opens its own connections with another pool."""
        self.writing.release()


class _ForkLock:
    """A shared-exclusive lock. Threads that use a connection share the lock; a fork acquires it exclusively.

    Several forks may hold the lock exclusively at the same time. A fork by a thread that shares the lock does not
    wait for its own thread.
    """

    def __init__(self) -> None:
        self._changed = Condition()  # guards everything below
        self._shared: list[int] = []  # threads that use a connection
        self._exclusive = 0  # callers of `acquire_exclusive`

    def __enter__(self) -> None:
        with self._changed:
            while self._exclusive:
                self._changed.wait()
            self._shared.append(get_ident())

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._shared.remove(get_ident())
            if self._exclusive:  # otherwise no thread waits
                self._changed.notify_all()

    def acquire_exclusive(self) -> None:
        """Prevent other threads from sharing the lock, and wait until no other thread shares it."""
        with self._changed:
            self._exclusive += 1
            me = get_ident()
            while any(thread != me for thread in self._shared):
                self._changed.wait()

    def release_exclusive(self) -> None:
        """Undo one `acquire_exclusive`. Threads may share the lock again when all such calls are undone."""
        with self._changed:
            self._exclusive -= 1
            self._changed.notify_all()


class Suspendable(Protocol):
    """A pool of connections that no thread may use during a fork."""

    def suspend(self) -> None:
        """Prevent other threads from using a connection, and wait until no other thread uses one."""

    def resume(self) -> None:
        """Undo one `suspend`."""

    def resume_in_child(self) -> None:
        """Undo one `suspend` in the forked child, where only the calling thread has survived."""


_all: WeakSet[Suspendable] = WeakSet()  # global, because a fork affects the whole process
_forking = local()  # `pools` has the pools that the forking thread has suspended


def suspend_for_forks(pool: Suspendable) -> None:
    """Suspend a pool of connections during every fork of this process.

    Otherwise a thread inside a call of SQLite could hold a mutex of SQLite during the fork, and the child would
    wait for this mutex forever.
    """
    _all.add(pool)


def _before_fork() -> None:
    _forking.pools = sorted(_all, key=id)  # in the same order for all threads that fork
    for pool in _forking.pools:
        pool.suspend()


def _after_fork_in_parent() -> None:
    for pool in vars(_forking).pop("pools", ()):  # empty if another thread imported this module during the fork
        pool.resume()


def _after_fork_in_child() -> None:
    for pool in vars(_forking).pop("pools", ()):
        pool.resume_in_child()
    _all.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
