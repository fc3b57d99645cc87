"""Queues jobs: stores the message that delivers a waiting job to a worker, in the lane of the job.

A lane has the jobs of one queue, type and priority, and a consumer that all workers share. A worker pulls only
from lanes whose types it has handlers for. Lanes are records: the submit of the first job of a lane stores it, and
workers read new ones.

A PENDING job without an owner has one message: in its lane if it is due soon, else a schedule of the server that
publishes one there a short lead ahead. A job in a sequence or under limits passes its gates first: see `gates`.
The message is stored in one transaction (a `Workspace`) with the record; for a few plain jobs it is stored before
the record, and is ignored without it. A lane may also have outdated messages of jobs that were canceled or
rescheduled: the worker reads the record.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.drafts import Put, StreamEntry, schedule_headers
from mainspring.engines.nats.gates import Gates, make_ready
from mainspring.engines.nats.naming import Names, from_token
from mainspring.engines.nats.stored import StoredJob, encode
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.timestamps import MICROSECONDS


class NatsLane(Struct, frozen=True, gc=False):
    """The queue, type and priority that jobs of one consumer have in common."""

    queue: str
    type: str
    priority: int


class NatsLanes:
    """The lanes that this process knows. Only the thread that claims jobs reads `all` and calls `read_new`."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._announced: set[NatsLane] = set()
        self.all: dict[NatsLane, str] = {}
        """The subject of each lane, with a wildcard for its jobs."""
        self._position = 0
        self.must_read = True
        """Whether there may be new lanes."""

    def forget(self) -> None:
        """Forget all lanes: the stream may have been created anew."""
        self._announced.clear()
        self.all.clear()
        self._position = 0
        self.must_read = True

    def announce(self, workspace: Workspace, job: StoredJob) -> None:
        """Store the lane of a job and notify workers, if this process has not done so before."""
        lane = NatsLane(job.queue, job.type, job.priority)
        subject = self._names.lane(lane.queue, lane.type, lane.priority)
        if lane not in self._announced and subject not in workspace.draft:
            workspace.draft.put(subject, encode(lane))
            workspace.draft.send(f"{self._names.notes}lane")
            workspace.draft.then(lambda: self._note(lane))

    def knows(self, job: StoredJob) -> bool:
        """Return whether this process has stored the lane of a job, so that workers know it."""
        return NatsLane(job.queue, job.type, job.priority) in self._announced

    def _note(self, lane: NatsLane) -> None:
        self._announced.add(lane)
        self.must_read = True

    def read_new(self, workspace: Workspace) -> list[NatsLane]:
        """Read the lanes that were stored since the last read; return the new ones."""
        self.must_read = False
        new: list[NatsLane] = []
        while found := workspace.scan(f"{self._names.lanes}>", after=self._position):
            new += self._add(found)
        return new

    def _add(self, found: list[tuple[str, StreamEntry]]) -> list[NatsLane]:
        new = []
        for subject, entry in found:
            lane, ready = read_lane(self._names, subject)
            if lane not in self.all:
                self.all[lane] = ready
                new.append(lane)
            self._position = max(self._position, entry.revision)
        return new


def read_lane(names: Names, subject: str) -> tuple[NatsLane, str]:
    """Return the lane whose record has this subject, and the subject of its jobs, with a wildcard."""
    tokens = subject.removeprefix(names.lanes)
    queue, type_, priority = tokens.split(".")
    return NatsLane(from_token(queue), from_token(type_), int(priority)), f"{names.ready}{tokens}.*"


LEAD = 1 * MICROSECONDS
"""How long before its due time a job is delivered: workers hold it and start it in time."""


class Queueing:
    """Puts jobs where workers find them, and removes them."""

    def __init__(self, gates: Gates, lanes: NatsLanes) -> None:
        self._gates = gates
        self._lanes = lanes

    def enqueue(self, workspace: Workspace, job: StoredJob) -> None:
        """Store a waiting job with its message."""
        self._lanes.announce(workspace, job)
        names, draft = workspace.names, workspace.draft
        workspace.put_job(job)
        if job.expires is not None:
            draft.schedule(names.at("expire", job.id), names.chore("expire", job.id), job.expires)
        if job.is_gated:
            if job.due <= workspace.now:
                self._gates.enter(workspace, job)
            else:  # the chore is delivered ahead, and kept until the job is due: such jobs are not held
                subject, chore = names.at("job", job.id), names.chore("enter", job.id)
                draft.schedule(subject, chore, job.due - LEAD, encode([job.due]))
        elif job.due <= workspace.now + LEAD:
            make_ready(workspace, job)
        else:
            ready = names.ready_of(job.queue, job.type, job.priority, job.id)
            draft.schedule(names.at("job", job.id), ready, job.due - LEAD)

    def make_ready_again(self, workspace: Workspace, job: StoredJob) -> None:
        """Put a job that has passed its gates into its lane again."""
        workspace.put_job(job)
        make_ready(workspace, job)

    def knows_lane(self, job: StoredJob) -> bool:
        """Return whether workers know the lane of a job already."""
        return self._lanes.knows(job)

    def few_puts(self, workspace: Workspace, job: StoredJob) -> list[Put]:
        """Return the message and the record of a new plain job, to be stored in this order.

        A message without a record is ignored. A schedule does not replace that of another job with the same id.
        """
        names, data = workspace.names, encode(job)
        ready = names.ready_of(job.queue, job.type, job.priority, job.id)
        record = Put(names.job(job.id), data, 0)
        if job.due <= workspace.now + LEAD:
            return [Put(ready, b""), record]
        return [Put(names.at("job", job.id), b"", 0, schedule_headers(ready, job.due - LEAD)), record]

    def dequeue(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """Remove a waiting job from its gates, and delete its schedules.

        A message in its lane stays, and is ignored: the worker that gets it reads the record. It is not purged:
        after a purge of a subject that a consumer delivers, the server (2.15.1) may skip the next message there.
        """
        names = workspace.names
        workspace.withdraw(names.ready_of(job.queue, job.type, job.priority, job.id))
        workspace.purge(names.at("job", job.id))
        if job.expires is not None:
            workspace.purge(names.at("expire", job.id))
        return self._gates.withdraw(workspace, job) if job.is_gated else job
