"""Queues jobs: the message that brings a waiting job to a worker, and the lanes that hold these messages.

A lane holds the jobs of one queue, type and priority, with a consumer that all workers share. A worker pulls only
from lanes whose types it has handlers for. Lanes are records: the submit of the first job of a lane stores it, and
workers read new ones.

A PENDING job without an owner has one message: in its lane if it is due soon, else a schedule of the server that
puts it there a short lead ahead. A job under a sequence or limits passes its gates first: see `gates`. The message
is stored in one transaction with the record; or, for a few plain jobs, before it, and means nothing without it. A
lane may also hold outdated messages of jobs that were canceled or rescheduled: the worker reads the record.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.drafts import Entry, Put, schedule_headers
from mainspring.engines.nats.gates import Gates, make_ready
from mainspring.engines.nats.naming import Names, from_token
from mainspring.engines.nats.stored import StoredJob, encode
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.instants import MICROSECONDS


class Lane(Struct, frozen=True, gc=False):
    """Jobs that are alike for those who take them."""

    queue: str
    type: str
    priority: int


class Lanes:
    """The lanes that this process knows. `all` is read by the thread that takes; it alone calls `read_new`."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._announced: set[Lane] = set()
        self.all: dict[Lane, str] = {}
        """The subject of each, with a wildcard for its jobs."""
        self._position = 0
        self.must_read = True
        """Whether there may be new ones."""

    def forget(self) -> None:
        """Begin anew: the stream may be another one."""
        self._announced.clear()
        self.all.clear()
        self._position = 0
        self.must_read = True

    def announce(self, workspace: Workspace, job: StoredJob) -> None:
        """Make the lane of a job known, if this process has not done so before."""
        lane = Lane(job.queue, job.type, job.priority)
        subject = self._names.lane(lane.queue, lane.type, lane.priority)
        if lane not in self._announced and subject not in workspace.draft:
            workspace.draft.put(subject, encode(lane))
            workspace.draft.send(f"{self._names.notes}lane")
            workspace.draft.then(lambda: self._note(lane))

    def knows(self, job: StoredJob) -> bool:
        """Answer whether the lane of a job is known to all workers."""
        return Lane(job.queue, job.type, job.priority) in self._announced

    def _note(self, lane: Lane) -> None:
        self._announced.add(lane)
        self.must_read = True

    def read_new(self, workspace: Workspace) -> list[Lane]:
        """Read the lanes that were made since; return them."""
        self.must_read = False
        new: list[Lane] = []
        while found := workspace.scan(f"{self._names.lanes}>", after=self._position):
            new += self._add(found)
        return new

    def _add(self, found: list[tuple[str, Entry]]) -> list[Lane]:
        new = []
        for subject, entry in found:
            lane, ready = read_lane(self._names, subject)
            if lane not in self.all:
                self.all[lane] = ready
                new.append(lane)
            self._position = max(self._position, entry.revision)
        return new


def read_lane(names: Names, subject: str) -> tuple[Lane, str]:
    """Return the lane that a record is of, and the subject of its jobs, with a wildcard."""
    tokens = subject.removeprefix(names.lanes)
    queue, type_, priority = tokens.split(".")
    return Lane(from_token(queue), from_token(type_), int(priority)), f"{names.ready}{tokens}.*"


LEAD = 1 * MICROSECONDS
"""How long before its due time a job is handed over: workers hold it and start it in time."""


class Queueing:
    """Puts jobs where workers find them, and takes them away."""

    def __init__(self, gates: Gates, lanes: Lanes) -> None:
        self._gates = gates
        self._lanes = lanes

    def enqueue(self, workspace: Workspace, job: StoredJob) -> None:
        """Store a job that waits, with its message."""
        self._lanes.announce(workspace, job)
        names, draft = workspace.names, workspace.draft
        workspace.put_job(job)
        if job.expires is not None:
            draft.schedule(names.at("expire", job.id), names.chore("expire", job.id), job.expires)
        if job.is_gated:
            if job.due <= workspace.now:
                self._gates.enter(workspace, job)
            else:  # the chore comes ahead, and is held until the job is due: keyed jobs are not taken ahead
                subject, chore = names.at("job", job.id), names.chore("enter", job.id)
                draft.schedule(subject, chore, job.due - LEAD, encode([job.due]))
        elif job.due <= workspace.now + LEAD:
            make_ready(workspace, job)
        else:
            ready = names.ready_of(job.queue, job.type, job.priority, job.id)
            draft.schedule(names.at("job", job.id), ready, job.due - LEAD)

    def make_ready_again(self, workspace: Workspace, job: StoredJob) -> None:
        """Put a job that has passed its gates into its lane, once more."""
        workspace.put_job(job)
        make_ready(workspace, job)

    def knows_lane(self, job: StoredJob) -> bool:
        """Answer whether workers know the lane of a job already."""
        return self._lanes.knows(job)

    def few_puts(self, workspace: Workspace, job: StoredJob) -> list[Put]:
        """Return the message and the record of a new plain job, to be stored in this order.

        A message without a record means nothing, and that of a job with the same id is not replaced by a schedule.
        """
        names, data = workspace.names, encode(job)
        ready = names.ready_of(job.queue, job.type, job.priority, job.id)
        record = Put(names.job(job.id), data, 0)
        if job.due <= workspace.now + LEAD:
            return [Put(ready, b""), record]
        return [Put(names.at("job", job.id), b"", 0, schedule_headers(ready, job.due - LEAD)), record]

    def dequeue(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """Take a waiting job out of line; its schedules are taken away.

        A message in its lane stays, and leads nowhere: whoever gets it reads the record. To purge it would be a
        purge inside of what a consumer delivers, after which the server (2.15.1) may overlook the next one there.
        """
        names = workspace.names
        workspace.withdraw(names.ready_of(job.queue, job.type, job.priority, job.id))
        workspace.purge(names.at("job", job.id))
        if job.expires is not None:
            workspace.purge(names.at("expire", job.id))
        return self._gates.withdraw(workspace, job) if job.is_gated else job
