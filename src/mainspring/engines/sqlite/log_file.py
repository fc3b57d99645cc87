"""The write-ahead log of a SQLite file: a thread runs checkpoints, and the writer extends the log in large steps.

A checkpoint copies the log into the SQLite file. It takes long, so it runs in a thread of its own, and commits do
not wait for it.

If a file has grown, its fsync also writes records of the file system. Such an fsync takes about one and a half
times as long as an fsync after an overwrite. SQLite appends to the log until a checkpoint has copied all of it,
and then begins again at the start of the log. So the writer extends a log that is nearly full by a megabyte of
zeros. The next forty commits or so overwrite the zeros. SQLite ignores zeros at the end of a log, because a frame
without a page number is invalid, and an invalid frame ends the log. `docs/decisions/032-the-log-grows-in-steps.md`
has the measurements.

Invariants
- The writer extends the log inside a transaction. So no other process can append to the log at the same time.
- The writer only appends zeros, and SQLite does not depend on them. If an append fails, SQLite extends the log
  itself at each commit.
- This module opens no other file of SQLite than the log. When a process closes any descriptor of a file, the
  kernel drops all POSIX locks of the process on this file. SQLite has locks on the database and on its `-shm`,
  never on the log. `docs/decisions/086-only-sqlite-opens-its-files.md` has the reasons.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Condition, Thread

import apsw

from mainspring.engines.sqlite.connections import ConnectionPool

STEP = 1_048_576  # bytes of zeros
SHORT = 32  # pages; a shorter log is not extended, because the process may only submit a few jobs and end
MARGIN = 65_536  # bytes that the next commits may need
HEADER, FRAME_HEADER = 32, 24  # bytes; see "The WAL File Format" of SQLite


class LogGrower:
    """Extends the write-ahead log in large steps. Only the thread that writes calls its methods."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._path = connection.filename_wal
        self._frame: int = FRAME_HEADER + connection.pragma("page_size")
        self._used = 0  # bytes of the file that the log occupies
        self._size = 0  # size of the file when it was last checked
        self.is_nearly_full = False

    def after_write(self, pages: int) -> None:
        """Set `is_nearly_full`: whether the log, which has this many pages, has nearly filled its file.

        It is False for a log of less than `SHORT` pages.
        """
        self._used = HEADER + pages * self._frame
        self.is_nearly_full = pages >= SHORT and self._used + MARGIN > self._size

    def grow(self) -> None:
        """Append zeros to the file if the log has nearly filled it. Must be called inside a transaction.

        If that fails, no further attempts are made.
        """
        self.is_nearly_full = False
        try:
            descriptor = os.open(self._path, os.O_WRONLY)
            try:
                self._size = os.fstat(descriptor).st_size
                if self._used + MARGIN > self._size:  # no other process has extended the file
                    self._size += os.pwrite(descriptor, bytes(STEP), self._size)
            finally:
                os.close(descriptor)
        except OSError:  # the disk is full, for example
            self._size = 1 << 62  # no further attempts


def sync_log(path: str) -> None:
    """Write the log of a SQLite file to the disk, which makes the last commit durable, and all earlier ones."""
    descriptor = os.open(f"{path}-wal", os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


CHECKPOINT_PAGES = 1_000  # a checkpoint is requested when the log has grown by this many pages
# SQLite cannot restart a log that is written without a pause. When the log has this many pages, the writing thread
# runs the checkpoint itself. The checkpoint thread has copied most pages already, so the writing thread copies
# few.
OVERDUE_PAGES = 4_000


class Checkpointer:
    """Copies the write-ahead log into the file (a checkpoint), in a thread of its own, when the log has grown."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._changed = Condition()  # guards everything below
        self._thread: Thread | None = None
        self._is_requested = False
        self._is_closed = False
        self._requested_at = 0

    def after_write(self, connection: apsw.Connection, pages: int) -> None:
        """Request a checkpoint if the log is long; run the checkpoint here if the log is very long.

        The writer calls this method after each commit.
        """
        if pages < self._requested_at:  # SQLite has restarted the log
            self._requested_at = 0
        if pages >= OVERDUE_PAGES:
            with suppress(apsw.Error):  # if a reader or another checkpoint blocks it, the next commit retries
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        elif pages - self._requested_at >= CHECKPOINT_PAGES:
            self._requested_at = pages
            self._request()

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
            # If the checkpoint fails, because another process runs one or the disk is full, the log only gets
            # longer.
            with suppress(apsw.Error), self._connections.dedicated("checkpoint") as connection:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
