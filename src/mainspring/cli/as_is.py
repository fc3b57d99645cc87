"""Values that already are what a parameter asks for are taken as they are.

typer lets pydantic convert all of them, also texts, and defaults that nobody has changed; loading it takes a third
of the time of a short command. It still converts, and refuses, what is of another type: numbers, paths, states.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


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
