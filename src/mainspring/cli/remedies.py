"""Remedies for `mainspring explain`: a sentence and commands with which a user can act on the state of a job.

The commands can be pasted into a terminal. They name the application and the store as the user typed them, so that
they act on the same job.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from mainspring.app import Mainspring
from mainspring.cli.target import Target
from mainspring.jobs.explanation import Explanation, Reason
from mainspring.jobs.info import JobInfo


@dataclass(frozen=True, slots=True)
class Remedy:
    """What the user can do: a sentence, if there is one, and the commands for it."""

    text: str | None = None
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terminal:
    """Writes commands for the application and the store of the current command."""

    application: Mainspring
    typed: Target
    """The target as given on the command line; what came from elsewhere need not be repeated in a command."""
    chosen: Target
    """The target that is in effect, wherever it was named."""

    def command(self, *words: str) -> str:
        """Return a command for the same application and store."""
        return shlex.join(("mainspring", *words, *self.typed.options))

    def worker(self, *options: str) -> str:
        """Return the command that starts a worker on the same store."""
        store = Target(None, self.typed.url).options
        return shlex.join(("mainspring", "run", self.chosen.app or "module:app", *options, *store))


def remedy_for(explanation: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    """Return the remedy for a job: commands that change its state or show more about it."""
    if job.replayed_as is not None:
        return _others("What became of that one:", explanation, job, terminal)
    make = _REMEDIES.get(explanation.reason)
    return Remedy() if make is None else make(explanation, job, terminal)


def _earlier(explanation: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    now = terminal.command("jobs", "reschedule", job.id, "--delay", "0")
    if explanation.reason is Reason.NOT_DUE:
        return Remedy("It starts then by itself. To start it now:", (now,))
    return Remedy(
        "That happens by itself. To see the whole error, or to try it now:",
        (terminal.command("jobs", "show", job.id), now),
    )


def _resume(_: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    return Remedy("To let the queue go on:", (terminal.command("queues", "resume", job.queue),))


def _behind(explanation: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    return _others("Why that one has not ended:", explanation, job, terminal)


def _rate(*_: object) -> Remedy:
    return Remedy("It starts then by itself. The rate is set in the application, with rate=Rate(...).")


def _limit(explanation: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    text = "The limit is set in the application, with concurrency=Concurrency(...). What has it:"
    return _others(text, explanation, job, terminal)


def _others(text: str, explanation: Explanation, _: JobInfo, terminal: Terminal) -> Remedy:
    return Remedy(text, (terminal.command("explain", *explanation.blocked_by),))


def _start(_: Explanation, __: JobInfo, terminal: Terminal) -> Remedy:
    return Remedy("To start one:", (terminal.worker(),))


def _know(_: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    if job.type in terminal.application.registry:
        return Remedy("To start one that knows it:", (terminal.worker(),))
    return Remedy(
        f"Give it to its successor, with @app.job(aliases=({job.type!r},)), or import its module, with "
        "include=[...]; then start a worker:",
        (terminal.worker(),),
    )


def _queued(_: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    return Remedy(
        "If it stays like this, all are busy or serve other queues. What runs, and one worker more:",
        (terminal.command("jobs", "list", "--status", "running"), terminal.worker("--queues", job.queue)),
    )


def _running(_: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    look = terminal.command("jobs", "show", job.id)
    if job.stop_requested:
        return Remedy("It ends when its handler looks at current_job().cancelled. How far it is:", (look,))
    return Remedy("How far it is, or to ask it to stop:", (look, terminal.command("jobs", "cancel", job.id)))


def _abandoned(explanation: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    return Remedy() if explanation.remedy is None else _start(explanation, job, terminal)


def _show(_: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    return Remedy("Its arguments and its result:", (terminal.command("jobs", "show", job.id),))


def _canceled(_: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    return Remedy(
        "It does not run again; its arguments, for a new one:", (terminal.command("jobs", "show", job.id),)
    )


def _unique(explanation: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    return Remedy(
        "Why that one has not ended, or to run this one as a new job without the key:",
        (terminal.command("explain", *explanation.blocked_by), terminal.command("dlq", "replay", job.id)),
    )


def _again(explanation: Explanation, job: JobInfo, terminal: Terminal) -> Remedy:
    commands = [terminal.command("jobs", "retry", job.id), terminal.command("dlq", "replay", job.id)]
    if explanation.reason is Reason.EXPIRED:
        return Remedy("To run it all the same, as the same job or as a new one:", tuple(commands))
    text = "To see every attempt, or to run it again, as the same job or as a new one:"
    if explanation.reason is Reason.QUARANTINED:
        text = "Find out first what kills its process or its worker. Every attempt; the same job again; a new one:"
    return Remedy(text, (terminal.command("dlq", "show", job.id), *commands))


_REMEDIES: dict[Reason, Callable[[Explanation, JobInfo, Terminal], Remedy]] = {
    Reason.NOT_DUE: _earlier,
    Reason.RETRYING: _earlier,
    Reason.PAUSED: _resume,
    Reason.BEHIND: _behind,
    Reason.RATE_LIMITED: _rate,
    Reason.LIMIT_REACHED: _limit,
    Reason.NO_WORKER: _start,
    Reason.UNKNOWN_HANDLER: _know,
    Reason.QUEUED: _queued,
    Reason.RUNNING: _running,
    Reason.ABANDONED: _abandoned,
    Reason.COMPLETED: _show,
    Reason.CANCELED: _canceled,
    Reason.UNIQUE_BLOCKED: _unique,
    Reason.QUARANTINED: _again,
    Reason.EXPIRED: _again,
    Reason.FAILED: _again,
}
