"""Names the process that holds the lock for writing to a SQLite file, as the Linux kernel lists it.

While a process writes, it has a POSIX lock on one byte of `-shm`. Processes with Mainspring also have a `flock`
lock on `-turn`, and wait for it before that. On other systems, the holder is not known.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LOCKS = Path("/proc/locks")
WRITER_BYTE = "120"  # of `-shm`; see "WAL-Index File Format" of SQLite


def find_holder(path: str) -> str:
    """Return the process that holds the lock for writing, as a part of a sentence. It may not be known."""
    pid = _find_pid(path)
    if pid is None:
        return "another process or connection"
    if pid == os.getpid():
        return "another connection of this process"
    name = ""
    with suppress(OSError):  # the process has ended, or may not be seen
        name = f" ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    return f"process {pid}{name}"


def _find_pid(path: str) -> int | None:
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return None
    return _pid_of(lines, f"{path}-shm", "POSIX", WRITER_BYTE) or _pid_of(lines, f"{path}-turn", "FLOCK", "0")


def _pid_of(lines: list[str], path: str, kind: str, first_byte: str) -> int | None:
    """Return the process that has a lock for writing on a byte of a file; None if there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        fields = line.split()  # "12: POSIX ADVISORY WRITE 1011 00:1b:555295 120 120"; "->" in waiting processes
        if fields[1:2] == [kind] and fields[3] == "WRITE" and fields[5:7] == [file, first_byte]:
            pid = int(fields[4])
            return pid if pid > 0 else None  # 0 or less: a process outside of this container
    return None
