"""Checks the location of a SQLite file: file system, permissions, free space, and the duration of an fsync."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from mainspring.clock import NANOSECONDS, Clock
from mainspring.doctor.findings import Finding, error, in_bytes, in_seconds, info, ok, some, warning
from mainspring.engines.sqlite.read_only import may_write, user_name, write_remedy

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "drvfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4"),
    *("prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
    *("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    "fuse.vmhgfs-fuse",
}
"""File systems to which other machines, or the host of a virtual one, can write, too.

SQLite's write-ahead log needs memory that all processes share, which they do not have across machines."""
TEMPORARY = {
    "tmpfs": "memory",
    "ramfs": "memory",
    "overlay": "a layer of a container",
    "aufs": "a layer of a container",
}
_ESCAPED = re.compile(r"\\([0-7]{3})")


def type_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that a path is on; None if no mount in `mounts` contains the path.

    `mounts` is the content of the kernel's mount table.
    """
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        depth = len(point.parts)
        if path.is_relative_to(point) and (best is None or depth >= best[0]):  # a later mount hides an earlier one
            best = (depth, after.split(" ")[0])
    return None if best is None else best[1]


def check_file_system(folder: Path, mounts: str | None) -> Finding:
    """Report an error if a folder is on a network file system, and a warning if it is on a temporary one or FUSE.

    `mounts` is the content of the kernel's mount table; None if there is none.
    """
    kind = None if mounts is None else type_of(folder, mounts)
    if kind is None:
        return info(
            f"it is unknown which file system {folder} is on",
            "SQLite needs a local file system: on a network share its locks and its log do not work.",
            "Make sure that the folder is on a local disk.",
        )
    if kind in NETWORK:
        return error(
            f"{folder} is on {kind}, to which other machines or the host of this one can write, too",
            "Locks and the write-ahead log need memory that all processes share. There jobs may run twice, and "
            "the file may be damaged.",
            "Put the file on a local disk; for workers on several machines use nats://.",
        )
    if kind in TEMPORARY:
        return warning(
            f"{folder} is on {kind}: {TEMPORARY[kind]}",
            "Everything stored there is lost with the next restart of the machine or the container.",
            "Put the file on a disk, in a container on a volume.",
        )
    if kind.startswith("fuse"):
        return warning(
            f"{folder} is on {kind}",
            "Not every FUSE file system has the locks and the shared memory that SQLite needs.",
            "Put the file on ext4, XFS, btrfs, ZFS or another file system of the kernel.",
        )
    return ok(f"{folder} is on {kind}")


SYNCS = 11
MAX_SECONDS = 0.5  # after this many seconds no further fsync is measured
TOO_QUICK = 20e-6
TOO_SLOW = 50e-3
PAGE = 4_096
NO_ROOM = 64 << 20
LITTLE_ROOM = 512 << 20
FEW_INODES = 1_000


def check_permissions(path: Path) -> Iterator[Finding]:
    """Report an error if this user may not write to the store and the files beside it.

    Warn if files have different owners, or if all users of the machine may read the store or write to it.
    """
    me = user_name()
    beside = _owners_of_existing(path.with_name(path.name + ending) for ending in ("", "-wal", "-shm", "-workers"))
    locked = [found for found in (path.parent, *beside) if not may_write(found)]
    owners = beside | _owners_of_existing(_files_in(path.with_name(f"{path.name}-workers")))
    other_owners = [found for found, uid in owners.items() if uid != owners.get(path, uid)]
    open_to_all = [found for found in (path.parent, path) if found.exists() and _is_open_to_all(found)]
    readable = [found for found in _files_with_jobs(path) if _may_all_read(found)]
    if locked:
        yield error(
            f"user {me} may not write to {some([str(found) for found in locked])}",
            "Submits and workers of this user fail: SQLite writes to the file, to its log and to the folder.",
            _sentence(write_remedy(locked[0])),
        )
    if other_owners:
        yield warning(
            f"files beside the store have another owner than the store: {some([f.name for f in other_owners])}",
            "Perhaps only the user who created them can write to them. If other processes cannot open the files "
            "of a worker, they cannot wake it, and notice its death after 45 s instead of at once.",
            "Let all processes of a store run as the same user.",
        )
    if open_to_all:
        yield warning(
            f"all users of this machine may write to {some([str(found) for found in open_to_all])}",
            "A user who can write there can run your handlers with any arguments, or delete the store.",
            shlex.join(("chmod", "o-w", *map(str, open_to_all))),
        )
    if readable:
        yield warning(
            f"all users of this machine may read {some([str(found) for found in readable])}",
            "They can read the arguments, results and errors of all jobs. Mainspring creates new files for their "
            "owner only, and does not change the mode of files that exist.",
            shlex.join(("chmod", "o-r", *map(str, readable))),
        )
    if not (locked or other_owners or open_to_all or readable):
        yield ok(f"user {me} may write to the store, and not all users may read it or write to it")


def _files_with_jobs(path: Path) -> list[Path]:
    """Return the files of a store that exist and have data of jobs."""
    files = (path.with_name(path.name + ending) for ending in ("", "-wal", "-shm"))
    return [found for found in files if found.exists()]


def _may_all_read(path: Path) -> bool:
    """Return whether all users of the machine may read a file and enter all folders above it."""
    try:
        above = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.absolute().parents)
        return above and bool(path.stat().st_mode & stat.S_IROTH)
    except FileNotFoundError:  # the last process has closed the store meanwhile
        return False


def _owners_of_existing(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the owner of each file that exists. A worker that ends may remove its files at any time."""
    found: dict[Path, int] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_uid
    return found


