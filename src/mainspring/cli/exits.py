"""Turns errors into exit codes for scripts, and into one line on stderr that says what went wrong.

Output goes to stdout, everything else to stderr. If the reader closes the output (`| head`), no error is printed.
Where an error of the library names a Python call as the remedy, the line names the command instead.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import typer

from mainspring.errors import (
    DuplicateJob,
    EngineUnavailable,
    InvalidArguments,
    MainspringError,
    ScheduleInvalid,
    ScheduleNotFound,
    UnknownHandler,
)


def in_words(error: MainspringError) -> str:
    """Return the message of an error, with a remedy for the command line."""
    match error:
        case DuplicateJob():
            why = "exists already" if error.key is None else f"has the unique key {error.key!r}"
            look = shlex.join(("mainspring", "jobs", "show", error.existing_id))
            return f"job {error.existing_id!r} {why} and nothing was stored; see {look}, or give another --id"
        case ScheduleNotFound():
            return (
                f"there is no schedule {error.name!r}; mainspring schedules list shows all, and those that are "
                "declared in code are stored when a worker starts"
            )
        case UnknownHandler(known=()):
            return f"no handler is known, and {error.name!r} is needed; give --app module:app beside the store"
        case UnknownHandler():
            known = ", ".join(error.known)
            return (
                f"no handler is registered as {error.name!r} (registered: {known}); "
                "check the name, and that the application imports its module"
            )
        case _:
            return str(error)


class ExitCode(IntEnum):
    """The exit codes of the program."""

    DONE = 0
    REFUSED = 1
    """Nothing was found, or the command failed for some items."""
    USAGE = 2
    """The command line is invalid: options, arguments of a handler, a cron expression."""
    UNAVAILABLE = 3
    """The store cannot be reached or used."""
    INTERRUPTED = 130
    """Ctrl+C."""
    READER_GONE = 141
    """The reader has closed the output; nothing is printed about it."""


EXIT_CODES = (
    "Exit codes: 0 done; 1 nothing found, or refused; 2 wrong usage; 3 the store is unavailable; 130 interrupted; "
    "141 the reader of the output went away."
)


class ReaderGone(Exception):
    """The reader has closed the output."""


class OutputLost(Exception):
    """The output cannot be written: the disk is full, or broken."""


class NotImportable(Exception):
    """The application cannot be imported because its code raised an error, for example during a deploy."""


def run_to_exit(commands: Callable[..., Any]) -> int:
    """Run the command that the command line names, and return the exit code."""
    try:
        code = commands(prog_name="mainspring", standalone_mode=False)
        sys.stdout.flush()
    except (ReaderGone, BrokenPipeError):
        _let_go_of_stdout()
        return ExitCode.READER_GONE
    except OutputLost as error:
        _let_go_of_stdout()
        return _say(f"mainspring: the output was lost: {error}; let it go where there is room", ExitCode.REFUSED)
    except NotImportable as error:
        return _say(f"mainspring: {error}; mend that, and try again", ExitCode.REFUSED)
    except MainspringError as error:
        return _say(f"mainspring: {in_words(error)}", code_of(error))
    except typer.Abort:
        return _say("mainspring: stopped at a question; nothing was done", ExitCode.REFUSED)
    except typer.TyperException as error:
        return _say_usage(error)
    return code if isinstance(code, int) else ExitCode.DONE


def code_of(error: MainspringError) -> ExitCode:
    """Return the exit code for an error of Mainspring."""
    if isinstance(error, EngineUnavailable):
        return ExitCode.UNAVAILABLE
    if isinstance(error, InvalidArguments | ScheduleInvalid | UnknownHandler):
        return ExitCode.USAGE
    return ExitCode.REFUSED


def _say_usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = _message(error)
    if type(error).__name__ == "NoArgsIsHelpError" or not message:  # typer has already printed the help
        return ExitCode.USAGE
    command = "mainspring" if context is None else context.command_path
    return _say(f"{command}: {' '.join(message.split())} (help: {command} --help)", ExitCode.USAGE)


def _message(error: typer.TyperException) -> str:
    if isinstance(error, typer.BadParameter) and error.param is None and error.param_hint is None:
        return error.message  # raised by Mainspring: its message is complete without "Invalid value"
    message = str(getattr(error, "format_message", error.__str__)()).strip()
    return message.replace(": Value error, ", ": ").removesuffix(".")


def _say(line: str, code: ExitCode) -> ExitCode:
    sys.stderr.write(line + "\n")
    return code


def _let_go_of_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter's flush at exit raises no error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
