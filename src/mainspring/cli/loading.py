"""Finding the application that a command is about."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import typer

from mainspring.app import Mainspring
from mainspring.errors import EngineUnavailable


def load_app(reference: str, *, folder: Path | None = None) -> Mainspring:
    """Import `module:name`, with the working directory on the path, as `python -m` has it, or another folder."""
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise typer.BadParameter(
            f"{reference!r} is not of the form module:name; for app in shop.py it is shop:app"
        )
    if module_name.endswith(".py") or "/" in module_name:
        meant = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise typer.BadParameter(f"{reference!r} names a file; name the module: {meant}:{name}")
    place = str(folder or Path.cwd())
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise  # something that it imports is missing: its own message says so
        raise typer.BadParameter(
            f"there is no module {module_name!r} in {place} or among the installed packages"
        ) from error
    app = getattr(module, name, None)
    if not isinstance(app, Mainspring):
        found = [key for key, value in vars(module).items() if isinstance(value, Mainspring)]
        hint = f"it has {', '.join(f'{module_name}:{key}' for key in found)}" if found else "it has none"
        raise typer.BadParameter(f"{reference!r} is not a Mainspring application; {hint}")
    return app


def app_at(url: str) -> Mainspring:
    """Return an application without handlers."""
    try:
        return Mainspring(url)
    except EngineUnavailable as error:
        raise typer.BadParameter(str(error)) from error
