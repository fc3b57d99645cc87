"""Finds the application or the store that a command works on, imports and opens it.

Three places are searched: the command line, the environment (`MAINSPRING_APP`, `MAINSPRING_URL`), and
`[tool.mainspring]` in the nearest `pyproject.toml`. The first one that names an application or a URL decides
alone. If it names both, the command uses that application with the store at that URL.

A command that only reads never creates a store: a mistyped path is an error, not an empty list. Resolving the
store URL imports neither the application nor the engine.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from mainspring.cli.exit_codes import AppImportFailed
from mainspring.engines.registry import check_url, provider_for
from mainspring.errors import EngineUnavailable, MainspringError

if TYPE_CHECKING:
    from mainspring.app import Mainspring


@dataclass(frozen=True, slots=True)
class AppSelection:
    """The application and the URL that one place names, and the folder of its configuration file, if it is one."""

    app: str | None
    url: str | None
    folder: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The command line options for the same application and store; a password is left out."""
        url = None if self.url is None else provider_for(self.url).public_url(self.url)
        given = {"--app": self.app, "--url": url}
        return tuple(part for option, value in given.items() if value is not None for part in (option, value))


def find_selection(app: str | None, url: str | None) -> AppSelection | None:
    """Return the selection of the first place that names an application or a URL; None if no place does."""
    return next((each for each in _places(app, url) if each.app is not None or each.url is not None), None)


def require_selection(app: str | None, url: str | None) -> AppSelection:
    """Return the selection of the first place that names an application or a URL; else raise a usage error."""
    selection = find_selection(app, url)
    if selection is not None:
        return selection
    raise click.BadParameter(
        "which application? give --app module:app or --url sqlite:///orders.db, or set MAINSPRING_APP or "
        "MAINSPRING_URL, or write app = 'module:app' into [tool.mainspring] of pyproject.toml"
    )


def _places(app: str | None, url: str | None) -> Iterator[AppSelection]:
    yield AppSelection(app, url)
    yield AppSelection(os.environ.get("MAINSPRING_APP") or None, os.environ.get("MAINSPRING_URL") or None)
    yield _find_configured()


def _find_configured() -> AppSelection:
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return AppSelection(None, None)


def _read(file: Path) -> AppSelection:
    import tomllib  # noqa: PLC0415 - only a command without --app and --url reads a file

    try:
        section = tomllib.loads(file.read_text()).get("tool", {}).get("mainspring", {})
    except (tomllib.TOMLDecodeError, OSError) as error:
        raise click.BadParameter(f"{file} cannot be read: {error}") from error
    url = _read_text(section, "url", file)
    if url is not None:
        url = _resolve(url, file.parent)
    return AppSelection(_read_text(section, "app", file), url, file.parent)


def _resolve(url: str, folder: Path) -> str:
    """Return the URL with a relative path resolved against the folder of the configuration file."""
    try:
        return provider_for(check_url(url)).resolve(url, folder)
    except EngineUnavailable:
        return url  # an invalid URL is reported when it is used


def _read_text(section: dict[str, Any], name: str, file: Path) -> str | None:
    value = section.get(name)
    if value is not None and not isinstance(value, str):
        raise click.BadParameter(f"{file}: {name} in [tool.mainspring] must be a text, got {value!r}")
    return value


def load_application(app: str | None, url: str | None) -> Mainspring:
    """Return the application of the command with its handlers loaded; it is not opened yet."""
    selection = require_selection(app, url)
    if selection.app is None:
        assert selection.url is not None
        return app_for_url(selection.url)
    with redirect_stdout(sys.stderr):  # text that modules print at import is not output of the command
        application = import_app(selection.app, folder=selection.folder)
        application.load_handlers()
    if selection.url is not None:
        application.url = app_for_url(selection.url).url
    return application


@contextmanager
def open_app(app: str | None, url: str | None, *, creates_store: bool = False) -> Iterator[Mainspring]:
    """Open the application of the command for the `with` block; report a `ValueError` in it as wrong usage."""
    application = load_application(app, url)
    require_store(application, creates_store=creates_store)
    with application:
        try:
            yield application
        except ValueError as error:  # the library has rejected a value; its message says why
            raise click.BadParameter(str(error)) from error


def require_store(application: Mainspring, *, creates_store: bool = False) -> None:
    """Refuse a store that processes cannot share and, unless `creates_store`, one that reading would create."""
    provider = provider_for(application.url)
    provider.require_shared(application.url)
    if not creates_store:
        provider.require_existing(application.url)


def app_for_url(url: str) -> Mainspring:
    """Return an application without handlers for the store at the URL."""
    from mainspring.app import Mainspring  # noqa: PLC0415 - probes need the URL only

    try:
        return Mainspring(url)
    except EngineUnavailable as error:
        raise click.BadParameter(str(error)) from error


def import_app(reference: str, *, folder: Path | None = None) -> Mainspring:
    """Import `module:name`, with `folder` or else the working directory on `sys.path`, as `python -m` does."""
    from mainspring.app import Mainspring  # noqa: PLC0415 - probes need the URL only

    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise click.BadParameter(
            f"{reference!r} is not of the form module:name; for app in shop.py it is shop:app"
        )
    if module_name.endswith(".py") or "/" in module_name:
        meant = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise click.BadParameter(f"{reference!r} names a file; name the module: {meant}:{name}")
    place = str(folder or Path.cwd())
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        module = import_module(module_name)
    except MainspringError:
        raise  # reported as one line, like all errors of Mainspring
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise click.BadParameter(
                f"there is no module {module_name!r} in {place} or among the installed packages"
            ) from error
        sys.stderr.write(_format_traceback(error))
        words = " ".join(str(error).split())
        raise AppImportFailed(f"{reference!r} cannot be imported: {type(error).__name__}: {words}") from error
    app = getattr(module, name, None)
    if not isinstance(app, Mainspring):
        found = [key for key, value in vars(module).items() if isinstance(value, Mainspring)]
        hint = f"it has {', '.join(f'{module_name}:{key}' for key in found)}" if found else "it has none"
        raise click.BadParameter(f"{reference!r} is not a Mainspring application; {hint}")
    return app


def _format_traceback(error: Exception) -> str:
    """Return the traceback within the code of the application, without the frames of the import itself."""
    frame = error.__traceback__
    while frame is not None and (frame.tb_frame.f_code.co_filename == __file__ or _is_of_importlib(frame)):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame))


def _is_of_importlib(frame: TracebackType) -> bool:
    return str(frame.tb_frame.f_globals.get("__name__")).startswith("importlib")
