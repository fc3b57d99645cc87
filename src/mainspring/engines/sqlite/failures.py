"""What the driver raises, as errors that say what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from mainspring.errors import EngineUnavailable, MainspringError, RefusedByStore, StoreCorrupt

_OUT_OF_ROOM = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_TRUNCATE)

_FAULTS_OF_THE_DATA = (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError, apsw.RangeError, apsw.SQLError)


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Let errors of SQLite leave the block as `EngineUnavailable`."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error


def translate(error: apsw.Error, path: str) -> MainspringError:
    """Make an error that names the file, the reason and the remedy."""
    engine = f"SQLite file {path}"
    if isinstance(error, _FAULTS_OF_THE_DATA):
        return RefusedByStore(engine=engine, reason=f"{type(error).__name__}: {error}")
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreCorrupt(
            engine=engine,
            reason=f"the file is damaged or not a database ({error})",
            remedy="restore a backup, or move the file away to begin with an empty one",
        )
    if isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in _OUT_OF_ROOM:
        return EngineUnavailable(
            engine=engine, reason=f"the disk is full ({error})", remedy="make room; nothing stored before is lost"
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return EngineUnavailable(
            engine=engine,
            reason=f"it cannot be written ({error})",
            remedy=f"give user {os.geteuid()} write access to the file and to its directory",
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return EngineUnavailable(
            engine=engine,
            reason=f"another process held its lock for too long ({error})",
            remedy="look for a stopped process or an open transaction on this file, and try again",
        )
    return EngineUnavailable(
        engine=engine, reason=f"{type(error).__name__}: {error}", remedy="see the log; nothing of this was stored"
    )
