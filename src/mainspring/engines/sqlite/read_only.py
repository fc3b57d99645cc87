"""Reads a SQLite file that this user may not write to, so that its jobs can be listed and explained.

SQLite reads a file with a write-ahead log together with the files `-wal` and `-shm` beside it. A reader creates
these files if they are missing. If this user may not write to the store, such files would lock out its owner. So
a connection for reading never creates them:

- If there is a `-shm` file, other processes have the store open, or were killed. SQLite reads the log with it.
- Otherwise no process has the store open. Without a log the file is complete, and is read as immutable.
- A log without a `-shm` file has changes that are missing in the file. Then reading is refused.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from types import ModuleType

import apsw

from mainspring.errors import EngineUnavailable

pwd: ModuleType | None
try:
    import pwd
except ImportError:  # on Windows, users have no numbers
    pwd = None


def may_write(path: Path) -> bool:
    """Return whether this user may write to a file, or create files in a folder."""
    mode = os.W_OK | (os.X_OK if path.is_dir() else 0)
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def user_name(uid: int | None = None) -> str:
    """Return the name of a user, or the number if it has no name. Without `uid`, it is the current user."""
    number = os.geteuid() if uid is None else uid
    try:
        return str(number) if pwd is None else str(pwd.getpwuid(number).pw_name)
    except KeyError:
        return str(number)


def write_remedy(path: Path) -> str:
    """Return what to do so that this user can write to a file and to the folder around it."""
    place = next(found for found in (path, *path.absolute().parents) if found.exists())
    if hasattr(os, "statvfs") and os.statvfs(place).f_flag & os.ST_RDONLY:
        mount = next(parent for parent in (place.absolute(), *place.absolute().parents) if parent.is_mount())
        return f"the file system is read-only; mount it for writing: mount -o remount,rw {shlex.quote(str(mount))}"
    if may_write(place) and may_write(place if place.is_dir() else place.parent):
        return "check the limit of open files (ulimit -n), and security policies such as SELinux and AppArmor"
    if os.geteuid() == 0:  # root needs no permission: an attribute protects the file
        return f"remove the attribute that protects it: chattr -i {shlex.quote(str(place))}"
    owner, me = user_name(place.stat().st_uid), user_name()
    access = f"give user {me} write access to the file and to its directory"
    return access if owner == me else f"run as user {owner}, who owns it, or {access}"


def read_only_error(path: str) -> EngineUnavailable:
    """Return the error for a write to a store that is open for reading only."""
    return EngineUnavailable(
        engine=f"SQLite file {path}",
        reason=f"user {user_name()} may not write to it, so it can be read only",
        remedy=write_remedy(Path(path)),
    )


def read_only_address(path: Path) -> str:
    """Return the URI for reading a file without creating files beside it that would lock its owner out.

    Raises `EngineUnavailable` if this user may not read the file, its log or the index of the log (`-shm`), or if
    the log has changes that only a user who may write can read.
    """
    log, index = (path.with_name(f"{path.name}{ending}") for ending in ("-wal", "-shm"))
    for file in (path, log, index):
        if file.exists() and not os.access(file, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise EngineUnavailable(
                engine=f"SQLite file {path}",
                reason=f"user {user_name()} may not read {file.name}",
                remedy=f"run as user {user_name(file.stat().st_uid)}, or allow this user to read {file}",
            )
    has_index = index.exists()
    if not has_index and log.exists() and log.stat().st_size:
        raise EngineUnavailable(
            engine=f"SQLite file {path}",
            reason=f"only a user who may write to it can read {log.name}, which has changes that the file lacks",
            remedy=write_remedy(path),
        )
    creates_no_files = has_index or (may_write(path) and may_write(path.parent))
    return _address(path) if creates_no_files else _immutable_address(path)


def open_immutable(path: Path) -> apsw.Connection:
    """Open a file without its log. The connection creates no files, waits for no lock, and changes nothing."""
    return apsw.Connection(_immutable_address(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def _immutable_address(path: Path) -> str:
    return f"{_address(path)}&immutable=1"


def _address(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"
