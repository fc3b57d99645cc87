"""Registers `sqlite:///path`: jobs in one SQLite file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.engines.registry import EngineConfig, EngineProvider, unknown_store
from mainspring.engines.sqlite.files import require_sight
from mainspring.errors import EngineUnavailable

if TYPE_CHECKING:
    from mainspring.jobs.engine import Engine

SCHEME = "sqlite:///"


def is_sqlite(url: str) -> bool:
    """Answer whether the jobs of a URL are in a SQLite file."""
    return url.startswith(SCHEME)


def to_path(url: str) -> Path:
    """Return the file of a `sqlite:///` URL, relative or absolute as the URL has it."""
    return Path(url.removeprefix(SCHEME))


class SqliteProvider(EngineProvider):
    """Jobs in one SQLite file, for all processes of one machine."""

    examples = "'sqlite:///orders.db' (relative), 'sqlite:////srv/orders.db' (absolute)"
    doctor = "mainspring.doctor.sqlite_checks:examine_store"
    bench = "mainspring.bench.places:beside_file"

    def make_engine(self, config: EngineConfig) -> Engine:
        from mainspring.engines.sqlite.engine import SqliteEngine  # noqa: PLC0415 - see import_engine

        return SqliteEngine(to_path(config.url), clock=config.clock, durability=config.durability)

    def import_engine(self) -> None:
        import_module("mainspring.engines.sqlite.engine")

    def check_url(self, url: str) -> None:
        if not is_sqlite(url) or url == SCHEME:
            raise unknown_store(url)

    def store_name(self, url: str) -> str:
        return f"{SCHEME}{to_path(url).resolve()}"

    def resolve(self, url: str, folder: Path) -> str:
        return f"{SCHEME}{folder / to_path(url)}"

    def require_existing(self, url: str) -> None:
        path = to_path(url)
        if require_sight(path) is None:
            raise EngineUnavailable(
                engine=f"SQLite file {path.resolve()}",
                reason="there is no such file",
                remedy="check the path and the working directory; the first submit or worker makes it",
            )
