"""Imports a command when it is called: help and completion need only its name and summary.

The command `jobs` is `jobs` in the module `mainspring.cli.jobs`: a function, or a `typer.Typer` with commands of
its own.

Values that already have the right type are not converted. typer lets pydantic convert all of them, also texts and
unchanged defaults, and importing pydantic takes a third of the time of a short command. Values of other types
(numbers, paths, states) are still converted and checked.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


class AsIs:
    """Stands in for the conversion of a parameter until one is needed."""

    def __init__(self, parameter: Any) -> None:
        described = parameter.type_descriptor
        self._parameter = parameter
        self._wanted = described.annotation if described.parameter_info.parser is None else None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value that the command gets."""
        if param.multiple or param.nargs == -1:
            if value is None:
                return ()
            if self._wanted == list[str] and all(type(item) is str for item in value):
                return list(value)
        elif value is None or type(value) is self._wanted:
            return value
        self._parameter._runtime_param = None  # typer makes its own with the next use
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


class Command(TyperCommand):
    """A command that takes values as they are."""

    def get_params(self, ctx: Any) -> Any:
        return _as_is(super().get_params(ctx))


class Group(TyperGroup):
    """A command with commands below it, which takes values as they are."""

    def get_params(self, ctx: Any) -> Any:
        return _as_is(super().get_params(ctx))


def _as_is(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""  # help would ask for a <bool>, which a flag does not take
        if parameter._runtime_param is None:  # it has converted nothing yet
            parameter._runtime_param = AsIs(parameter)
    return parameters


class OnDemand(Group):
    """The commands of the program, each known by its summary until it is called."""

    summaries: ClassVar[dict[str, str]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, summary in self.summaries.items():
            self.add_command(Command(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that is called, or completed, and load it."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """Return the command of this name, with everything that it needs."""
    found = getattr(import_module(f"mainspring.cli.{name}"), name)
    if isinstance(found, typer.Typer):
        found.info.cls = Group
        for command in found.registered_commands:
            command.cls = Command
        return get_group(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Command)(found)
    return get_command(alone)
