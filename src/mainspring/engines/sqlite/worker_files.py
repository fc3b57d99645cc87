"""Files of workers beside the store: a lock file that shows that a worker is alive, and a pipe that wakes it.

Each worker holds a lock on a file that is named after its number. The kernel frees the lock when the process dies,
so other workers can rescue the jobs of the dead worker at once. A byte that is written into the named pipe of a
worker wakes the worker. A pipe is used instead of a socket, because the path of a socket must be short. On systems
without file locks and named pipes, workers rely on heartbeats and poll once a second, so they react later.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import RLock, Thread
from types import ModuleType
from typing import Protocol
from weakref import WeakSet

from mainspring.engines.sqlite.file_modes import OWNER, create_folder, open_file, share_with_group

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # on Windows, workers only have heartbeats
    fcntl = None

POLL_SECONDS = 1.0


class WorkerFiles:
    """The folder with the lock files and pipes of the workers of one store."""

    def __init__(self, path: str) -> None:
        self._folder = Path(f"{path}-workers")
        self._locks: dict[int, int] = {}  # descriptors, by worker
        self._lock = RLock()  # guards the following attributes; re-entrant: a signal handler may close the store
        self._pipes: dict[str, int] = {}  # descriptors, by file name
        self._listed_at: int | None = None  # modification time of the folder when its pipes were listed
        self._version: int | None = None  # version of the store when the folder was last examined
        _all.add(self)

    # -- locks

    def acquire(self, worker: int) -> None:
        """Create the lock file of a new worker and lock it; the kernel frees the lock when this process ends.

        On Windows, do nothing.
        """
        if fcntl is None:
            return
        descriptor = self._create(self._lock_path(worker))
        self._locks[worker] = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock is free, because the number is new

    def _create(self, path: Path) -> int:
        while True:
            create_folder(self._folder)
            with suppress(FileNotFoundError):  # the last worker to leave has just removed the folder
                return open_file(path, os.O_RDWR)

    def release(self, worker: int) -> None:
        """Release the lock of a worker and remove its files."""
        descriptor = self._locks.pop(worker, None)
        self.remove(worker)
        if descriptor is not None:
            os.close(descriptor)

    def is_dead(self, worker: int) -> bool:
        """Return whether no process holds the lock of a worker, so that it is dead; False if this is unknown."""
        if fcntl is None or worker in self._locks:
            return False
        path = self._lock_path(worker)
        try:
            descriptor = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
        except OSError:  # a dead worker leaves its lock file behind; without the file, nothing is known
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def has_lock_file(self, worker: int) -> bool:
        """Return whether the lock file of a worker exists here. A worker on another machine may have none here."""
        return self._lock_path(worker).exists()

    def remove(self, worker: int) -> None:
        """Remove the files of a worker that has left or died, and the folder if it is empty then."""
        for path in (self._lock_path(worker), self._pipe_path(worker)):
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):
            self._folder.rmdir()

    def release_after_fork(self) -> None:
        """Close the lock files and pipes that a forked child has inherited from its parent.

        An open lock file would keep the lock of the parent held after the death of the parent.
        """
        for descriptor in (*self._locks.values(), *self._pipes.values()):
            with suppress(OSError):
                os.close(descriptor)
        self._locks.clear()
        self._pipes.clear()

    # -- wake-up pipes

    def make_pipe(self, worker: int) -> int | None:
        """Create and open the pipe that wakes a worker; return its descriptor, None if it cannot be created."""
        path = self._pipe_path(worker)
        try:
            os.mkfifo(path, OWNER)
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            share_with_group(path, descriptor)
            return descriptor
        except (OSError, AttributeError):
            return None

    def wake_others(self, version: int) -> None:
        """Wake the workers of other processes: write a byte into the pipe of each of these workers.

        `version` is the version of the store in the unit that has ended. A worker that enrolls or leaves writes to
        the store. So the folder has the same pipes as long as the version is the same.
        """
        with self._lock:
            if version != self._version:
                self._open_new_pipes()
                self._version = version
            for name, descriptor in list(self._pipes.items()):
                try:
                    os.write(descriptor, b"!")
                except BlockingIOError:
                    pass  # the pipe is full, so the worker will wake anyway
                except OSError:
                    self._close_pipe(name)

    def _open_new_pipes(self) -> None:
        try:
            changed_at = self._folder.stat().st_mtime_ns
        except OSError:
            changed_at = None
        if changed_at == self._listed_at:
            return
        self._listed_at = changed_at
        names = {path.name for path in self._folder.glob("*.wake")} if changed_at is not None else set()
        names -= {self._pipe_path(worker).name for worker in self._locks}
        for name in self._pipes.keys() - names:
            self._close_pipe(name)
        for name in names - self._pipes.keys():
            with suppress(OSError):  # the worker has left
                # The pipe is also opened for reading. So it can be opened before the worker opens it, and a write
                # never causes a SIGPIPE.
                self._pipes[name] = os.open(self._folder / name, os.O_RDWR | os.O_NONBLOCK)

    def _close_pipe(self, name: str) -> None:
        descriptor = self._pipes.pop(name)
        with suppress(OSError):
            os.close(descriptor)

    def close(self) -> None:
        """Close all files. Workers of this process whose locks were not released count as dead from now on."""
        with self._lock:
            for name in list(self._pipes):
                self._close_pipe(name)
            self._listed_at = self._version = None
        while self._locks:  # one by one, because `release` may run meanwhile; a later sweep removes the files
            os.close(self._locks.popitem()[1])

    def _lock_path(self, worker: int) -> Path:
        return self._folder / f"{worker}.lock"

    def _pipe_path(self, worker: int) -> Path:
        return self._folder / f"{worker}.wake"


_all: WeakSet[WorkerFiles] = WeakSet()  # global, because a fork affects the whole process


def _release_after_fork() -> None:
    for files in list(_all):
        files.release_after_fork()
    _all.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)


class ChangeDetector(Protocol):
    """Detects writes to a file by other connections, of this process or others."""

    def has_changed(self) -> bool:
        """Return True if another connection has written to the file since the last call, and at the first call."""


class WakeupListener:
    """A thread that calls `wake` when the pipe receives a byte, or when the file has changed.

    The thread checks once a second whether the file has changed.
    """

    def __init__(self, pipe: int | None, changes: ChangeDetector, wake: Callable[[], None], *, name: str) -> None:
        self._pipe = pipe
        self._changes = changes
        self._wake = wake
        self._stop_reading, self._stop_writing = os.pipe()
        self._thread = Thread(target=self._listen, name=name, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        waiting = select.poll()
        waiting.register(self._stop_reading, select.POLLIN)
        if self._pipe is not None:
            waiting.register(self._pipe, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll(POLL_SECONDS * 1_000)}
            if self._stop_reading in ready:
                return
            if self._pipe in ready and self._pipe is not None:
                with suppress(OSError):
                    os.read(self._pipe, 65_536)
                self._wake()
            elif self._changes.has_changed():
                self._wake()

    def close(self) -> None:
        """End the listening thread, wait for it, and close the pipe."""
        os.write(self._stop_writing, b"!")
        self._thread.join()
        for descriptor in (self._stop_reading, self._stop_writing, self._pipe):
            if descriptor is not None:
                os.close(descriptor)
