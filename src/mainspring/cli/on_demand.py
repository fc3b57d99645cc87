"""Commands that are loaded when they are called: help and completion need their names and summaries only.

The command `jobs` is `jobs` in the module `mainspring.cli.jobs`: a function, or a `typer.Typer` with commands
of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.main import get_command, get_group

from mainspring.cli.as_is import Command, Group


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
