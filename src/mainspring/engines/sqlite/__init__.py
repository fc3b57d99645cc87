"""Jobs in one SQLite file: no server, several processes, one machine."""

from mainspring.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
