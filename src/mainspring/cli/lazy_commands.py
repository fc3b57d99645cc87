"""Imports the module of a command only when the command is called; help and completion need its name and summary.

The command `jobs` is the attribute `jobs` of the module `mainspring.cli.jobs`: a function, or a `typer.Typer` with
subcommands.

Conversion is skipped for values that already have the right type. typer lets pydantic convert all values, also
strings and unchanged defaults, and importing pydantic takes a third of the time of a short command. Values of
other types (numbers, paths, states) are still converted and checked.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


class AsIs:
    """Replaces typer's conversion of a parameter until a value needs converting."""

    def __init__(self, parameter: Any) -> None:
        described = parameter.type_descriptor
        self._parameter = parameter
        self._wanted = described.annotation if described.parameter_info.parser is None else None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value for the command: unchanged if it has the right type, else converted by typer."""
        if param.multiple or param.nargs == -1:
            if value is None:
                return ()
            if self._wanted == list[str] and all(type(item) is str for item in value):
                return list(value)
        elif value is None or type(value) is self._wanted:
            return value
        self._parameter._runtime_param = None  # so that typer creates its own at the next use
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


class Command(TyperCommand):
    """A command that skips conversion of values that already have the right type."""

    def get_params(self, ctx: Any) -> Any:
        return _as_is(super().get_params(ctx))


class LazyGroup(TyperGroup):
    """A command with subcommands that skips conversion of values that already have the right type."""

    def get_params(self, ctx: Any) -> Any:
        return _as_is(super().get_params(ctx))


def _as_is(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""  # help would show <bool>, but a flag takes no value
        if parameter._runtime_param is None:  # typer has not created its converter yet
            parameter._runtime_param = AsIs(parameter)
    return parameters


class OnDemand(LazyGroup):
    """The commands of the program; only the summary of a command is loaded until it is called."""

    summaries: ClassVar[dict[str, str]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, summary in self.summaries.items():
            self.add_command(Command(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that is called or completed, and import it."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """Import the command of this name and return it."""
    found = getattr(import_module(f"mainspring.cli.{name}"), name)
    if isinstance(found, typer.Typer):
        found.info.cls = LazyGroup
        for command in found.registered_commands:
            command.cls = Command
        return get_group(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Command)(found)
    return get_command(alone)
