"""The classes of commands and groups: the layout of the help, and lazy loading of the commands of the program.

To add a command, write a module `mainspring/cli/NAME.py` with a `Command` or a `CommandGroup` called `NAME`, and
add its summary to `COMMANDS` in `mainspring/cli/main.py`:

    NAME = CommandGroup("NAME", help="...")

    @NAME.command("list")
    @json_option
    def list_things(*, as_json: bool) -> None:
        \"\"\"List things.\"\"\"

`LazyGroup` imports that module only when the command is called. The help of the program and the completion of
command names use the summary.

The help has colors on a terminal only: click removes them elsewhere.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click

from mainspring.cli.exit_codes import ExitCode

MAX_WIDTH = 120  # the longest line of the help: longer lines are hard to read
_HYPHEN = re.compile(r"(?<=\w)-(?=\w)")
# replaces hyphens until lines are wrapped, so that names of options are not divided
_UNBROKEN = "\N{NON-BREAKING HYPHEN}"
# matches the text that click adds to the help of an option, such as its default
_DETAILS = re.compile(r"  (\[[^][]*\])$")


class HelpFormatter(click.HelpFormatter):
    """Formats help with bold headings, and with the names of options and commands in color."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, click.style("Usage:", bold=True) + " " if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True))

    def write_text(self, text: str) -> None:
        super().write_text(_HYPHEN.sub(_UNBROKEN, text))

    def getvalue(self) -> str:
        return super().getvalue().replace(_UNBROKEN, "-")

    def write_rows(self, heading: str, rows: Iterable[tuple[str, str]]) -> None:
        """Write a section with two columns: a name and its meaning."""
        colored = []
        for term, meaning in rows:
            names, space, value = term.partition(" ") if term.startswith("--") else (term, "", "")
            text = _DETAILS.sub(_style_details, meaning)
            colored.append((click.style(names, fg="cyan") + space + value, _HYPHEN.sub(_UNBROKEN, text)))
        if colored:
            with self.section(heading):
                self.write_dl(colored)


def _style_details(found: re.Match[str]) -> str:
    return " " + click.style(re.sub(r"[()]", "", found[1]), dim=True)  # click puts a default text into parentheses


class HelpContext(click.Context):
    """A click context whose help is written by `HelpFormatter`."""

    formatter_class = HelpFormatter


class Option(click.Option):
    """An option of a command. `section` is its heading in the help."""

    def __init__(self, *args: Any, section: str = "Options", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class Argument(click.Argument):
    """An argument of a command.

    Usage and help show its metavar, with brackets if it is optional and dots if it repeats.
    """

    def make_metavar(self, ctx: click.Context) -> str:
        name = self.human_readable_name if self.required else f"[{self.human_readable_name}]"
        return name if self.nargs == 1 else f"{name}..."

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.human_readable_name, self.help or ""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return repr(self.human_readable_name)


class Command(click.Command):
    """A command whose help lists its arguments, and its options by section."""

    context_class = HelpContext

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(formatter, HelpFormatter)
        arguments = [each for each in self.get_params(ctx) if isinstance(each, click.Argument)]
        formatter.write_rows("Arguments", [each.get_help_record(ctx) for each in arguments])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(formatter, HelpFormatter)
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None and not isinstance(each, click.Argument):
                sections.setdefault(getattr(each, "section", "Options"), []).append(record)
        for heading, rows in sections.items():
            formatter.write_rows(heading, rows)


class CommandGroup(Command, click.Group):
    """A command with subcommands. Without a subcommand it prints its help."""

    command_class = Command

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"no_args_is_help": True} | settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of their definition

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(formatter, HelpFormatter)
        width = max(map(len, self.commands))  # so that the sections are aligned
        for heading, names in self.sections().items():
            formatter.write_rows(heading, [(f"{name:{width}}", summary_of(self.commands[name])) for name in names])
        Command.format_options(self, ctx, formatter)

    def sections(self) -> Mapping[str, Iterable[str]]:
        """Return the headings of the help, each with the names of the subcommands below it."""
        return {"Commands": self.commands}


class LazyGroup(CommandGroup):
    """The commands of the program, in sections of the help.

    `summaries` has the summary of each command by heading and name. A command is imported when it is called.
    """

    def __init__(self, *args: Any, summaries: Mapping[str, Mapping[str, str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._summaries = summaries
        for section in summaries.values():
            for name, summary in section.items():
                self.add_command(Command(name, help=summary))

    def sections(self) -> Mapping[str, Iterable[str]]:
        return self._summaries

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the user calls or completes, and import it."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl+C ends the program without a message."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)


def load(name: str) -> click.Command:
    """Import the command of this name and return it."""
    gc.disable()  # imports make many objects and little garbage, so a collection would find nothing
    try:
        command = getattr(import_module(f"mainspring.cli.{name}"), name)
    finally:
        gc.freeze()  # what was imported stays until the end: the next collection does not search it
        gc.enable()
    assert isinstance(command, click.Command)
    return command


def summary_of(command: click.Command) -> str:
    """Return the first paragraph of the help of a command."""
    return " ".join(cleandoc(command.help or "").partition("\n\n")[0].split())
