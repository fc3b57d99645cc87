"""Carries out commands on single jobs: cancel, reschedule, reopen, replay, edit, delete, regroup.

A command changes the record of a job, and with it the messages in the queue, the gates and the unique keys, in one
transaction (a `Workspace`). The transaction commits only if no other process has changed the record meanwhile. So
of a cancel and a start at the same time, one sees the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.journal import NatsJournal
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.stored import StoredJob, change
from mainspring.engines.nats.stored_schedules import remember_job
from mainspring.engines.nats.submitting import NatsSubmitting
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs import transitions
from mainspring.jobs.commands import (
    CancelJob,
    Changed,
    ChangeLimits,
    Command,
    Delete,
    Edit,
    Reopen,
    Replay,
    Reschedule,
)
from mainspring.jobs.events import EventKind
from mainspring.jobs.status import FINAL, JobStatus

AT_ONCE = 50
"""Commands in one transaction."""


class NatsCommands:
    """Carries out commands within transactions."""

    def __init__(self, *, queueing: Queueing, submitting: NatsSubmitting, journal: NatsJournal) -> None:
        self._queueing = queueing
        self._submitting = submitting
        self._journal = journal

    def carry_out_all(self, workshop: Workshop, commands: Sequence[Command]) -> list[Changed]:
        """Carry out commands in order, many in one transaction.

        If the answer to a commit is lost, the next attempt reads the jobs: if they are as the last attempt left
        them, it was stored, and its results are returned.
        """
        answers: dict[int, Changed] = {}
        before: dict[str, StoredJob | None] = {}  # the jobs as the last attempt left them
        after: dict[str, StoredJob | None] = {}  # the jobs as this attempt leaves them

        def begin(workspace: Workspace, numbered: Sequence[tuple[int, Command]]) -> None:
            before.clear()
            before.update(after)
            after.clear()
            self.prefetch(workspace, [command for _, command in numbered])

        def work(workspace: Workspace, numbered: tuple[int, Command]) -> Changed:
            number, command = numbered
            job = workspace.job(command.id)
            is_stored = number in answers and before.get(command.id) == job
            if not is_stored or (job is not None and job.status is JobStatus.RUNNING):  # notify its worker again
                answers[number] = self.carry_out(workspace, command)
            after[command.id] = workspace.job(command.id)
            return answers[number]

        return workshop.carry_through_many(list(enumerate(commands)), work, before=begin, at_once=AT_ONCE)

    def prefetch(self, workspace: Workspace, commands: Sequence[Command]) -> None:
        """Read in bulk the jobs that commands are about."""
        workspace.prefetch_jobs(command.id for command in commands)

    def carry_out(self, workspace: Workspace, command: Command) -> Changed:
        """Carry out one command, if the state of its job allows it."""
        job = workspace.job(command.id)
        if job is None:
            return Changed(False, None)
        match command:
            case CancelJob():
                return Changed(self.cancel(workspace, job), job.status)
            case Reopen() | Replay() if job.status is JobStatus.FAILED:
                return self._run_again(workspace, job, command)
            case Edit() if job.status is JobStatus.FAILED:
                workspace.put_job(change(job, payload=command.payload, codec=command.codec))
            case Delete() if job.status in FINAL and command.status in (None, job.status):
                _delete(workspace, job)
            case Reschedule() if job.status is JobStatus.PENDING:
                freed = self._take_away(workspace, job)
                self._queueing.enqueue(workspace, change(freed, due=command.due, turn=command.due))
                self._journal.write(workspace, EventKind.RESCHEDULED, job)
            case ChangeLimits() if job.status is JobStatus.PENDING:
                freed = self._take_away(workspace, job)
                self._queueing.enqueue(workspace, change(freed, limits=command.limits))
            case _:
                return Changed(False, job.status)
        return Changed(True, job.status)

    def cancel(self, workspace: Workspace, job: StoredJob) -> bool:
        """Cancel a PENDING job, or ask a RUNNING one to stop; return whether it will never run."""
        if job.status is JobStatus.PENDING:
            workspace.put_job(transitions.canceled(self._take_away(workspace, job), workspace.now))
            self._journal.write(workspace, EventKind.CANCELED, job)
            return True
        if job.status is JobStatus.RUNNING:
            if not job.stop_requested:
                workspace.put_job(change(job, stop_requested=True))
            workspace.draft.send(f"{workspace.names.notes}stop", job.id.encode())
        return False

    def _take_away(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """Remove a waiting job from its queue, and from the worker that may hold it."""
        return transitions.lease_revoked(self._queueing.dequeue(workspace, job))

    def _run_again(self, workspace: Workspace, job: StoredJob, command: Reopen | Replay) -> Changed:
        if job.replayed_as is not None:
            return Changed(False, job.status, job.replayed_as)  # it was replayed as another job
        if isinstance(command, Replay):
            copy = transitions.copy_of(job, command)
            conflict = self._submitting.add(workspace, copy, nonce=f"replay of {job.id}")
            if conflict is not None:
                return Changed(False, job.status, conflict.existing_id)
            workspace.put_job(change(job, replayed_as=command.new_id))
            return Changed(True, job.status)
        holder = uniqueness.find_alive_holder(workspace, job)
        if holder is not None:
            return Changed(False, job.status, holder, is_unique_conflict=True)
        uniqueness.claim(workspace, job)  # written, so that a concurrent submit with this key sees it
        remember_job(workspace, job)
        self._queueing.enqueue(workspace, change(transitions.reopened(job, command.due), turn=command.due))
        self._journal.write(workspace, EventKind.REOPENED, job)
        return Changed(True, job.status)


def _delete(workspace: Workspace, job: StoredJob) -> None:
    names = workspace.names
    workspace.forget_job(job.id)
    uniqueness.release(workspace, job)
    ready = names.ready_of(job.queue, job.type, job.priority, job.id)
    workspace.withdraw(ready)
    workspace.purge(*(names.at(kind, job.id) for kind in ("job", "expire", "forget")))