def _files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK) else []


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"  # without a full stop, because it may end in a command


def _is_open_to_all(path: Path) -> bool:
    mode = path.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not (path.is_dir() and mode & stat.S_ISVTX)


def check_disk(path: Path, free: int, inodes: int | None) -> Finding:
    """Report an error or a warning if the disk has little free space, or few inodes (None: they are unlimited)."""
    size = path.stat().st_size if path.exists() else 0
    reason = "On a full disk every submit fails, and no outcome of a job can be stored."
    remedy = "Free some space, or move the store; Keep(completed=...) deletes ended jobs earlier."
    if free < NO_ROOM or (inodes is not None and inodes < FEW_INODES):
        left = f"{in_bytes(free)} are free" if free < NO_ROOM else f"only {inodes} more files are possible"
        return error(f"the disk at {path.parent} is nearly full: {left}", reason, remedy)
    if free < LITTLE_ROOM or free < size:
        return warning(
            f"only {in_bytes(free)} are free at {path.parent}, and the store has {in_bytes(size)}",
            f"{reason} A backup or a migration of its schema needs as much space as the store has.",
            remedy,
        )
    return ok(f"{in_bytes(free)} are free at {path.parent}, and the store has {in_bytes(size)}")


def room_at(folder: Path) -> tuple[int, int | None]:
    """Return the free bytes and the free inodes of a folder's file system; inodes are None if unlimited."""
    inodes: int | None = None
    if hasattr(os, "statvfs"):
        found = os.statvfs(folder)
        inodes = found.f_favail if found.f_files else None
    return shutil.disk_usage(folder).free, inodes


def measure_sync(folder: Path, clock: Clock, sync: Callable[[int], None] = os.fsync) -> float:
    """Return the median time of some fsyncs in seconds, each after the write of a page to a temporary file."""
    seconds: list[float] = []
    with tempfile.TemporaryFile(dir=folder, prefix=".mainspring-doctor-", buffering=0) as file:
        while len(seconds) < SYNCS and sum(seconds) < MAX_SECONDS:
            file.write(b"\0" * PAGE)
            before = clock.monotonic_ns()
            sync(file.fileno())
            seconds.append((clock.monotonic_ns() - before) / NANOSECONDS)
    return median(seconds)


def check_sync(seconds: float, durability: str | None) -> Finding:
    """Warn if an fsync takes under 20 µs, which is too fast for a disk, or over 50 ms.

    With `durability="normal"`, a slow fsync is no problem.
    """
    took = in_seconds(seconds)
    if seconds < TOO_QUICK:
        return warning(
            f"the disk confirms a write in {took}, which is too fast for a disk",
            "Probably something between here and the disk ignores fsync: a file system in memory, a virtual disk "
            "with an unsafe cache, a library such as eatmydata. After a power failure jobs that were confirmed "
            "may be gone.",
            "Put the store on a disk that syncs.",
        )
    if seconds > TOO_SLOW and durability != "normal":
        return warning(
            f"an fsync takes {took}",
            "Each commit of submits and outcomes waits for it. Calls that arrive meanwhile share the next commit.",
            "Use a faster disk; or Mainspring(durability='normal'), if the last jobs may be lost in a power "
            "failure.",
        )
    return ok(f"a write is on the disk after {took}")


def check_durability(durability: str) -> Finding:
    """Report what the durability setting guarantees after a power failure."""
    if durability == "full":
        return ok("a job is on the disk when its submit returns (durability='full')")
    return info(
        f"commits do not wait for the disk (durability={durability!r})",
        "After a power failure the last confirmed jobs and outcomes may be lost; after the crash of a process "
        "nothing is lost.",
        "If none may be lost: Mainspring(durability='full').",
    )
