"""Health files: one small file for each worker, rewritten about once a second and removed at a clean end.

A file names the process and the time when it was started. So a reader can tell a killed process from another one
that was given the same process id. Times in it are those of the monotonic clock, which all processes since the
last boot share, so that setting the wall clock has no effect.

The folder is `mainspring-<uid>` in a place that the user chooses, or in one that all users share. There another
user may already have created the folder, or a link in its place. So it is used only if it belongs to this user and
no other user has access to it. All files in it are opened relative to its descriptor, never by a path, which could
change meanwhile.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path

import msgspec

from mainspring.worker_health import WorkerHealth

ENDED_STATES = "ZX"  # states of a process that has ended, but was not reaped by its parent


def process_start(pid: int) -> str | None:
    """Return the start time of a process in the kernel's clock ticks.

    Return "" if there is no such process or it has ended; None if it exists and this system does not provide its
    start time.
    """
    if not Path("/proc/self/stat").exists():
        return None if _exists(pid) else ""
    try:
        # The name of the program is in parentheses, and may contain parentheses itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ENDED_STATES else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


FOLDER_VARIABLE = "MAINSPRING_HEALTH_DIR"
PRIVATE_MODE = 0o700


class FolderUnsafe(OSError):
    """The folder of health files belongs to another user, or other users have access to it, so it is not used."""


def choose_folder(given: str | None, environment: Mapping[str, str]) -> Path:
    """Return the path of the folder for health files: `mainspring-<uid>`, which is different for each user.

    It is below `given`, else below the folder that the environment names, else below that for temporary files.
    """
    place = (
        given or environment.get(FOLDER_VARIABLE) or environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    )
    return Path(place).absolute() / f"mainspring-{os.getuid()}"


@contextmanager
def opened_folder(folder: Path, *, create: bool = False) -> Iterator[int]:
    """Open the folder of health files for a `with` block, and yield its descriptor; with `create`, make it first.

    Raises `OSError` if the folder is missing, is a link, or cannot be opened or created; `FolderUnsafe`, which is
    an `OSError`, if it is not private to this user.
    """
    if create:
        with suppress(FileExistsError):
            folder.mkdir(PRIVATE_MODE, parents=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _require_private(os.fstat(descriptor), folder)
        yield descriptor
    finally:
        os.close(descriptor)


def _require_private(found: os.stat_result, folder: Path) -> None:
    if found.st_uid != os.getuid():
        raise FolderUnsafe(f"{folder} belongs to user {found.st_uid}; name another folder: {FOLDER_VARIABLE}=...")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise FolderUnsafe(f"{folder} is open to other users; remove it, or: chmod 700 {shlex.quote(str(folder))}")


SUFFIX = ".worker.json"
MAX_BYTES = 65_536
_numbers = count(1)  # the number of the next worker of this process


class WorkerIdentity(msgspec.Struct, frozen=True):
    """Identifies one worker: its process, its store and its number in the process."""

    pid: int
    start: str | None
    """The start time of the worker's process in the kernel's clock ticks; None if it is unknown."""
    number: int
    engine: str
    store: str
    since: datetime

    @classmethod
    def of_this_process(cls, engine: str, store: str, since: datetime) -> WorkerIdentity:
        """Return the identity of a new worker of this process, with the next number in the process."""
        pid = os.getpid()
        return cls(pid, process_start(pid), next(_numbers), engine, store, since)


class HealthRecord(msgspec.Struct, frozen=True):
    """The content of a health file."""

    worker: WorkerIdentity
    health: WorkerHealth

    @property
    def is_stale(self) -> bool:
        """Whether the file is left over: the worker's process has ended without removing it."""
        return process_start(self.worker.pid) != self.worker.start


_decode = msgspec.json.Decoder(HealthRecord).decode


class HealthFile:
    """The health file of one worker, in a folder that is private to the user."""

    def __init__(self, folder: Path, identity: WorkerIdentity) -> None:
        self.folder = folder
        self.identity = identity
        self._name = f"{identity.pid}-{identity.number}{SUFFIX}"

    def write(self, health: WorkerHealth) -> None:
        """Replace the content of the health file atomically: a reader sees the old or the new content.

        Raises `OSError` if the folder cannot be used.
        """
        data = msgspec.json.encode(HealthRecord(self.identity, health))
        draft = f".{self._name}.new"
        with opened_folder(self.folder, create=True) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as file:
                file.write(data)
            os.replace(draft, self._name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self) -> None:
        """Remove the health file; do nothing if it or its folder cannot be used."""
        with suppress(OSError), opened_folder(self.folder) as folder:
            os.unlink(self._name, dir_fd=folder)


def read_health_files(folder: Path) -> list[HealthRecord]:
    """Return the content of all health files, also of dead workers; an empty list if there is no folder.

    Files that cannot be read are left out. Raises `OSError` if the folder cannot be used.
    """
    try:
        with opened_folder(folder) as descriptor:
            return [record for _, record in _read_all(descriptor)]
    except FileNotFoundError:
        return []


def remove_stale_files(folder: Path) -> None:
    """Remove the health files of workers whose process has ended; do nothing if there is no folder.

    A worker calls it when it starts. Raises `OSError` if the folder cannot be used.
    """
    with suppress(FileNotFoundError), opened_folder(folder) as descriptor:
        for name, record in _read_all(descriptor):
            if record.is_stale:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)


def _read_all(folder: int) -> Iterator[tuple[str, HealthRecord]]:
    for name in sorted(os.listdir(folder)):
        if name.endswith(SUFFIX) and not name.startswith("."):
            # the file was removed meanwhile, or is not a health file
            with suppress(OSError, msgspec.MsgspecError):
                yield name, _read(name, folder)


def _read(name: str, folder: int) -> HealthRecord:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        return _decode(os.read(descriptor, MAX_BYTES))
    finally:
        os.close(descriptor)
