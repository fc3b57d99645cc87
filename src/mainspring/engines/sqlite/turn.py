"""Taking turns: processes that write to one file queue up at a file lock, where the kernel serves them in order.

SQLite's own way to wait is to try again after a pause, and a process that commits without a break wins nearly
every time: one that wants the lock every 10 ms waited half a second for it, and here less than a millisecond.
SQLite's lock still decides who writes; this one only says whose turn it is. It is freed when its holder dies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from types import ModuleType

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: SQLite's own way must do
    fcntl = None


class Turn:
    """The turn of this process at one file. Callers take it one at a time."""

    def __init__(self, path: str, *, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._descriptor: int | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn and keep it while the block lasts; if it does not come in time, go on without."""
        is_taken = fcntl is not None and self._is_open() and self._take()
        try:
            yield
        finally:
            if is_taken and fcntl is not None and self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _is_open(self) -> bool:
        if self._descriptor is None:
            with suppress(OSError):  # then without: SQLite's own way of waiting must do
                self._descriptor = os.open(f"{self._path}-turn", os.O_CREAT | os.O_RDONLY, 0o666)
        return self._descriptor is not None

    def _take(self) -> bool:
        """Wait in line. The kernel knows no timeout, so if it takes longer a thread waits there on our behalf."""
        assert fcntl is not None
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        if _Waiting(self._descriptor).is_served(self._patience):
            return True
        self._descriptor = None  # the thread keeps waiting there, and gives back what it gets
        return False

    def close(self) -> None:
        """Close the lock file."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


class _Waiting:
    """A thread that waits for a lock on behalf of another that may lose patience."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._served = Event()
        self._claim = [None]  # whoever pops it decides: the waiting thread stays in line, or gives up
        Thread(target=self._wait, name="mainspring-turn", daemon=True).start()

    def is_served(self, patience: float) -> bool:
        """Wait; False if the time is over, and then the lock is given back as soon as it comes."""
        if self._served.wait(patience):
            return True
        try:
            self._claim.pop()
        except IndexError:  # it came at the last moment
            self._served.wait()
            return True
        return False

    def _wait(self) -> None:
        assert fcntl is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            self._claim.pop()
        except IndexError:
            os.close(self._descriptor)  # and with it the lock
            return
        self._served.set()
