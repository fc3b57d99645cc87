"""Which file system a path is on, by what the kernel says of its mounts."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.doctor.findings import Finding, error, info, ok, warning

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "drvfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4"),
    *("prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
    *("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    "fuse.vmhgfs-fuse",
}
"""Other machines, or the host of a virtual one, write there, too: SQLite's log needs memory that all share."""
FLEETING = {
    "tmpfs": "memory",
    "ramfs": "memory",
    "overlay": "a layer of a container",
    "aufs": "a layer of a container",
}
_ESCAPED = re.compile(r"\\([0-7]{3})")


def type_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that a path is on, given the kernel's table; None if it is not there."""
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        depth = len(point.parts)
        if path.is_relative_to(point) and (best is None or depth >= best[0]):  # what is mounted later hides
            best = (depth, after.split(" ")[0])
    return None if best is None else best[1]


def check_file_system(folder: Path, mounts: str | None) -> Finding:
    """Judge whether a store can live in a folder; `mounts` is None where the system has no such table."""
    kind = None if mounts is None else type_of(folder, mounts)
    if kind is None:
        return info(
            f"on which file system {folder} is cannot be seen here",
            "SQLite needs one of this machine: on a network share its locks and its log do not work.",
            "Make sure that it is a local disk.",
        )
    if kind in NETWORK:
        return error(
            f"{folder} is on {kind}, which other machines share",
            "Locks and the write-ahead log need memory that all processes share. There jobs may run twice, and "
            "the file may be damaged.",
            "Put the file on a local disk; for workers on several machines use nats://.",
        )
    if kind in FLEETING:
        return warning(
            f"{folder} is on {kind}: {FLEETING[kind]}",
            "What is stored there is gone with the next restart of the machine or the container.",
            "Put the file on a disk, in a container on a volume.",
        )
    if kind.startswith("fuse"):
        return warning(
            f"{folder} is on {kind}",
            "Not every such file system has the locks and the shared memory that SQLite needs.",
            "Put the file on ext4, XFS, btrfs, ZFS or another file system of the kernel.",
        )
    return ok(f"{folder} is on {kind}")
