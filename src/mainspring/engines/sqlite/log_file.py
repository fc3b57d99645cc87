"""The write-ahead log of a file: a thread copies it into the file, and the writer extends it in large steps.

Copying the log (a checkpoint) takes long, so a thread of its own does it, and commits do not wait for it.

An fsync of a file that has grown writes the file system's own records, too. It takes about one and a half times
as long as one that follows an overwrite. SQLite appends to the log until a checkpoint has copied all of it, and
then begins again at its start. So the writer extends a log that is nearly full by a megabyte of zeros, which the
next forty commits or so overwrite. SQLite ignores zeros at the end of a log: a frame without a page number is
invalid, and the log ends before it. `docs/decisions/032-the-log-grows-in-steps.md` has the measurements.

Invariants
- The log is extended inside of a transaction. Then no other process can append to it at the same time.
- The log is only appended to, and nothing depends on it: after an error the log grows by itself, as usual.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Condition, Thread

import apsw

from mainspring.engines.sqlite.connections import ConnectionPool

STEP = 1_048_576  # bytes of zeros
SHORT = 32  # pages; a process that submits a few jobs and ends does not extend the log
MARGIN = 65_536  # bytes that the next commits may need
HEADER, FRAME_HEADER = 32, 24  # bytes; see "The WAL File Format" of SQLite


class LogGrower:
    """Extends the log in large steps. The thread that writes uses it."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._path = connection.filename_wal
        self._frame: int = FRAME_HEADER + connection.pragma("page_size")
        self._used = 0  # bytes of the file that the log occupies
        self._size = 0  # of the file, as far as known
        self.is_nearly_full = False

    def after_write(self, pages: int) -> None:
        """Compare the length of the log, in pages, with the size of the file."""
        self._used = HEADER + pages * self._frame
        self.is_nearly_full = pages >= SHORT and self._used + MARGIN > self._size

    def grow(self) -> None:
        """Append zeros to the file if it is nearly full; called inside of a transaction."""
        self.is_nearly_full = False
        try:
            descriptor = os.open(self._path, os.O_WRONLY)
            try:
                self._size = os.fstat(descriptor).st_size
                if self._used + MARGIN > self._size:  # no other process has extended it
                    self._size += os.pwrite(descriptor, bytes(STEP), self._size)
            finally:
                os.close(descriptor)  # SQLite has no locks on this file that this would release
        except OSError:  # the disk is full, for example
            self._size = 1 << 62  # no further attempts


CHECKPOINT_PAGES = 1_000  # of the log since the last request
# SQLite cannot restart a log that is written without a pause. When it is this long, the writing thread runs the
# checkpoint itself; the checkpoint thread has left it little to copy.
OVERDUE_PAGES = 4_000


class Checkpointer:
    """Runs checkpoints in a thread of its own when the write-ahead log has grown."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._changed = Condition()  # guards everything below
        self._thread: Thread | None = None
        self._is_requested = False
        self._is_closed = False
        self._requested_at = 0

    def after_write(self, connection: apsw.Connection, pages: int) -> None:
        """Request a checkpoint if the log is long; the writer calls this after each commit."""
        if pages < self._requested_at:  # SQLite has restarted the log
            self._requested_at = 0
        if pages >= OVERDUE_PAGES:
            with suppress(apsw.Error):  # a reader or another checkpoint blocks it; the next commit retries
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
            # If another process runs a checkpoint or the disk is full, the log only stays longer.
            with suppress(apsw.Error), self._connections.dedicated("checkpoint") as connection:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
