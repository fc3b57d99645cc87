"""File locks: `WriteLock` orders the writers of a store, `ProcessLock` reserves a file for one process.

Both are `flock` locks on lock files, which stay. The kernel frees a lock when its holder dies, however it dies.

Processes that write to one file queue for a `WriteLock`, which the kernel grants in order. SQLite itself waits by
retrying after a pause, so a process that commits without a break wins nearly every time: a process that wanted the
lock every 10 ms waited half a second for it, and less than a millisecond with the file lock. SQLite's lock still
protects the file; the file lock only orders the writers.

The content of the lock file of a `ProcessLock` is the mark that Mainspring made the file beside it: a marked file
may be deleted even if it cannot be read any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from types import ModuleType
from weakref import WeakSet

from mainspring.errors import EngineUnavailable

fcntl: ModuleType | None
try:
    import fcntl
except (
    ImportError
):  # Windows: writers wait by SQLite's retries, and each process needs a projection path of its own
    fcntl = None


class WriteLock:
    """The lock for which the writers of one file queue. One thread of a process uses it at a time."""

    def __init__(self, path: str, *, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._descriptor: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the file lock during the block; if it is not granted in time, run the block without it."""
        is_acquired = fcntl is not None and self._has_file() and self._acquire()
        try:
            yield
        finally:
            if is_acquired and fcntl is not None and self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _has_file(self) -> bool:
        if self._descriptor is None:
            with suppress(OSError):  # no file lock then: the writer waits by SQLite's retries
                self._descriptor = os.open(f"{self._path}-turn", os.O_CREAT | os.O_RDONLY, 0o666)
        return self._descriptor is not None

    def _acquire(self) -> bool:
        """Wait for the file lock. `flock` has no timeout, so a helper thread waits if the lock is not free."""
        assert fcntl is not None
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        if _LockWaiter(self._descriptor).wait_acquired(self._timeout):
            return True
        self._descriptor = None  # the helper thread keeps waiting on it, and then frees the lock
        return False

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
        Thread(target=self._wait, name="mainspring-write-lock", daemon=True).start()

    def wait_acquired(self, timeout: float) -> bool:
        """Wait for the lock. Return False after a timeout; the helper then frees it as soon as it gets it."""
        if self._acquired.wait(timeout):
            return True
        try:
            self._claim.pop()
        except IndexError:  # the helper got the lock at the last moment
            self._acquired.wait()
            return True
        return False

    def _wait(self) -> None:
        assert fcntl is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            self._claim.pop()
        except IndexError:
            os.close(self._descriptor)  # this frees the lock
            return
        self._acquired.set()


class ProcessLock:
    """The lock that lets one process at a time use a file. `path` is that file, `name` its name in errors."""

    def __init__(self, path: str, *, name: str) -> None:
        self._path = f"{path}-lock"
        self._name = name
        self._descriptor: int | None = None
        _all.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock; a forked child does not."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Acquire the lock; raise `EngineUnavailable`, with the holder, if another process has it."""
        if self._descriptor is not None:
            return
        try:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise EngineUnavailable(
                engine=self._name,
                reason=f"its lock cannot be made ({error})",
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
                remedy="give each process a path of its own",
            ) from error

    @property
    def is_marked(self) -> bool:
        """Whether the lock file has the mark that Mainspring made the file beside it."""
        assert self._descriptor is not None, "not acquired"
        return os.fstat(self._descriptor).st_size > 0

    def mark(self) -> None:
        """Write the mark, with the id of this process as the holder."""
        assert self._descriptor is not None, "not acquired"
        # Overwritten in place and always of the same length: the mark must never be missing, even for a moment.
        os.pwrite(self._descriptor, f"process {os.getpid()}".ljust(40).encode() + b"\n", 0)

    def release(self) -> None:
        """Release the lock, even if a forked child has not closed its copy of the descriptor yet."""
        if self._descriptor is not None and fcntl is not None:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor without unlocking: in a forked child, an unlock would free the parent's lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


_all: WeakSet[ProcessLock] = WeakSet()  # global, because a fork affects the whole process


def _release_after_fork() -> None:
    """Close the inherited descriptors in a forked child; otherwise the lock would outlive the parent."""
    for lock in list(_all):
        lock.forget()
    _all.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)
