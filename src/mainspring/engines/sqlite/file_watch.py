"""Notices that the files of a store were removed, replaced, renamed or truncated while this process uses them.

A process that has a file open goes on reading and writing it after `rm` and `mv`. What it stores then is lost, or
is in a file that no other process reads. So the files at the paths are compared with those that were opened.

Invariants
- The path of the database is compared after each commit, before the caller learns that the commit has succeeded.
  So a call that returns has stored its jobs in the file that was at the path at that time.
- The log, its index and the sizes are compared at the first write or read after `CHECK_NS`, and so at each
  heartbeat. Neither the database nor the log may be shorter than SQLite has made it.
- The first difference is final: from then on every call raises `StoreReplaced`, also if the file comes back.
- This module opens no file: see `docs/decisions/086-only-sqlite-opens-its-files.md`.
"""

from __future__ import annotations

import logging
import os
from array import array
from pathlib import Path
from threading import Lock
from typing import NamedTuple, NoReturn

import apsw

from mainspring.clock import Clock
from mainspring.engines.sqlite.log_file import FRAME_HEADER, HEADER
from mainspring.errors import StoreReplaced

CHECK_NS = 50_000_000
OTHER_FILE = "another file has taken the place of the one that this process uses"
HAS_MOVED = apsw.SQLITE_FCNTL_HAS_MOVED

logger = logging.getLogger("mainspring.sqlite")


class FileIdentity(NamedTuple):
    """What distinguishes a file from another one at the same path."""

    device: int
    inode: int


class FileWatch:
    """Compares the files at the paths of one store with those that this process has opened.

    The thread that writes calls `opened`, `check_begin` and `check_commit`; any thread calls the other methods.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = Path(path)
        self._log = Path(f"{path}-wal")
        self._now = clock.monotonic_ns
        self._file: FileIdentity | None = None
        self._beside: dict[Path, FileIdentity] = {}  # the log and its index
        self._frame = 0  # bytes of a page in the log
        self._problem: str | None = None
        self._moved = array("i", [0])  # SQLite writes 1 here if the path does not have the file of the connection
        self._moved_address = self._moved.buffer_info()[0]
        self._lock = Lock()  # guards the following attributes
        self._next_check = 0
        self._size = 0  # of the file, when it was last compared
        self._changes = 0  # the file's change counter then

    def begin(self) -> None:
        """Remember the file at the path, which this process has just opened.

        If it was replaced since, the first commit notices it. It is not remembered before it is open, because a
        file in a lower layer of a container may get another identity when it is opened for writing.
        """
        self._beside, self._problem = {}, None
        self._size = self._changes = self._next_check = 0
        self._file = _identity(self._find(self._path))

    def opened(self, writer: apsw.Connection) -> None:
        """Remember the log and its index, which stay as long as the writing connection is open."""
        self._frame = FRAME_HEADER + int(writer.pragma("page_size"))
        index = Path(f"{self._path}-shm")
        self._beside = {path: _identity(self._find(path)) for path in (self._log, index)}
        self._next_check = 0

    def closed(self) -> None:
        """Forget the log and its index, because SQLite removes them with the last connection to the file."""
        self._beside = {}

    def require_same(self) -> None:
        """Raise `StoreReplaced` if a difference was found before."""
        if self._problem is not None:
            raise StoreReplaced(
                engine=f"SQLite file {self._path}",
                reason=self._problem,
                remedy="put the right file in its place, and restart this process; nothing was stored since",
            )

    def check_begin(self, writer: apsw.Connection) -> None:
        """Raise `StoreReplaced` if a file was replaced or truncated. Must be called outside of a transaction.

        A commit would extend a truncated log again, so this is checked before.
        """
        if self._problem is not None or self._now() >= self._next_check:
            self.require_same()
            self._check_log(writer)
            self._check_content(writer)

    def check_commit(self, writer: apsw.Connection) -> None:
        """Raise `StoreReplaced` if the last commit is not in the file at the path."""
        writer.file_control("main", HAS_MOVED, self._moved_address)
        if self._moved[0]:
            self._find(self._path)
            self._fail(OTHER_FILE)

    def check_path(self) -> None:
        """Raise `StoreReplaced` if the path has another file, unless it was compared just now."""
        if self._problem is not None or self._now() >= self._next_check:
            self.require_same()
            self._find_file()

    def check_read(self, connection: apsw.Connection) -> None:
        """Raise `StoreReplaced` if the path has another file than this process has opened, or a shorter one."""
        if self._problem is not None or self._now() >= self._next_check:
            self.require_same()
            self._check_content(connection)

    def _find_file(self) -> os.stat_result:
        found = self._find(self._path)
        if _identity(found) != self._file:
            self._fail(OTHER_FILE)
        return found

    def _find(self, path: Path) -> os.stat_result:
        try:
            return path.stat()
        except FileNotFoundError:
            name = "the file" if path == self._path else str(path)
            self._fail(f"{name} was removed or renamed while this process used it")

    def _check_log(self, writer: apsw.Connection) -> None:
        for path, identity in self._beside.items():
            if _identity(self._find(path)) != identity:
                self._fail(f"another file has taken the place of {path}")
        # Another program may empty the log between the two readings. Then the second time both are new.
        if self._is_log_short(writer) and self._is_log_short(writer):
            self._fail(f"{self._log} was truncated while this process used it")

    def _is_log_short(self, writer: apsw.Connection) -> bool:
        """Return whether the log has fewer bytes than SQLite has written to it."""
        pages, _ = writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return pages > 0 and self._find(self._log).st_size < HEADER + pages * self._frame

    def _check_content(self, connection: apsw.Connection) -> None:
        """Raise `StoreReplaced` if the file was truncated, or if an older copy was written over it.

        A `VACUUM` of another program also makes the file shorter. Then the header has the new size.
        """
        with self._lock:
            self._next_check = self._now() + CHECK_NS
            before = self._size, self._changes
            problem = None
            for _ in range(2):  # the second time, a change that came between the two readings is over
                size = self._find_file().st_size
                header = _Header.read(connection)
                problem = header.find_problem(size, *before)
                if problem is None:
                    self._size, self._changes = size, header.changes
                    return
        assert problem is not None
        self._fail(problem)

    def _fail(self, problem: str) -> NoReturn:
        if self._problem is None:
            self._problem = problem
            logger.error(
                "SQLite file %s: %s; this process stores nothing any more, and must be restarted",
                self._path,
                problem,
            )
        self.require_same()
        raise AssertionError("unreachable")


class _Header(NamedTuple):
    """The part of the header of a SQLite file that shows whether the file is complete."""

    size: int
    """The size of the file after the last checkpoint. While a checkpoint runs, the file may be shorter."""
    changes: int
    """A counter that no writer lowers. A copy by `VACUUM INTO` begins with 1."""

    @classmethod
    def read(cls, connection: apsw.Connection) -> _Header:
        is_complete, header = connection.read("main", 0, 0, 32)
        if not is_complete:
            return cls(1, 0)
        page_size = int.from_bytes(header[16:18])
        pages = int.from_bytes(header[28:32])
        return cls(pages * (65_536 if page_size == 1 else page_size), int.from_bytes(header[24:28]))

    def find_problem(self, size: int, size_before: int, changes_before: int) -> str | None:
        """Compare the header and the size of the file with those of the last time."""
        if size < size_before and size < self.size:
            return f"the file was truncated to {size:,} bytes; this process has seen {size_before:,}"
        if self.changes < changes_before:
            return "an older copy was written over the file while this process used it"
        return None


def _identity(found: os.stat_result) -> FileIdentity:
    return FileIdentity(found.st_dev, found.st_ino)
