"""Creates the files of a store so that other users of the machine cannot read them.

A new file belongs to its owner (mode 0600). If the folder belongs to a group whose members share files in it, the
group may read and write the file, too (0660): the folder is setgid or writable for its group, and the file has the
same group. The umask does not matter. A file that exists keeps its mode. SQLite gives `-wal` and `-shm` the mode
of the database.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from threading import Lock

OWNER = 0o600
GROUP = 0o660
SHARING = stat.S_ISGID | stat.S_IWGRP


# Held while this process has a descriptor of a new file. Every thread calls `create_file` before it lets SQLite
# open a file. So no thread has locks of SQLite on the file that the close of this descriptor would drop.
_creating = Lock()


def create_file(path: Path) -> None:
    """Create an empty file; do nothing if the file exists or cannot be created."""
    with _creating, suppress(OSError):  # the next call, which opens the file, reports the problem
        os.close(_create(path, os.O_WRONLY))


def open_file(path: Path, flags: int) -> int:
    """Open a file and return its descriptor; create the file if it does not exist."""
    try:
        return _create(path, flags)
    except FileExistsError:
        return os.open(path, flags)


def _create(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, OWNER)
    try:
        share_with_group(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_folder(path: Path) -> None:
    """Create a folder; do nothing if it exists."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        if _is_shared(path.parent, path.stat()):
            path.chmod(path.stat().st_mode | 0o070)


def share_with_group(path: Path, descriptor: int) -> None:
    """Let the group read and write a file that was just created, if its folder is shared by this group."""
    if hasattr(os, "fchmod") and _is_shared(path.parent, os.fstat(descriptor)):
        os.fchmod(descriptor, GROUP)


def _is_shared(folder: Path, file: os.stat_result) -> bool:
    found = folder.stat()
    return bool(found.st_mode & SHARING) and found.st_gid == file.st_gid
