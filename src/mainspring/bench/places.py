"""Where is measured: stores of our own beside those of the user, on the same disk or the same server.

A place makes empty stores and removes each, whatever happens to the measurement. Nothing that belongs to the user
is opened: neither the file, nor the streams, nor the local copy of a server's jobs.
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

if TYPE_CHECKING:  # the client of NATS is an extra
    from mainspring.engines.nats.engine import NatsEngine

PREFIX = "bench-"


@dataclass(frozen=True, slots=True)
class Store:
    """An empty store, and how much it takes on a disk, if that can be said."""

    app: Mainspring
    size: Callable[[], int] | None = None


class Place(Protocol):
    """Where stores can be made."""

    @property
    def folder(self) -> Path | None:
        """The folder of its files, if they are on this machine."""

    def describe(self, app: Mainspring) -> dict[str, str]:
        """Say which engine it is, in which version and setting."""

    def store(self) -> AbstractContextManager[Store]:
        """Make an empty store for a while."""


def place_of(app: Mainspring) -> Place:
    """Return the place beside the store of an application; of this nothing but the settings are read."""
    provider = provider_for(app.url)
    if provider.bench is None:
        raise EngineUnavailable(
            engine=f"url {provider.public_url(app.url)!r}",
            reason="its engine does not say where a measurement could make stores of its own",
            remedy="measure another engine, or let its package set EngineProvider.bench",
        )
    place: Place = load_name(provider.bench)(app)
    return place


def beside_file(app: Mainspring) -> Place:
    """Return the folder of the SQLite file of an application."""
    return InFolder(to_path(app.url).absolute().parent, app)


class InFolder:
    """SQLite files in a folder, each in a folder of its own below it."""

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
    def store(self) -> Iterator[Store]:
        try:
            below = TemporaryDirectory(prefix=f".mainspring-{PREFIX}", dir=self.folder)
        except OSError as error:
            raise EngineUnavailable(
                engine=f"folder {self.folder}",
                reason=f"no store can be made in it ({error.strerror})",
                remedy="choose a folder that exists and is writable: --in DIR",
            ) from error
        with below as name:
            folder = Path(name).absolute()
            with _application(self._like, f"{SQLITE}{folder / 'jobs.db'}") as app:
                yield Store(app, lambda: _closed_size(app, folder))


class InMemory:
    """The memory of this process."""

    folder = None

    def __init__(self, like: Mainspring) -> None:
        self._like = like

    def describe(self, app: Mainspring) -> dict[str, str]:
        return {"engine": "memory of this process"}

    @contextmanager
    def store(self) -> Iterator[Store]:
        with _application(self._like, "memory://") as app:
            yield Store(app)


class OnNats:
    """The user's servers, with streams of our own."""

    folder = None

    def __init__(self, like: Mainspring) -> None:
        self._like = like

    def describe(self, app: Mainspring) -> dict[str, str]:
        engine = _nats(app)
        info = engine.parts.streams.info()
        return {
            "engine": f"NATS {engine.parts.link.version}",
            "servers": engine.parts.link.address,
            "replicas": str(info["config"]["num_replicas"]),
        }

    @contextmanager
    def store(self) -> Iterator[Store]:
        self._require_no_role()
        settings = replace(self._like.nats or NatsSettings(), projection=None, prepared=False)
        with _application(self._like, _with_own_prefix(self._like.url), settings) as app:
            engine = _nats(app)
            try:
                yield Store(app, lambda: int(engine.parts.streams.info()["state"]["bytes"]))
            finally:
                engine.parts.streams.remove()

    def _require_no_role(self) -> None:
        """Refuse a user who has the rights of one role: they end at the streams of its own prefix."""
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
    """Return a URL of the same servers, with the same settings, that leads to nothing of the user."""
    address, _, query = url.partition("?")
    kept = [(name, value) for name, value in parse_qsl(query) if name not in ("prefix", "projection")]
    return f"{address}?{urlencode([*kept, ('prefix', f'{PREFIX}{token_hex(6)}')])}"


def _closed_size(app: Mainspring, folder: Path) -> int:
    app.close()  # the log becomes part of the file; the next use opens it again
    return sum(file.stat().st_size for file in folder.iterdir())


def _nats(app: Mainspring) -> NatsEngine:
    engine = app.manager().engine
    from mainspring.engines.nats.engine import NatsEngine  # noqa: PLC0415 - it has been loaded, so it can be

    assert isinstance(engine, NatsEngine)
    return engine
