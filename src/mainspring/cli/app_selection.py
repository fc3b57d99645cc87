"""Finds the application and the store that a command works on, imports and opens them.

The application is named by `--app`, else by `MAINSPRING_APP`, else by `[tool.mainspring]` in the nearest
`pyproject.toml`. The rule for its store is in `mainspring.store_url`. With `--url` alone, or if no application is
named anywhere, a command works on a store without handlers.

A command that only reads never creates a store: a mistyped path is an error, not an empty list. Resolving the
store URL imports neither the application nor the engine.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from mainspring.cli.exit_codes import AppImportFailed
from mainspring.engines.registry import provider_for
from mainspring.errors import EngineUnavailable, MainspringError
from mainspring.store_url import DEFAULT_URL, VARIABLE, Configuration, read_configuration

if TYPE_CHECKING:
    from mainspring.app import Mainspring


class AppSelection(Struct, frozen=True):
    """The application and the store that options, environment or configuration name for a command."""

    app: str | None
    url: str | None
    """The URL of the store, if `--url` names it, or another place does and there is no application.

    None stands for the store that `app` names.
    """
    folder: Path | None = None
    """The folder of the configuration file, if that file names the application; else None."""

    @property
    def options(self) -> tuple[str, ...]:
        """The command line options that select the same application and store, without a password."""
        url = None if self.url is None else provider_for(self.url).public_url(self.url)
        given = {"--app": self.app, "--url": url}
        return tuple(part for option, value in given.items() if value is not None for part in (option, value))


def find_selection(app: str | None, url: str | None) -> AppSelection | None:
    """Return the application and the store for the options `--app` and `--url` of a command.

    Without options, the environment, the configuration or a `mainspring.db` in this folder names them; return None
    if none of these does. With `--url` alone, the command works on that store without an application.
    """
    if app is not None or url is not None:
        return AppSelection(app, url)
    configured = _read_configuration()
    app = os.environ.get("MAINSPRING_APP") or None
    if app is not None or configured.app is not None:
        return AppSelection(app or configured.app, None, None if app else configured.folder)
    url = os.environ.get(VARIABLE) or configured.url
    if url is None and Path(DEFAULT_URL.removeprefix("sqlite:///")).is_file():
        url = DEFAULT_URL
    return None if url is None else AppSelection(None, url)


def require_selection(app: str | None, url: str | None) -> AppSelection:
    """Return the application and the store of a command, as `find_selection` does.

    Raises a usage error if no place names an application or a store.
    """
    selection = find_selection(app, url)
    if selection is not None:
        return selection
    raise click.BadParameter(
        "no application or store is named; give --app module:app or --url sqlite:///orders.db, or set "
        "MAINSPRING_APP or MAINSPRING_URL, or write app = 'module:app' into [tool.mainspring] of pyproject.toml; "
        "there is no mainspring.db in this folder either"
    )


def _read_configuration() -> Configuration:
    try:
        return read_configuration(Path.cwd())
    except EngineUnavailable as error:
        raise click.BadParameter(str(error)) from error


def load_application(app: str | None, url: str | None) -> Mainspring:
    """Return the application of a command, with its handlers imported and its store not opened yet.

    `app` and `url` are the options of the command. If only a store is named, the application has no handlers.
    """
    selection = require_selection(app, url)
    if selection.app is None:
        return app_for_url(url)
    # so that text which modules print at import is not mixed with the command's output
    with redirect_stdout(sys.stderr):
        application = import_app(selection.app, folder=selection.folder)
        application.load_handlers()
    if selection.url is not None:
        try:
            application.use_store(selection.url)
        except EngineUnavailable as error:
            raise click.BadParameter(str(error)) from error
    return application


@contextmanager
def open_app(app: str | None, url: str | None, *, creates_store: bool = False) -> Iterator[Mainspring]:
    """Yield the application of a command, and close its store at the end of the `with` block.

    A `ValueError` in the block becomes a usage error. The audit trail records changes in the block as those of the
    user. Raises `EngineUnavailable` if other processes cannot use the store (`memory://`), and, without
    `creates_store`, if the SQLite file does not exist.
    """
    application = load_application(app, url)
    require_store(application, creates_store=creates_store)
    from mainspring.cli.acting_user import acting_user  # noqa: PLC0415 - probes need the URL only

    with application, acting_user():
        try:
            yield application
        except ValueError as error:  # the library has rejected a value; its message says why
            raise click.BadParameter(str(error)) from error


def require_store(application: Mainspring, *, creates_store: bool = False) -> None:
    """Raise `EngineUnavailable` if other processes cannot use the store (`memory://`).

    Unless `creates_store`, also raise it for a SQLite file that does not exist. The streams of a NATS store are
    not checked here.
    """
    provider = provider_for(application.url)
    provider.require_shared(application.url)
    if not creates_store:
        provider.require_existing(application.url)


def app_for_url(url: str | None) -> Mainspring:
    """Return an application without handlers for the store at the URL of `--url`.

    With None, the store is that of the environment, the configuration file or the default. A wrong URL is a usage
    error.
    """
    from mainspring.app import Mainspring  # noqa: PLC0415 - probes need the URL only

    try:
        application = Mainspring(url)
        if url is not None:
            application.use_store(url)  # the user has named it: another one in the environment is no conflict
        return application
    except EngineUnavailable as error:
        raise click.BadParameter(str(error)) from error


def import_app(reference: str, *, folder: Path | None = None) -> Mainspring:
    """Import the application `module:name`, after `folder`, or the working directory, was put on `sys.path`.

    Raises a usage error if there is no such module or application, and `AppImportFailed` if the module raises an
    error, whose traceback is written to stderr. Errors of Mainspring are raised as they are.
    """
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
        raise  # shown as one line, like all errors of Mainspring
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise click.BadParameter(
                f"there is no module {module_name!r} in {place} or among the installed packages; check the name, "
                "or run the command in the folder of the module"
            ) from error
        sys.stderr.write(_format_traceback(error))
        words = " ".join(str(error).split())
        raise AppImportFailed(f"{reference!r} cannot be imported: {type(error).__name__}: {words}") from error
    app = getattr(module, name, None)
    if isinstance(app, Mainspring):
        app.module = module_name
    else:
        raise click.BadParameter(_describe_missing(module, module_name, name))
    return app


def _describe_missing(module: ModuleType, module_name: str, name: str) -> str:
    """Return the message for a name that is no application, with the names of applications in the module."""
    from mainspring.app import Mainspring  # noqa: PLC0415 - probes need the URL only

    found = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, Mainspring)]
    problem = f"the module {module_name!r} has no name {name!r}"
    if hasattr(module, name):
        kind = type(getattr(module, name)).__name__
        problem = f"'{module_name}:{name}' is of the type {kind}, not a Mainspring application"
    if found:
        return f"{problem}; give {' or '.join(found)}"
    remedy = f"write {name} = Mainspring(...) there, or name another module"
    return f"{problem}, and the module has no application; {remedy}"


def _format_traceback(error: Exception) -> str:
    """Return the traceback within the application's code, without the frames of the import machinery."""
    frame = error.__traceback__
    while frame is not None and (frame.tb_frame.f_code.co_filename == __file__ or _is_of_importlib(frame)):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame))


def _is_of_importlib(frame: TracebackType) -> bool:
    return str(frame.tb_frame.f_globals.get("__name__")).startswith("importlib")
