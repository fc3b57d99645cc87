"""Jobs in one SQLite file: no server, several processes, one machine."""

from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.projection import SqliteProjection

__all__ = ["SqliteEngine", "SqliteProjection"]
