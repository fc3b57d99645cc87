"""Checkpoints beside the work: a thread of its own folds the log into the file, so that commits need not wait."""

from __future__ import annotations

from contextlib import suppress
from threading import Condition, Thread

import apsw

from mainspring.engines.sqlite.connections import Lender

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
