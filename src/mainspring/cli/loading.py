"""Imports the application that a command names as `module:name`."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import TracebackType

import click

from mainspring.app import Mainspring
from mainspring.cli.exits import NotImportable
from mainspring.errors import EngineUnavailable, MainspringError


def load_app(reference: str, *, folder: Path | None = None) -> Mainspring:
    """Import `module:name`, with `folder` or else the working directory on `sys.path`, as `python -m` does."""
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
        sys.stderr.write(_way_to(error))
        words = " ".join(str(error).split())
        raise NotImportable(f"{reference!r} cannot be imported: {type(error).__name__}: {words}") from error
    app = getattr(module, name, None)
    if not isinstance(app, Mainspring):
        found = [key for key, value in vars(module).items() if isinstance(value, Mainspring)]
        hint = f"it has {', '.join(f'{module_name}:{key}' for key in found)}" if found else "it has none"
        raise click.BadParameter(f"{reference!r} is not a Mainspring application; {hint}")
    return app


def _way_to(error: Exception) -> str:
    """Return the traceback within the code of the application, without the frames of the import itself."""
    place = error.__traceback__
    while place is not None and (place.tb_frame.f_code.co_filename == __file__ or _imports(place)):
        place = place.tb_next
    return "".join(traceback.format_exception(type(error), error, place))


def _imports(place: TracebackType) -> bool:
    return str(place.tb_frame.f_globals.get("__name__")).startswith("importlib")


def app_at(url: str) -> Mainspring:
    """Return an application without handlers for the store at the URL."""
    try:
        return Mainspring(url)
    except EngineUnavailable as error:
        raise click.BadParameter(str(error)) from error
