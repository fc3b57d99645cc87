"""Where a SQLite store is: who may write there, how much room there is, and what a durable write costs."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from mainspring.clock import NANOSECONDS, Clock
from mainspring.doctor.findings import Finding, error, info, ok, warning
from mainspring.doctor.words import in_bytes, in_seconds, some

SYNCS = 11
PATIENCE = 0.5  # seconds after which there are enough of them
TOO_QUICK = 20e-6
TOO_SLOW = 50e-3
PAGE = 4_096
NO_ROOM = 64 << 20
LITTLE_ROOM = 512 << 20
FEW_INODES = 1_000


def check_permissions(path: Path) -> Iterator[Finding]:
    """Judge who may write to a store, to its log, and to the locks and pipes of its workers."""
    me = os.geteuid()
    beside = _there(path.with_name(path.name + ending) for ending in ("", "-wal", "-shm", "-workers"))
    locked = [found for found in (path.parent, *beside) if not _may_write(found)]
    owners = beside | _there(_inside(path.with_name(f"{path.name}-workers")))
    strangers = [found for found, uid in owners.items() if uid != owners.get(path, uid)]
    open_to_all = [found for found in (path.parent, path) if found.exists() and _is_open_to_all(found)]
    if locked:
        yield error(
            f"user {me} may not write to {some([str(found) for found in locked])}",
            "Submits and workers of this user fail: SQLite writes to the file, to its log and to the folder.",
            f"Give it the right (chown {me}, or a common group), or run as the user who owns the file.",
        )
    if strangers:
        yield warning(
            f"{some([found.name for found in strangers])} beside it have another owner than the store",
            "Whoever made them may be the only one who can write there. A worker whose files others cannot "
            "open is not woken by them, and its death is noticed after 45 s, not at once.",
            "Let all processes of a store run as the same user.",
        )
    if open_to_all:
        yield warning(
            f"everybody on this machine may write to {some([str(found) for found in open_to_all])}",
            "Whoever can write there can let your handlers run with any arguments, or delete the store.",
            f"chmod o-w {' '.join(str(found) for found in open_to_all)}",
        )
    if not (locked or strangers or open_to_all):
        yield ok(f"user {me} may write to the store, and not everybody may")


def _there(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the owners of those files that are there: a worker may leave while we look."""
    found: dict[Path, int] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_uid
    return found


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK) else []


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0))


def _is_open_to_all(path: Path) -> bool:
    mode = path.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not (path.is_dir() and mode & stat.S_ISVTX)


def check_disk(path: Path, free: int, inodes: int | None) -> Finding:
    """Judge whether there is enough room for a store to go on."""
    size = path.stat().st_size if path.exists() else 0
    reason = "On a full disk every submit fails, and no outcome of a job can be stored."
    remedy = "Make room, or move the store; Keep(completed=...) lets jobs that have ended go sooner."
    if free < NO_ROOM or (inodes is not None and inodes < FEW_INODES):
        left = in_bytes(free) if free < NO_ROOM else f"room for {inodes} more files"
        return error(f"there is hardly any room left at {path.parent}: {left}", reason, remedy)
    if free < LITTLE_ROOM or free < size:
        return warning(
            f"only {in_bytes(free)} are free at {path.parent}, and the store has {in_bytes(size)}",
            f"{reason} A backup or an upgrade of its schema needs as much room as the store has.",
            remedy,
        )
    return ok(f"{in_bytes(free)} are free at {path.parent}, and the store has {in_bytes(size)}")


def room_at(folder: Path) -> tuple[int, int | None]:
    """Return how many bytes and how many files there is room for; None where files are not counted."""
    inodes: int | None = None
    if hasattr(os, "statvfs"):
        found = os.statvfs(folder)
        inodes = found.f_favail if found.f_files else None
    return shutil.disk_usage(folder).free, inodes


def measure_sync(folder: Path, clock: Clock, sync: Callable[[int], None] = os.fsync) -> float:
    """Return how many seconds it takes until a page is on the disk, in a file of its own that is removed again."""
    seconds: list[float] = []
    with tempfile.TemporaryFile(dir=folder, prefix=".mainspring-doctor-", buffering=0) as file:
        while len(seconds) < SYNCS and sum(seconds) < PATIENCE:
            file.write(b"\0" * PAGE)
            before = clock.monotonic_ns()
            sync(file.fileno())
            seconds.append((clock.monotonic_ns() - before) / NANOSECONDS)
    return median(seconds)


def check_sync(seconds: float, durability: str | None) -> Finding:
    """Judge whether the disk keeps what it confirms, and how long that takes."""
    took = in_seconds(seconds)
    if seconds < TOO_QUICK:
        return warning(
            f"the disk confirms a write in {took}, which no disk can do",
            "Something between here and the disk ignores fsync: a file system in memory, a virtual disk with "
            "an unsafe cache, a library such as eatmydata. After a power failure jobs that were confirmed may "
            "be gone.",
            "Put the store on a disk that syncs.",
        )
    if seconds > TOO_SLOW and durability != "normal":
        return warning(
            f"it takes {took} until a write is on the disk",
            "Each commit waits for it: a submit, the outcomes of jobs. All that come meanwhile share the next "
            "one.",
            "Use a faster disk; or Mainspring(durability='normal'), if the last jobs may be lost in a power "
            "failure.",
        )
    return ok(f"a write is on the disk after {took}")


def check_durability(durability: str) -> Finding:
    """Say what a commit is worth."""
    if durability == "full":
        return ok("a job is on the disk when its submit returns (durability='full')")
    return info(
        f"commits do not wait for the disk (durability={durability!r})",
        "After a power failure the last of the jobs that were confirmed, and of the outcomes, may be gone; "
        "after the crash of a process nothing is.",
        "If each of them counts: Mainspring(durability='full').",
    )
