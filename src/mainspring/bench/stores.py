"""Creates temporary stores for measurements, on the same disk or the same server as the store of the user.

A factory creates empty stores and removes each of them, also if the measurement fails. It opens nothing that
belongs to the user: neither the file, nor the streams, nor the projection of a server's jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, urlencode

import apsw
from msgspec.structs import replace

from mainspring.app import Mainspring
from mainspring.engines.nats import NatsSettings
from mainspring.engines.nats.settings import parse_url, without_secrets
from mainspring.engines.registry import load_name, provider_for
from mainspring.engines.sqlite.provider import SCHEME as SQLITE
from mainspring.engines.sqlite.provider import to_path
from mainspring.errors import EngineUnavailable

if TYPE_CHECKING:  # the NATS client is an optional dependency
    from mainspring.engines.nats.engine import NatsEngine

PREFIX = "bench-"


@dataclass(frozen=True, slots=True)
class BenchStore:
    """An empty store for a measurement, with a function that returns its size in bytes, if that is known."""

    app: Mainspring
    size: Callable[[], int] | None = None


class StoreFactory(Protocol):
    """Creates temporary stores, in one folder or on one server."""

    @property
    def folder(self) -> Path | None:
        """The folder in which the stores are created; None if they are not in files of this machine."""

    def describe(self, app: Mainspring) -> dict[str, str]:
        """Return the engine of an application's store, its version and its settings, as texts by name."""

    def store(self) -> AbstractContextManager[BenchStore]:
        """Create an empty store, and remove it at the end of the `with` block.

        Raises `EngineUnavailable` if no store can be created there.
        """


def stores_of(app: Mainspring) -> StoreFactory:
    """Return a factory for temporary stores on the same disk or server as the store of an application.

    Only the settings of the application are read. Raises `EngineUnavailable` if the engine has no such factory.
    """
    provider = provider_for(app.url)
    if provider.bench is None:
        raise EngineUnavailable(
            engine=f"url {provider.public_url(app.url)!r}",
            reason="its engine does not support measurements",
            remedy="measure another engine, or let its package set EngineProvider.bench",
        )
    stores: StoreFactory = load_name(provider.bench)(app)
    return stores


def sqlite_stores(app: Mainspring) -> StoreFactory:
    """Return a factory for SQLite files in the folder of the application's file."""
    return SqliteStores(to_path(app.url).absolute().parent, app)


class SqliteStores:
    """Stores in SQLite files, each in its own subfolder of a folder."""

    def __init__(self, folder: Path, like: Mainspring) -> None:
        self.folder = folder
        self._like = like

    def describe(self, app: Mainspring) -> dict[str, str]:
        return {
            "engine": f"SQLite {apsw.sqlite_lib_version()}",
            "durability": app.durability,
            "folder": str(self.folder),
        }

    @contextmanager
    def store(self) -> Iterator[BenchStore]:
        try:
            below = TemporaryDirectory(prefix=f".mainspring-{PREFIX}", dir=self.folder)
        except OSError as error:
            raise EngineUnavailable(
                engine=f"folder {self.folder}",
                reason=f"no temporary store can be made in this folder ({error.strerror})",
                remedy="choose a folder that exists and is writable: --in FOLDER, without --app and --url",
            ) from error
        with below as name:
            folder = Path(name).absolute()
            with _application(self._like, f"{SQLITE}{folder / 'jobs.db'}") as app:
                yield BenchStore(app, lambda: _closed_size(app, folder))


class MemoryStores:
    """Stores in the memory of this process."""

    folder = None

    def __init__(self, like: Mainspring) -> None:
        self._like = like

    def describe(self, app: Mainspring) -> dict[str, str]:
        return {"engine": "memory of this process"}

    @contextmanager
    def store(self) -> Iterator[BenchStore]:
        with _application(self._like, "memory://") as app:
            yield BenchStore(app)


class NatsStores:
    """Stores in temporary streams on the user's NATS servers."""

    folder = None

    def __init__(self, like: Mainspring) -> None:
        self._like = like

    def describe(self, app: Mainspring) -> dict[str, str]:
        engine = _nats(app)
        info = engine.components.streams.info()
        return {
            "engine": f"NATS {engine.components.jetstream.version}",
            "servers": engine.components.jetstream.address,
            "replicas": str(info["config"]["num_replicas"]),
        }

    @contextmanager
    def store(self) -> Iterator[BenchStore]:
        self._require_no_role()
        settings = replace(self._like.nats or NatsSettings(), projection=None, prepared=False)
        with _application(self._like, _with_own_prefix(self._like.url), settings) as app:
            engine = _nats(app)
            try:
                yield BenchStore(app, lambda: int(engine.components.streams.info()["state"]["bytes"]))
            finally:
                engine.components.streams.remove()

    def _require_no_role(self) -> None:
        """Raise `EngineUnavailable` if the URL names a role, which may use only the streams of its own prefix."""
        servers, settings = parse_url(self._like.url, self._like.nats or NatsSettings())
        if settings.role is not None:
            raise EngineUnavailable(
                engine=f"NATS at {without_secrets(servers)}",
                reason=f"the role {settings.role!r} may use the streams of {settings.prefix!r} only, and a "
                f"measurement makes streams of its own, {PREFIX}...",
                remedy="give --url without a role, with a user who may make and delete these, or measure on "
                "`mainspring nats dev`",
            )


def _application(like: Mainspring, url: str, nats: NatsSettings | None = None) -> Mainspring:
    return Mainspring(url, threads=like.threads, durability=like.durability, nats=nats)


def _with_own_prefix(url: str) -> str:
    """Return a NATS URL with the same servers and settings, but with a random prefix and without a projection.

    A store at this URL shares no streams with the user's store.
    """
    address, _, query = url.partition("?")
    kept = [(name, value) for name, value in parse_qsl(query) if name not in ("prefix", "projection")]
    return f"{address}?{urlencode([*kept, ('prefix', f'{PREFIX}{token_hex(6)}')])}"


def _closed_size(app: Mainspring, folder: Path) -> int:
    app.close()  # closing merges the write-ahead log into the file; the next use opens the store again
    return sum(file.stat().st_size for file in folder.iterdir())


def _nats(app: Mainspring) -> NatsEngine:
    engine = app.manager().engine
    from mainspring.engines.nats.engine import NatsEngine  # noqa: PLC0415 - it is imported already, so the client is installed

    assert isinstance(engine, NatsEngine)
    return engine
