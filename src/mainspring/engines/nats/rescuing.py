"""Rescuing the jobs of workers that died, or that left without settling them."""

from __future__ import annotations

from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.lanes import Lane, Lanes
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.workers import Sign, Workers
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs import transitions
from mainspring.jobs.engine import MAX_CRASHES, EventKind, Swept
from mainspring.jobs.status import JobStatus

MOST_LOOKS = 20  # at lanes, in one sweep
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
        lanes: Lanes,
        book: SettingsBook,
        journal: Journal,
        max_crashes: int = MAX_CRASHES,
    ) -> None:
        self._workshop = workshop
        self._workers = workers
        self._queueing = queueing
        self._gates = gates
        self._lanes = lanes
        self._book = book
        self._journal = journal
        self._max_crashes = max_crashes
        self._rescued: list[str] = []
        self._quarantined: list[str] = []
        self._turn = 0  # which of the lanes that nobody here knows are looked at next

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
            self._tell(workspace, after)

    def _tell(self, workspace: Workspace, job: StoredJob) -> None:
        if job.status is JobStatus.FAILED:
            self._journal.write_failed(workspace, job)
            workspace.draft.then(lambda: self._quarantined.append(job.id))
        else:
            self._journal.write(workspace, EVENTS[job.status], job)
            if job.status is JobStatus.PENDING:
                workspace.draft.then(lambda: self._rescued.append(job.id))

    def sweep(self, types: frozenset[str]) -> Swept:
        """Rescue what workers have left behind; tell that, and what was rescued since the last sweep."""
        for number, sign in self._workers.read_all().items():
            if sign.has_left:
                self._rescue_all(number, sign)
        rescued, self._rescued = self._rescued, []
        quarantined, self._quarantined = self._quarantined, []
        return Swept(rescued, quarantined, self._find_waiting(types))

    def _rescue_all(self, number: int, sign: Sign) -> None:
        def rescue_left(workspace: Workspace, job_id: str) -> None:
            job = workspace.job(job_id)
            if job is not None and job.owner == number and not job.is_over:
                self.rescue(workspace, job)

        self._workshop.carry_through_many(sign.left_behind, rescue_left, at_once=20)
        self._workers.forget(number)

    def _find_waiting(self, types: frozenset[str]) -> tuple[str, ...]:
        """Return the handlers that we do not know and for which jobs wait."""
        unknown = [lane for lane in self._lanes.all if lane.type not in types]
        if len(unknown) > MOST_LOOKS:  # some of them, in turn
            self._turn = (self._turn + MOST_LOOKS) % len(unknown)
            unknown = (unknown[self._turn :] + unknown[: self._turn])[:MOST_LOOKS]
        return tuple(sorted({lane.type for lane in unknown if self._has_jobs(lane)}))

    def _has_jobs(self, lane: Lane) -> bool:
        return lane.queue not in self._book.paused and bool(
            self._workshop.link.scan(self._lanes.all[lane], most=1)
        )
