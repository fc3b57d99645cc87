"""Registry of engines: maps the scheme of a store URL to the engine that serves it.

Each engine package has an `EngineProvider` that describes it. The registry maps URL schemes to the names of
providers. It imports a provider when a URL with its scheme is used, so an application imports only its own engine.

A package outside of Mainspring registers an engine with an entry point, whose name is the scheme:

    [project.entry-points."mainspring.engines"]
    redis = "mainspring_redis:RedisProvider"

Then `Mainspring("redis://host")` works, and so do the commands with `--url redis://host`, `doctor` and `bench`
among them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from mainspring.errors import EngineUnavailable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from mainspring.clock import Clock
    from mainspring.jobs.engine import Engine, Retention
    from mainspring.jobs.projection import Projection

ENTRY_POINTS = "mainspring.engines"
BUILT_IN = {
    "sqlite": "mainspring.engines.sqlite.provider:SqliteProvider",
    "nats": "mainspring.engines.nats.provider:NatsProvider",
    "tls": "mainspring.engines.nats.provider:NatsProvider",
    "memory": "mainspring.engines.sqlite.provider:MemoryProvider",
}


class EngineConfig(Struct, frozen=True):
    """The settings of an application that its provider needs to create the engine."""

    url: str
    clock: Clock
    durability: Literal["full", "normal"]
    retention: Retention
    """How long the engine keeps ended jobs."""
    settings: Any
    """The settings object for this kind of engine, such as `NatsSettings`; None if the URL has all settings."""
    make_projection: Callable[[str], Projection]
    """A function that creates a projection at a path, for an engine whose store cannot list jobs."""
    read_only: bool
    """Whether the caller only reads: then the engine must not create streams on a server."""


class EngineProvider(ABC):
    """Describes an engine package to the rest of Mainspring. Importing a provider must not import the engine."""

    examples = ""
    """Example URLs for error messages, such as `'redis://host:6379'`."""

    doctor = "mainspring.doctor.examination:examine_store"
    """The function that examines a store, as `module:name`.

    It takes an `Examination`; by default it checks only jobs.
    """

    needs_projection = False
    """Whether the engine calls `make_projection`."""

    bench: str | None = None
    """The function that makes a `mainspring.bench.stores.StoreFactory`, as `module:name`; None if it has none."""

    @abstractmethod
    def make_engine(self, config: EngineConfig) -> Engine:
        """Create the engine, not yet open; raise `EngineUnavailable` if a package that it needs is missing."""

    def import_engine(self) -> None:  # noqa: B027 - an engine may be in the same module
        """Import the modules that `make_engine` needs.

        The application calls this when it is created. At the first submit it would be too late: another thread may
        fork meanwhile, and the forked child would wait forever for the import to end.
        """

    def check_url(self, url: str) -> None:  # noqa: B027 - any URL may name a store
        """Raise `EngineUnavailable` if a URL with this scheme names no store; see `unknown_store`."""

    def public_url(self, url: str) -> str:
        """Return the URL with `...` in place of user name, password or token, for logs and error messages."""
        return without_credentials(url)

    def store_name(self, url: str) -> str:
        """Return a name that is the same for all URLs of one store, and contains no secret."""
        return self.public_url(url)

    def resolve(self, url: str, folder: Path) -> str:
        """Return the URL with its relative path resolved against `folder`; unchanged if it has no path of a
        file.
        """
        return url

    def missing_file(self, url: str) -> Path | None:
        """Return the path in the URL if it names a file that does not exist yet, which the first use creates; else
        None.
        """
        return None

    def require_shared(self, url: str) -> None:  # noqa: B027 - most stores are shared
        """Raise `EngineUnavailable` if other processes cannot use this store."""

    def require_existing(self, url: str) -> None:  # noqa: B027 - only files are checked
        """Raise `EngineUnavailable` if the store is a file that does not exist: reading must not create it.

        The streams of a NATS store are not checked: a process that opens it creates them if its role may.
        """


def provider_for(url: str) -> EngineProvider:
    """Return the provider of the engine that serves the scheme of a URL, such as `nats` in `nats://host`.

    Raise `EngineUnavailable` if no engine serves the scheme, or if the package of the engine cannot be imported,
    and `TypeError` if the URL is no text.
    """
    if not isinstance(url, str):
        raise TypeError(f"url must be a string such as 'sqlite:///orders.db', got {url!r}")
    scheme, separator, _ = url.partition("://")
    provider = _provider_of_scheme(scheme) if separator else None
    if provider is None:
        raise unknown_store(url)
    return provider


def unknown_store(url: str) -> EngineUnavailable:
    """Return the error for a URL that no engine serves. It shows example URLs of all engines."""
    examples: dict[str, None] = {}
    for scheme in schemes():
        with suppress(EngineUnavailable):
            provider = _provider_of_scheme(scheme)
            if provider is not None and provider.examples:
                examples[provider.examples] = None
    *most, last = examples
    return EngineUnavailable(
        engine=f"url {without_credentials(url)!r}",
        reason="no engine serves this URL",
        remedy=f"use {', '.join(most)} or {last}",
    )


def without_credentials(url: str) -> str:
    """Return a URL with `...` in place of the user name, password or token before its host."""
    return re.sub(r"//[^/@?]*@", "//...@", url)


def check_url(url: str) -> str:
    """Return the URL if it names a store of a known engine; otherwise raise `EngineUnavailable`."""
    provider_for(url).check_url(url)
    return url


def schemes() -> list[str]:
    """List the URL schemes of all engines, including those of installed packages."""
    return [*BUILT_IN, *(point.name for point in _entry_points() if point.name not in BUILT_IN)]


def load_name(name: str) -> Any:
    """Import the object that a text such as `module:name` names, and return it."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _entry_points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and only other packages need it

    return entry_points(group=ENTRY_POINTS)


@cache
def _provider_of_scheme(scheme: str) -> EngineProvider | None:
    if scheme in BUILT_IN:
        make: Callable[[], EngineProvider] = load_name(BUILT_IN[scheme])
        return make()
    point = next((point for point in _entry_points() if point.name == scheme), None)
    if point is None:
        return None
    try:
        make = point.load()
        return make()
    except Exception as error:
        raise EngineUnavailable(
            engine=f"the engine for {scheme}:// URLs, in the module {point.value.partition(':')[0]}",
            reason=f"it cannot be loaded ({type(error).__name__}: {error})",
            remedy="update or reinstall the package that contains this module",
        ) from error
