"""The engine providers for `sqlite:///path` (jobs in one SQLite file) and `memory://` (jobs in process memory).

The module also checks paths, because commands need these checks before they import the engine.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.engines.registry import EngineConfig, EngineProvider, unknown_store
from mainspring.errors import EngineUnavailable

if TYPE_CHECKING:
    from mainspring.jobs.engine import Engine

SCHEME = "sqlite:///"
DEFAULT_TIMEOUT = 30.0
MAX_TIMEOUT = 86_400
MEMORY = "memory://"


def stat_or_none(path: Path) -> os.stat_result | None:
    """Return the `stat` of a file; None if there is no file, or if the path is not valid.

    Raises `PermissionError` if access is denied.

    As of Python 3.14, `Path.exists` returns False for a file in a directory that this user may not enter. That
    problem has another remedy than a missing file.
    """
    try:
        return path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None


def require_accessible(path: Path) -> os.stat_result | None:
    """Return the `stat` of a file; None if there is no file, or if the path is not valid.

    Raises `EngineUnavailable` if access is denied.
    """
    try:
        return stat_or_none(path)
    except PermissionError as error:
        raise EngineUnavailable(
            engine=f"SQLite file {path}",
            reason=f"user {os.geteuid()} may not access it ({error})",
            remedy="allow this user to enter the directory, or run as the user who owns the file",
        ) from error


def is_sqlite(url: str) -> bool:
    """Return whether a URL names a SQLite file."""
    return url.startswith(SCHEME)


def to_path(url: str) -> Path:
    """Return the file of a `sqlite:///` URL, relative or absolute as the URL has it."""
    return Path(_split(url)[0])


def timeout_of(url: str) -> float:
    """Return how many seconds a call waits for the lock of the file, as `?timeout=` in the URL says.

    Raises `EngineUnavailable` if the URL has another setting, or an invalid value.
    """
    path, query = _split(url)
    seconds = DEFAULT_TIMEOUT
    for setting in query.split("&") if query else ():
        name, _, value = setting.partition("=")
        try:
            if name != "timeout":
                raise _bad_setting(path, f"there is no setting {name!r}")
            seconds = float(value)
        except ValueError:
            seconds = 0
        if not 0 < seconds <= MAX_TIMEOUT:
            raise _bad_setting(path, f"the setting {setting!r} is invalid")
    return seconds


def _split(url: str) -> tuple[str, str]:
    """Return the path and the settings of a URL. A question mark without `=` after it belongs to the path."""
    path, _, query = url.removeprefix(SCHEME).partition("?")
    return (path, query) if "=" in query else (url.removeprefix(SCHEME), "")


def _bad_setting(path: str, reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        engine=f"SQLite file {path}",
        reason=reason,
        remedy=f"the only setting is ?timeout=, from more than 0 to {MAX_TIMEOUT:,} seconds",
    )


class SqliteProvider(EngineProvider):
    """Describes the SQLite engine to the registry: jobs in one file, for all processes of one machine."""

    examples = "'sqlite:///orders.db' (relative), 'sqlite:////srv/orders.db' (absolute)"
    doctor = "mainspring.doctor.sqlite_checks:examine_store"
    bench = "mainspring.bench.stores:sqlite_stores"

    def make_engine(self, config: EngineConfig) -> Engine:
        from mainspring.engines.sqlite.engine import SqliteEngine  # noqa: PLC0415 - see import_engine

        return SqliteEngine(
            to_path(config.url),
            clock=config.clock,
            durability=config.durability,
            busy_timeout=timeout_of(config.url),
        )

    def import_engine(self) -> None:
        import_module("mainspring.engines.sqlite.engine")

    def check_url(self, url: str) -> None:
        if not is_sqlite(url) or not _split(url)[0]:
            raise unknown_store(url)
        timeout_of(url)

    def store_name(self, url: str) -> str:
        return f"{SCHEME}{to_path(url).resolve()}"

    def resolve(self, url: str, folder: Path) -> str:
        path, query = _split(url)
        return f"{SCHEME}{folder / path}{query and f'?{query}'}"

    def missing_file(self, url: str) -> Path | None:
        path = to_path(url)
        return path if require_accessible(path) is None else None

    def require_existing(self, url: str) -> None:
        path = to_path(url)
        if require_accessible(path) is None:
            raise EngineUnavailable(
                engine=f"SQLite file {path.resolve()}",
                reason="there is no such file",
                remedy="check the path and the working directory; the first submit or worker creates it",
            )


class MemoryProvider(EngineProvider):
    """Describes `memory://` to the registry: jobs in the memory of this process, lost when it ends."""

    examples = f"{MEMORY!r}"
    doctor = "mainspring.doctor.examination:examine_memory"
    bench = "mainspring.bench.stores:MemoryStores"

    def make_engine(self, config: EngineConfig) -> Engine:
        from mainspring.engines.sqlite.memory import MemoryEngine  # noqa: PLC0415 - see import_engine
        from mainspring.jobs.processes import is_child  # noqa: PLC0415 - not needed to check a URL

        if is_child():
            raise EngineUnavailable(
                engine="memory of another process",
                reason="a handler with execution='process' cannot reach it",
                remedy="use a sqlite:/// store, or submit from a handler that runs in a thread",
            )
        return MemoryEngine(clock=config.clock)

    def import_engine(self) -> None:
        import_module("mainspring.engines.sqlite.memory")

    def check_url(self, url: str) -> None:
        if url != MEMORY:
            raise unknown_store(url)

    def require_shared(self, url: str) -> None:
        raise EngineUnavailable(
            engine="memory of this command",
            reason="memory:// is a store of one process, empty at its start and lost at its end",
            remedy="use a sqlite:/// or nats:// store, which processes share",
        )
