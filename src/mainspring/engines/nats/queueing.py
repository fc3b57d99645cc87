"""Queueing: the message by which a waiting job comes to a worker.

A PENDING job that nobody holds has one: in its lane if it is due soon, else a schedule of the server that puts it
there a short lead ahead. A job under a sequence or limits passes its gates first: see `gates`. The message is
stored in one draft with the record; or, for a few plain jobs, before it, and means nothing without it. A lane may
also hold outdated messages of jobs that were called off or put off: whoever gets one reads the record.
"""

from __future__ import annotations

from mainspring.engines.nats.drafts import Put, schedule_headers
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.lanes import Lanes
from mainspring.engines.nats.ready import make_ready
from mainspring.engines.nats.stored import StoredJob, encode
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.instants import MICROSECONDS

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
