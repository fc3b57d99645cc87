"""SQLite engine: jobs in one file, without a server, for several processes of one machine.

The names are imported on first use, so that `provider` can be imported without the engine.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.engines.sqlite.engine import SqliteEngine
    from mainspring.engines.sqlite.projection import SqliteProjection

__all__ = ["SqliteEngine", "SqliteProjection"]


def __getattr__(name: str) -> Any:
    if name == "SqliteEngine":
        from mainspring.engines.sqlite.engine import SqliteEngine  # noqa: PLC0415 - see above

        return SqliteEngine
    if name == "SqliteProjection":
        from mainspring.engines.sqlite.projection import SqliteProjection  # noqa: PLC0415 - see above

        return SqliteProjection
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
