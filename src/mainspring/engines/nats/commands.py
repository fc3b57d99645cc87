"""Commands of users and operators on single jobs: cancel, reschedule, reopen, replay, edit, delete, regroup.

Each is a change of the record that is stored only if nobody else has changed it meanwhile, together with what
follows from it: the messages in the queue, the gates, the keys. So of a cancel and a start at the same moment one
sees the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.stored import StoredJob, change
from mainspring.engines.nats.stored_schedules import remember_job
from mainspring.engines.nats.submitting import Submitting
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs import transitions
from mainspring.jobs.commands import Cancel, Changed, Command, Delete, Edit, Regroup, Reopen, Replay, Reschedule
from mainspring.jobs.events import EventKind
from mainspring.jobs.status import FINAL, JobStatus

AT_ONCE = 50
"""Commands in one draft."""


class Commands:
    """Carries commands out, each on a workspace."""

    def __init__(self, *, queueing: Queueing, submitting: Submitting, journal: Journal) -> None:
        self._queueing = queueing
        self._submitting = submitting
        self._journal = journal

    def carry_out_all(self, workshop: Workshop, commands: Sequence[Command]) -> list[Changed]:
        """Carry out commands in order, many in one draft.

        Nobody knows of a draft whose answer was lost. Its jobs tell: if they are as it would have left them, it
        was stored, and its answers are the right ones.
        """
        answers: dict[int, Changed] = {}
        before: dict[str, StoredJob | None] = {}  # how the last attempt left the jobs,
        after: dict[str, StoredJob | None] = {}  # and this one

        def begin(workspace: Workspace, numbered: Sequence[tuple[int, Command]]) -> None:
            before.clear()
            before.update(after)
            after.clear()
            self.prefetch(workspace, [command for _, command in numbered])

        def work(workspace: Workspace, numbered: tuple[int, Command]) -> Changed:
            number, command = numbered
            job = workspace.job(command.id)
            is_stored = number in answers and before.get(command.id) == job
            if not is_stored or (job is not None and job.status is JobStatus.RUNNING):  # its worker is to be told
                answers[number] = self.carry_out(workspace, command)
            after[command.id] = workspace.job(command.id)
            return answers[number]

        return workshop.carry_through_many(list(enumerate(commands)), work, before=begin, at_once=AT_ONCE)

    def prefetch(self, workspace: Workspace, commands: Sequence[Command]) -> None:
        """Read at once the jobs that commands are about."""
        workspace.prefetch_jobs(command.id for command in commands)

    def carry_out(self, workspace: Workspace, command: Command) -> Changed:
        """Carry out one command, if the state of its job allows it."""
        job = workspace.job(command.id)
        if job is None:
            return Changed(False, None)
        match command:
            case Cancel():
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
            case Regroup() if job.status is JobStatus.PENDING:
                freed = self._take_away(workspace, job)
                self._queueing.enqueue(workspace, change(freed, limits=command.limits))
            case _:
                return Changed(False, job.status)
        return Changed(True, job.status)

    def cancel(self, workspace: Workspace, job: StoredJob) -> bool:
        """Call a job off, or ask it to stop; answer whether it will never run."""
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
        """Take a waiting job out of its queue, and from the worker that may hold it."""
        return transitions.taken_back(self._queueing.dequeue(workspace, job))

    def _run_again(self, workspace: Workspace, job: StoredJob, command: Reopen | Replay) -> Changed:
        if job.replayed_as is not None:
            return Changed(False, job.status, job.replayed_as)  # its work goes on elsewhere
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
        uniqueness.claim(workspace, job)  # written, so that a submit under this key at the same moment sees it
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
