"""A file lock that reserves a file for one process: `ProcessLock`.

It is a `flock` lock on a lock file, which is never deleted. The kernel frees the lock when the process that holds
it dies. The lock file contains a mark that Mainspring made the file beside it: such a file may be deleted even if
it cannot be read any more.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import ModuleType
from weakref import WeakSet

from mainspring.errors import EngineUnavailable

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # on Windows nothing is locked: the user must give each process a projection path of its own
    fcntl = None


class ProcessLock:
    """The lock that lets one process at a time use the file `path`. Errors call the file `name`.

    On Windows, it keeps no process out.
    """

    def __init__(self, path: str, *, name: str) -> None:
        self._path = f"{path}-lock"
        self._name = name
        self._descriptor: int | None = None
        _all.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock. A forked child does not hold the lock of its parent."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Acquire the lock without waiting; do nothing if this process holds it already.

        Raises `EngineUnavailable` if another process has it, or if the lock file cannot be opened or created.
        """
        if self._descriptor is not None:
            return
        try:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise EngineUnavailable(
                engine=self._name,
                reason=f"its lock file cannot be opened or created ({error})",
                remedy="name a file in a directory that exists and that this process may write to",
            ) from error
        try:
            self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        if self.is_marked:
            self.mark()

    def _lock(self, descriptor: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "another process"
            raise EngineUnavailable(
                engine=self._name,
                reason=f"{holder} has it open, and it serves one process at a time",
                remedy="give each process a path of its own, with projection= in its URL",
            ) from error

    @property
    def is_marked(self) -> bool:
        """Whether the lock file has the mark by which Mainspring says that it has made the file beside it.

        The lock must be held.
        """
        assert self._descriptor is not None, "not acquired"
        return os.fstat(self._descriptor).st_size > 0

    def mark(self) -> None:
        """Write the mark that Mainspring made the file beside it into the lock file, with the id of this process.

        The lock must be held.
        """
        assert self._descriptor is not None, "not acquired"
        # Overwritten in place and always of the same length: the mark must never be missing, even for a moment.
        os.pwrite(self._descriptor, f"process {os.getpid()}".ljust(40).encode() + b"\n", 0)

    def release(self) -> None:
        """Release the lock if it is held, even if a forked child has not closed its copy of the descriptor yet."""
        if self._descriptor is not None and fcntl is not None:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the lock file without unlocking it: in a forked child, an unlock would free the parent's lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


_all: WeakSet[ProcessLock] = WeakSet()  # global, because a fork affects the whole process


def _release_after_fork() -> None:
    """Close the inherited lock files in a forked child. Otherwise the child would keep the parent's lock."""
    for lock in list(_all):
        lock.forget()
    _all.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)
