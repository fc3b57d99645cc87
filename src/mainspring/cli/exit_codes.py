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

import click

from mainspring.errors import (
    DuplicateJob,
    EngineUnavailable,
    InvalidArguments,
    MainspringError,
    ScheduleBusy,
    ScheduleInvalid,
    ScheduleNotFound,
    StoreReplaced,
    UnknownHandler,
    WorkerNotFound,
)
from mainspring.similar_names import did_you_mean


def error_message(error: MainspringError) -> str:
    """Return the message of an error, with a command in place of a remedy that is a Python call."""
    match error:
        case DuplicateJob():
            why = "exists already" if error.key is None else f"has the unique key {error.key!r}"
            look = shlex.join(("mainspring", "jobs", "show", error.existing_id))
            return f"job {error.existing_id!r} {why} and nothing was stored; see {look}, or give another --id"
        case ScheduleNotFound():
            remedy = (
                "mainspring schedules list shows all, and those that are declared in code are stored when a "
                "worker starts"
            )
            return f"there is no schedule {error.name!r}; {did_you_mean(error.name, error.known) or remedy}"
        case ScheduleBusy():
            cancel = shlex.join(("mainspring", "jobs", "cancel", error.job_id))
            return (
                f"schedule {error.name!r} was not triggered: its job {error.job_id} has not ended, and "
                f"overlap='skip' allows one at a time; wait for it, or cancel it: {cancel}"
            )
        case WorkerNotFound():
            return (
                f"there is no remote worker {error.number}: it never enrolled, has left, or counts as dead; "
                "mainspring workers list shows all workers"
            )
        case UnknownHandler(known=()):
            return f"the command needs the handler {error.name!r}, and knows no handlers; give --app module:app"
        case UnknownHandler():
            known = ", ".join(error.known)
            remedy = "check the name, and that the application imports its module"
            return (
                f"no handler is registered as {error.name!r} (registered: {known}); "
                f"{did_you_mean(error.name, error.known) or remedy}"
            )
        case _:
            return str(error)


class ExitCode(IntEnum):
    """The exit codes of the program."""

    SUCCESS = 0
    FAILURE = 1
    """The command found nothing, found a problem, or failed, at least for some items."""
    USAGE = 2
    """The command line is invalid: an option, an argument of a handler, or a cron expression."""
    UNAVAILABLE = 3
    """The store cannot be reached or used."""
    STORE_REPLACED = 4
    """The file of the store was removed, replaced, renamed or truncated while the command ran."""
    INTERRUPTED = 130
    """The user pressed Ctrl+C."""
    OUTPUT_CLOSED = 141
    """The reader has closed the output (`| head`). No error is printed."""


EXIT_CODES = {
    ExitCode.SUCCESS: "success",
    ExitCode.FAILURE: "the command found nothing, found a problem, or failed",
    ExitCode.USAGE: "wrong usage",
    ExitCode.UNAVAILABLE: "the store is unavailable",
    ExitCode.STORE_REPLACED: "the file of the store was removed or replaced meanwhile",
    ExitCode.INTERRUPTED: "interrupted by Ctrl+C",
    ExitCode.OUTPUT_CLOSED: "the reader closed the output",
}


class OutputClosed(Exception):
    """The reader of stdout has closed it (`| head`), so the command ends without an error message."""


class OutputFailed(Exception):
    """The output cannot be written to stdout, for example because the disk is full."""


class AppImportFailed(Exception):
    """The application cannot be imported, because its code raises an error, for example during a deploy."""


def run_cli(commands: Callable[..., Any]) -> int:
    """Run the command that the command line names, print its error as one line, and return the exit code."""
    try:
        code = commands(prog_name="mainspring", standalone_mode=False, color=_color())
        sys.stdout.flush()
    except (OutputClosed, BrokenPipeError):
        _redirect_stdout_to_null()
        return ExitCode.OUTPUT_CLOSED
    except OutputFailed as error:
        _redirect_stdout_to_null()
        return _report(
            f"mainspring: the output cannot be written: {error}; free some space, or redirect the output",
            ExitCode.FAILURE,
        )
    except AppImportFailed as error:
        return _report(f"mainspring: {error}; correct the code, and try again", ExitCode.FAILURE)
    except MainspringError as error:
        return _report(f"mainspring: {error_message(error)}", exit_code_for(error))
    except click.Abort:
        return _report(
            "mainspring: stopped before the question was answered; nothing was changed", ExitCode.FAILURE
        )
    except click.ClickException as error:
        return _report_usage_error(error)
    return code if isinstance(code, int) else ExitCode.SUCCESS


def exit_code_for(error: MainspringError) -> ExitCode:
    """Return the exit code for an error: 3 or 4 if the store is not usable, 2 for wrong usage, else 1."""
    if isinstance(error, StoreReplaced):
        return ExitCode.STORE_REPLACED
    if isinstance(error, EngineUnavailable):
        return ExitCode.UNAVAILABLE
    if isinstance(error, InvalidArguments | ScheduleInvalid | UnknownHandler):
        return ExitCode.USAGE
    return ExitCode.FAILURE


def _report_usage_error(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.message, color=error.ctx.color)
        return ExitCode.USAGE
    command = "mainspring" if context is None else context.command_path
    return _report(f"{command}: {' '.join(_message(error).split())} (help: {command} --help)", ExitCode.USAGE)


def _message(error: click.ClickException) -> str:
    if isinstance(error, click.BadParameter) and error.param is None and error.param_hint is None:
        return error.message  # errors of Mainspring have a complete message, without "Invalid value"
    return error.format_message().strip().removesuffix(".")


def _color() -> bool | None:
    """Return whether the environment turns colors in the help on or off; None if it does neither.

    With None, click prints colors on a terminal only.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _report(line: str, code: ExitCode) -> ExitCode:
    sys.stderr.write(line + "\n")
    return code


def _redirect_stdout_to_null() -> None:
    """Redirect stdout to the null device, so that the interpreter's flush at exit raises no error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
