"""Empty SQLite stores as copies of one that was made before: a copy takes a tenth of the time of a new schema.

Tests of creating, migrating or refusing a store open a file that does not exist yet instead.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from mainspring.engines.sqlite import SqliteEngine

__all__ = ["make_blank_store"]


def make_blank_store(path: Path) -> Path:
    """Make an empty store of the current schema, unless there is a file already; return its path."""
    if not path.exists():
        path.write_bytes(_blank())
    return path


@cache
def _blank() -> bytes:
    with TemporaryDirectory(prefix="mainspring-") as folder:
        path = Path(folder) / "jobs.db"
        engine = SqliteEngine(path)
        engine.open(lambda: None)
        engine.close()
        return path.read_bytes()
