"""Rescuing the jobs of workers that died, or that left without settling them."""

from __future__ import annotations

from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.workers import Sign, Workers
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs import transitions
from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.events import EventKind
from mainspring.jobs.status import JobStatus

EVENTS = {JobStatus.PENDING: EventKind.RESCUED, JobStatus.CANCELED: EventKind.CANCELED}


class Rescuing:
    """Takes jobs from the dead. What it did is told by the next sweep."""

    def __init__(
        self,
        workshop: Workshop,
        workers: Workers,
        *,
        queueing: Queueing,
        gates: Gates,
        journal: Journal,
        max_crashes: int = MAX_CRASHES,
    ) -> None:
        self._workshop = workshop
        self._workers = workers
        self._queueing = queueing
        self._gates = gates
        self._journal = journal
        self._max_crashes = max_crashes
        self._rescued: list[str] = []
        self._quarantined: list[str] = []

    def rescue(self, workspace: Workspace, job: StoredJob) -> None:
        """Take a job from a worker that is dead."""
        was_running = job.status is JobStatus.RUNNING
        after = transitions.rescued(job, workspace.now, self._max_crashes)
        if job.is_gated and was_running:
            after = self._gates.leave(workspace, after, keeps_sequence=after.status is JobStatus.PENDING)
        if after.status is JobStatus.PENDING:
            self._queueing.enqueue(workspace, after)
        else:
            workspace.put_job(after)
        if was_running:
            self._journal.tell_start(workspace, job)
            self._tell(workspace, after)

    def _tell(self, workspace: Workspace, job: StoredJob) -> None:
        if job.status is JobStatus.FAILED:
            self._journal.write_failed(workspace, job)
            workspace.draft.then(lambda: self._quarantined.append(job.id))
        else:
            self._journal.write(workspace, EVENTS[job.status], job)
            if job.status is JobStatus.PENDING:
                workspace.draft.then(lambda: self._rescued.append(job.id))

    def sweep(self) -> tuple[list[str], list[str]]:
        """Rescue what workers have left behind; return what was rescued, and quarantined, since the last sweep."""
        for number, sign in self._workers.read_all().items():
            if sign.has_left:
                self._rescue_all(number, sign)
        rescued, self._rescued = self._rescued, []
        quarantined, self._quarantined = self._quarantined, []
        return rescued, quarantined

    def _rescue_all(self, number: int, sign: Sign) -> None:
        def rescue_left(workspace: Workspace, job_id: str) -> None:
            job = workspace.job(job_id)
            if job is not None and job.owner == number and not job.is_over:
                self.rescue(workspace, job)

        self._workshop.carry_through_many(sign.left_behind, rescue_left, at_once=20)
        self._workers.forget(number)
