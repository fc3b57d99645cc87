"""Opens the connections of this process to one file, closes them before a fork, and makes checkpoints.

SQLite's locks belong to a process, and SQLite keeps count of them: a forked child with an inherited connection
would believe to hold locks that it does not hold. So all connections are closed before a fork, and the parent
opens again what it needs. A thread of its own folds the write-ahead log into the file, so that commits need not
wait for it.

Invariants
- A connection is used by one thread at a time, inside of the gate; a fork shuts the gate and waits for all.
- A statement that is executed again and again stays prepared.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Condition, Thread
from typing import Protocol
from weakref import WeakSet

import apsw

STATEMENTS = (
    200  # kept prepared by a connection, more than there are: an insert for each number of jobs among them
)


class Lender(Protocol):
    """Lends connections to one database."""

    def writer(self) -> AbstractContextManager[apsw.Connection]:
        """Lend the connection that writes."""

    def reader(self) -> AbstractContextManager[apsw.Connection]:
        """Lend a connection for reading."""

    def kept(self, purpose: str) -> AbstractContextManager[apsw.Connection]:
        """Lend the connection that is kept for one purpose."""

    def lent(self) -> AbstractContextManager[apsw.Connection]:
        """Lend a connection that is not used afterwards."""

    def close(self) -> None:
        """Close all connections."""


class Connections:
    """Opens connections, lends them, and closes them all when need be."""

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
        self._gate = _Gate()
        self._writer: apsw.Connection | None = None
        self._readers: deque[apsw.Connection] = deque()
        self._kept: dict[str, apsw.Connection] = {}  # each for one purpose and one thread
        _all.add(self)

    def connect(self) -> apsw.Connection:
        """Open a connection; whoever asked closes it."""
        connection = apsw.Connection(self._path, statementcachesize=STATEMENTS)
        connection.set_busy_timeout(self._busy_timeout_ms)
        with suppress(apsw.Error):  # a build without blocking locks polls instead
            connection.setlk_timeout(self._busy_timeout_ms, 0)
        return connection

    @contextmanager
    def writer(self) -> Iterator[apsw.Connection]:
        """Lend the connection that writes; callers take turns by a lock of their own."""
        with self._gate:
            if self._writer is None:
                self._writer = self._open_writer()
            yield self._writer

    def _open_writer(self) -> apsw.Connection:
        connection = self.connect()
        try:
            self._prepare_writer(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """Lend a connection that cannot write, to any thread."""
        with self._gate:
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self.connect()
                connection.pragma("query_only", 1)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._readers.append(connection)

    @contextmanager
    def kept(self, purpose: str) -> Iterator[apsw.Connection]:
        """Lend the connection that is kept for one purpose."""
        with self._gate:
            connection = self._kept.get(purpose)
            if connection is None:
                connection = self._kept[purpose] = self.connect()
            yield connection

    @contextmanager
    def lent(self) -> Iterator[apsw.Connection]:
        """Lend a connection that is closed afterwards."""
        with self._gate:
            connection = self.connect()
            try:
                yield connection
            finally:
                connection.close()

    def close(self) -> None:
        """Close all; they open again when used."""
        self.shut()
        self.open_gate()

    # -- forks

    def shut(self) -> None:
        """Let nobody in, wait until everybody is out, and close everything."""
        self._gate.shut()
        for connection in (self._writer, *self._readers, *self._kept.values()):
            if connection is not None:
                connection.close()
        self._writer = None
        self._readers.clear()
        self._kept.clear()
        self._on_close()

    def open_gate(self) -> None:
        """Let everybody in again."""
        self._gate.open()


class _Gate:
    """Lets in whoever uses a connection, unless it is shut."""

    def __init__(self) -> None:
        self._changed = Condition()  # guards what follows
        self._inside = 0
        self._shut = 0  # how many have shut the gate

    def __enter__(self) -> None:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._shut:  # else nobody waits
                self._changed.notify_all()

    def shut(self) -> None:
        """Let nobody in, and wait until everybody is out."""
        with self._changed:
            self._shut += 1
            while self._inside:
                self._changed.wait()

    def open(self) -> None:
        """Let everybody in again, once all who have shut it say so."""
        with self._changed:
            self._shut -= 1
            self._changed.notify_all()


_all: WeakSet[Connections] = WeakSet()  # a fork concerns the whole process, so this is known to the whole process


def _before_fork() -> None:
    for connections in list(_all):
        connections.shut()


def _after_fork_in_parent() -> None:
    for connections in list(_all):
        connections.open_gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_all.clear)


CHECKPOINT_PAGES = 1_000  # since the last one
# A log that is written without a pause never becomes free to begin anew. When it is this long, the writer itself
# does the rest, of which little is left.
OVERDUE_PAGES = 4_000


class Checkpointer:
    """Asks for a checkpoint when the log has grown."""

    def __init__(self, connections: Lender) -> None:
        self._connections = connections
        self._changed = Condition()  # guards everything below
        self._thread: Thread | None = None
        self._is_requested = False
        self._is_closed = False
        self._requested_at = 0

    def after_write(self, connection: apsw.Connection, _schema: str, pages: int) -> int:
        """Called by SQLite after each commit, with the length of the log."""
        if pages < self._requested_at:  # the log has begun anew
            self._requested_at = 0
        if pages >= OVERDUE_PAGES:
            with suppress(apsw.Error):  # somebody reads or checkpoints; the next commit tries again
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        elif pages - self._requested_at >= CHECKPOINT_PAGES:
            self._requested_at = pages
            self._request()
        return apsw.SQLITE_OK

    def _request(self) -> None:
        with self._changed:
            if self._is_closed:
                return
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
        while True:
            with self._changed:
                while not (self._is_requested or self._is_closed):
                    self._changed.wait()
                self._is_requested = False
                if self._is_closed:
                    return
            # Another process is at it, or the disk is full: then the log just stays longer.
            with suppress(apsw.Error), self._connections.kept("checkpoint") as connection:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
