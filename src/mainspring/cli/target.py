"""Finds the application or the store that a command works on.

Three places are searched: the command line, the environment (`MAINSPRING_APP`, `MAINSPRING_URL`), and
`[tool.mainspring]` in the nearest `pyproject.toml`. The first one that names an application or a URL decides
alone. If it names both, the command uses that application with the store at that URL.

A command that only reads never creates a store: a mistyped path is an error, not an empty list. Resolving the
store URL does not import the engine.
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

import click

from mainspring.engines.registry import check_url, provider_for
from mainspring.errors import EngineUnavailable

if TYPE_CHECKING:
    from mainspring.app import Mainspring


@dataclass(frozen=True, slots=True)
class Target:
    """The application and the URL that one place names, and the folder of its configuration file, if it is one."""

    app: str | None
    url: str | None
    folder: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The command line options that name the same target; a password is left out."""
        url = None if self.url is None else provider_for(self.url).public_url(self.url)
        given = {"--app": self.app, "--url": url}
        return tuple(part for option, value in given.items() if value is not None for part in (option, value))


def find_target(app: str | None, url: str | None) -> Target | None:
    """Return the target from the first place that names one; None if none does."""
    return next((target for target in _places(app, url) if target.app is not None or target.url is not None), None)


def choose(app: str | None, url: str | None) -> Target:
    """Return the target from the first place that names one; if none does, that is wrong usage."""
    target = find_target(app, url)
    if target is not None:
        return target
    raise click.BadParameter(
        "which application? give --app module:app or --url sqlite:///orders.db, or set MAINSPRING_APP or "
        "MAINSPRING_URL, or write app = 'module:app' into [tool.mainspring] of pyproject.toml"
    )


def find_application(app: str | None, url: str | None) -> Mainspring:
    """Return the application of the command with its handlers loaded; it is not opened yet."""
    from mainspring.cli.loading import app_at, load_app  # noqa: PLC0415 - it imports the whole package

    target = choose(app, url)
    if target.app is None:
        assert target.url is not None
        return app_at(target.url)
    with redirect_stdout(sys.stderr):  # text that modules print at import is not output of the command
        application = load_app(target.app, folder=target.folder)
        application.load_handlers()
    if target.url is not None:
        application.url = app_at(target.url).url
    return application


@contextmanager
def opened(app: str | None, url: str | None, *, makes_store: bool = False) -> Iterator[Mainspring]:
    """Open the application of the command for the `with` block; report a `ValueError` in it as wrong usage."""
    application = find_application(app, url)
    require_store(application, makes_store=makes_store)
    with application:
        try:
            yield application
        except ValueError as error:  # the library has rejected a value; its message says why
            raise click.BadParameter(str(error)) from error


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
        raise click.BadParameter(f"{file} cannot be read: {error}") from error
    url = _text(section, "url", file)
    if url is not None:
        url = _resolved(url, file.parent)
    return Target(_text(section, "app", file), url, file.parent)


def _resolved(url: str, folder: Path) -> str:
    """Return the URL with a relative path resolved against the folder of the configuration file."""
    try:
        return provider_for(check_url(url)).resolve(url, folder)
    except EngineUnavailable:
        return url  # an invalid URL is reported when it is used


def _text(section: dict[str, Any], name: str, file: Path) -> str | None:
    value = section.get(name)
    if value is not None and not isinstance(value, str):
        raise click.BadParameter(f"{file}: {name} in [tool.mainspring] must be a text, got {value!r}")
    return value


def require_store(application: Mainspring, *, makes_store: bool = False) -> None:
    """Refuse a store that processes cannot share and, unless `makes_store`, one that reading would create."""
    provider = provider_for(application.url)
    provider.require_shared(application.url)
    if not makes_store:
        provider.require_existing(application.url)
