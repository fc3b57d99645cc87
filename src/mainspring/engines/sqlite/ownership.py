"""Whose file it is: a lock beside a file that belongs to one process at a time.

The kernel frees the lock when its holder dies, however it dies. The lock file stays, and what is written in it
says that the file beside it is ours, even if that one cannot be read any more: so it may be thrown away.
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
except ImportError:  # Windows: there it is up to those who choose the paths
    fcntl = None


class Ownership:
    """The lock of one file. `path` is the file, `name` what people call it."""

    def __init__(self, path: str, *, name: str) -> None:
        self._path = f"{path}-lock"
        self._name = name
        self._descriptor: int | None = None
        _all.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process owns the file; a forked child does not."""
        return self._descriptor is not None

    def take(self) -> None:
        """Own the file, or say who does."""
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
        """Whether the file beside was ours at some time."""
        assert self._descriptor is not None, "not taken"
        return os.fstat(self._descriptor).st_size > 0

    def mark(self) -> None:
        """Write down that the file beside is ours, and who has it open."""
        assert self._descriptor is not None, "not taken"
        # As long as ever: the mark must not be gone for a moment.
        os.pwrite(self._descriptor, f"process {os.getpid()}".ljust(40).encode() + b"\n", 0)

    def release(self) -> None:
        """Let others have it, even if a forked child has not closed its copy of the descriptor yet."""
        if self._descriptor is not None and fcntl is not None:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor only: in a forked child, an unlock would take the lock from the parent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


_all: WeakSet[Ownership] = WeakSet()  # a fork concerns the whole process, so this is known to the whole process


def _release_after_fork() -> None:
    """In a forked child: let go, or the lock would outlive the parent."""
    for ownership in list(_all):
        ownership.forget()
    _all.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)
