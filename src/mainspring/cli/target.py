"""Which application, or which store, a command is about.

The first of these places that names an application or a URL decides alone: the command line, the environment
(`MAINSPRING_APP`, `MAINSPRING_URL`), `[tool.mainspring]` in the nearest `pyproject.toml`. Where a place names
both, it is that application with its jobs at that URL.

A command that only looks never makes a store: a mistyped path is an error, not an empty list. Whoever only asks
which store is meant does not load what opens it.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mainspring.engines.registry import check_url, provider_for
from mainspring.errors import EngineUnavailable

if TYPE_CHECKING:
    from mainspring.app import Mainspring


@dataclass(frozen=True, slots=True)
class Target:
    """What one place says, and the folder from which it says it."""

    app: str | None
    url: str | None
    folder: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What to write for the same again; a password is left out."""
        url = None if self.url is None else provider_for(self.url).public_url(self.url)
        given = {"--app": self.app, "--url": url}
        return tuple(part for option, value in given.items() if value is not None for part in (option, value))


def find_target(app: str | None, url: str | None) -> Target | None:
    """Return what the first place says that says anything, if there is one."""
    return next((target for target in _places(app, url) if target.app is not None or target.url is not None), None)


def choose(app: str | None, url: str | None) -> Target:
    """Return what the first place says that says anything."""
    target = find_target(app, url)
    if target is not None:
        return target
    raise typer.BadParameter(
        "which application? give --app module:app or --url sqlite:///orders.db, or set MAINSPRING_APP or "
        "MAINSPRING_URL, or write app = 'module:app' into [tool.mainspring] of pyproject.toml"
    )


def find_application(app: str | None, url: str | None) -> Mainspring:
    """Return the application that is meant, its handlers loaded, not opened yet."""
    from mainspring.cli.loading import app_at, load_app  # noqa: PLC0415 - they load everything

    target = choose(app, url)
    if target.app is None:
        assert target.url is not None
        return app_at(target.url)
    with redirect_stdout(sys.stderr):  # what modules print at import is not the output of a command
        application = load_app(target.app, folder=target.folder)
        application.load_handlers()
    if target.url is not None:
        application.url = app_at(target.url).url
    return application


@contextmanager
def opened(app: str | None, url: str | None, *, makes_store: bool = False) -> Iterator[Mainspring]:
    """Open the application that is meant for the time of a command; what it refuses is wrong usage."""
    application = find_application(app, url)
    require_store(application, makes_store=makes_store)
    with application:
        try:
            yield application
        except ValueError as error:  # the library's own words about a value that it was given
            raise typer.BadParameter(str(error)) from error


def _places(app: str | None, url: str | None) -> Iterator[Target]:
    yield Target(app, url)
    yield Target(os.environ.get("MAINSPRING_APP") or None, os.environ.get("MAINSPRING_URL") or None)
    yield _configured()


def _configured() -> Target:
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return Target(None, None)


def _read(file: Path) -> Target:
    try:
        section = tomllib.loads(file.read_text()).get("tool", {}).get("mainspring", {})
    except (tomllib.TOMLDecodeError, OSError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error
    url = _text(section, "url", file)
    if url is not None:
        url = _resolved(url, file.parent)
    return Target(_text(section, "app", file), url, file.parent)


def _resolved(url: str, folder: Path) -> str:
    """Return a URL whose relative path is relative to the folder of the configuration file."""
    try:
        return provider_for(check_url(url)).resolve(url, folder)
    except EngineUnavailable:
        return url  # a URL that names no store is reported when it is used


def _text(section: dict[str, Any], name: str, file: Path) -> str | None:
    value = section.get(name)
    if value is not None and not isinstance(value, str):
        raise typer.BadParameter(f"{file}: {name} in [tool.mainspring] must be a text, got {value!r}")
    return value


def require_store(application: Mainspring, *, makes_store: bool = False) -> None:
    """Refuse a store that would be made by looking for it, or that nobody shares."""
    provider = provider_for(application.url)
    provider.require_shared(application.url)
    if not makes_store:
        provider.require_existing(application.url)
