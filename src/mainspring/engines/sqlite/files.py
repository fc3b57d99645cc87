"""Looks at the file of a store without opening it."""

from __future__ import annotations

import os
from pathlib import Path

from mainspring.errors import EngineUnavailable


def look_at(path: Path) -> os.stat_result | None:
    """Return the status of a file, or None if there is none; `PermissionError` if this user may not look.

    `Path.exists` answers False for a file in a closed folder, as of Python 3.14. That is another fault than a
    missing file, and has another remedy.
    """
    try:
        return path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None


def require_sight(path: Path) -> os.stat_result | None:
    """Do as `look_at`, but raise `EngineUnavailable` if this user may not look."""
    try:
        return look_at(path)
    except PermissionError as error:
        raise EngineUnavailable(
            engine=f"SQLite file {path}",
            reason=f"user {os.geteuid()} may not look at it ({error})",
            remedy="give this user the right to enter the directory, or run as the user who owns the file",
        ) from error
