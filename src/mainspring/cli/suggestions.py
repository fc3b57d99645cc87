"""Commands that `mainspring explain` and `mainspring doctor` suggest to the user.

The commands change the state of a job, show more about it, or start a worker. The user can paste them into a
terminal. They select the same application and the same store as the current command.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from msgspec import Struct

from mainspring.app import Mainspring
from mainspring.cli.app_selection import AppSelection
from mainspring.jobs.explanation import Explanation, Reason
from mainspring.jobs.info import JobInfo


class Suggestion(Struct, frozen=True):
    """A suggestion to the user about a job: a sentence and the commands for it; both may be missing."""

    text: str | None = None
    commands: tuple[str, ...] = ()


class CommandWriter(Struct, frozen=True):
    """Writes commands of `mainspring` that use the application and the store of the current command."""

    application: Mainspring
    typed: AppSelection
    """The application and the store that the options of the current command name.

    Those of other places, such as the environment, apply to the suggested command without an option.
    """
    chosen: AppSelection
    """The application and the store that the current command uses, whichever place names them."""

    def command(self, *words: str) -> str:
        """Return a command, such as `mainspring jobs list`, with options for the same application and store."""
        return shlex.join(("mainspring", *words, *self.typed.options))

    def run_command(self, *options: str) -> str:
        """Return the command that starts a worker of the application on the same store, with further options."""
        store = AppSelection(None, self.typed.url).options
        return shlex.join(("mainspring", "run", self.chosen.app or "module:app", *options, *store))


def suggest(explanation: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    """Return the suggestion for a job: commands that change its status or show more; empty if there are none."""
    if job.replayed_as is not None:
        return _others("To see the state of that job:", explanation, job, writer)
    make = _SUGGESTIONS.get(explanation.reason)
    return Suggestion() if make is None else make(explanation, job, writer)


def _earlier(explanation: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    now = writer.command("jobs", "run-now", job.id)
    if explanation.reason is Reason.NOT_DUE:
        return Suggestion("It starts automatically. To start it now:", (now,))
    return Suggestion(
        "It is retried automatically. To see the whole error, or to retry it now:",
        (writer.command("jobs", "show", job.id), now),
    )


def _resume(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion("To resume the queue:", (writer.command("queues", "resume", job.queue),))


def _examine(_: Explanation, _job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion("To examine the store:", (writer.command("doctor"),))


def _lift(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion(
        "It starts automatically. To see all pauses, or to lift this one:",
        (writer.command("callbacks", "pauses"), writer.command("jobs", "run-now", job.id)),
    )


def _behind(explanation: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return _others("To see why that job has not ended:", explanation, job, writer)


def _rate(*_: object) -> Suggestion:
    return Suggestion("It starts automatically. The rate is set in the application, with rate=Rate(...).")


def _limit(explanation: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    text = "The limit is set in the application, with concurrency=Concurrency(...). To see what uses it:"
    return _others(text, explanation, job, writer)


def _others(text: str, explanation: Explanation, _: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion(text, (writer.command("explain", *explanation.blocked_by),))


def _start(_: Explanation, __: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion("To start one:", (writer.run_command(),))


def _know(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    if job.type in writer.application.registry:
        return Suggestion("To start a worker that knows it:", (writer.run_command(),))
    return Suggestion(
        f"Add aliases=({job.type!r},) to the handler that replaces it, or import its module with include=[...]. "
        "Then start a worker:",
        (writer.run_command(),),
    )


def _serve(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion("To start a worker that serves it:", (writer.run_command("--queues", job.queue),))


def _queued(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion(
        "If it stays pending, these workers are busy. To see what runs, or to start another worker:",
        (writer.command("jobs", "list", "--status", "running"), writer.run_command("--queues", job.queue)),
    )


def _running(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    look = writer.command("jobs", "show", job.id)
    if job.stop_requested:
        return Suggestion(
            "It ends when its handler does. A function on a thread must check current_job().cancelled. To see its "
            "progress:",
            (look,),
        )
    return Suggestion(
        "To see its progress, or to ask it to stop:", (look, writer.command("jobs", "cancel", job.id))
    )


def _overtime(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion(
        "To kill such handlers at their timeout, declare them with execution='process'; to free the thread now, "
        "restart the worker. To see its progress:",
        (writer.command("jobs", "show", job.id),),
    )


def _abandoned(explanation: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion() if explanation.remedy is None else _start(explanation, job, writer)


def _show(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion("To see its arguments and its result:", (writer.command("jobs", "show", job.id),))


def _canceled(_: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion(
        "It does not run again. To see its arguments, for a new job:", (writer.command("jobs", "show", job.id),)
    )


def _unique(explanation: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    return Suggestion(
        "To see why that job has not ended, or to run this one as a new job without the key:",
        (writer.command("explain", *explanation.blocked_by), writer.command("dlq", "replay", job.id)),
    )


def _again(explanation: Explanation, job: JobInfo, writer: CommandWriter) -> Suggestion:
    commands = [writer.command("jobs", "retry", job.id), writer.command("dlq", "replay", job.id)]
    if explanation.reason is Reason.EXPIRED:
        return Suggestion("To run it nevertheless, as the same job or as a new one:", tuple(commands))
    text = "To see every attempt, or to run it again, as the same job or as a new one:"
    if explanation.reason is Reason.QUARANTINED:
        text = f"First find out what kills its process or its worker. {text}"
    return Suggestion(text, (writer.command("dlq", "show", job.id), *commands))


_SUGGESTIONS: dict[Reason, Callable[[Explanation, JobInfo, CommandWriter], Suggestion]] = {
    Reason.NOT_DUE: _earlier,
    Reason.RETRYING: _earlier,
    Reason.PAUSED: _resume,
    Reason.RECEIVER_PAUSED: _lift,
    Reason.BEHIND: _behind,
    Reason.RATE_LIMITED: _rate,
    Reason.LIMIT_REACHED: _limit,
    Reason.NO_WORKER: _start,
    Reason.UNKNOWN_HANDLER: _know,
    Reason.UNSERVED_QUEUE: _serve,
    Reason.NOT_DELIVERED: _examine,
    Reason.QUEUED: _queued,
    Reason.RUNNING: _running,
    Reason.OVERTIME: _overtime,
    Reason.ABANDONED: _abandoned,
    Reason.COMPLETED: _show,
    Reason.CANCELED: _canceled,
    Reason.UNIQUE_BLOCKED: _unique,
    Reason.QUARANTINED: _again,
    Reason.EXPIRED: _again,
    Reason.FAILED: _again,
}
