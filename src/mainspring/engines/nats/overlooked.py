"""Messages that a consumer has overlooked: they stand in a lane, and nobody gets them.

Seen with server 2.15.1 after a purge among what a consumer delivers: it counted nothing to deliver, with a message
there. We do not purge there any more; but a job that waits for ever is not worth the trust. One lane is looked at
in each sweep, which costs one request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.lanes import Lane, Lanes
from mainspring.engines.nats.naming import from_token
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.status import JobStatus

OVERDUE = 5 * MICROSECONDS
AT_ONCE = 50

logger = logging.getLogger("mainspring.nats")


class Overlooked:
    """Looks at one lane after another."""

    def __init__(self, workshop: Workshop, streams: Streams, lanes: Lanes, queueing: Queueing) -> None:
        self._workshop = workshop
        self._streams = streams
        self._lanes = lanes
        self._queueing = queueing
        self._turn = 0

    def look(self) -> list[str]:
        """Look at the next lane; queue again what was overlooked there, and return which jobs."""
        lanes = list(self._lanes.all)
        if not lanes:
            return []
        self._turn = (self._turn + 1) % len(lanes)
        return self._look_at(lanes[self._turn])

    def _look_at(self, lane: Lane) -> list[str]:
        subject = self._lanes.all[lane]
        if not self._streams.is_idle(subject):
            return []
        found = self._workshop.link.scan(subject, most=AT_ONCE)
        ids = [from_token(name.rpartition(".")[2]) for name, _ in found]
        answers = self._workshop.carry_through_many(ids, self._queue_again, before=_prefetch)
        again = [job_id for job_id, is_done in zip(ids, answers, strict=True) if is_done]
        for job_id in again:
            logger.warning("job %s was overlooked by its consumer, and was queued again", job_id)
        return again

    def _queue_again(self, workspace: Workspace, job_id: str) -> bool:
        job = workspace.job(job_id)
        if job is None or job.status is not JobStatus.PENDING or job.owner is not None:
            return False
        if job.due > workspace.now - OVERDUE or (job.is_gated and not is_ready(job)):
            return False  # it may just have come, or waits before its gates
        self._queueing.make_ready_again(workspace, job)
        return True


def _prefetch(workspace: Workspace, job_ids: Sequence[str]) -> None:
    workspace.prefetch_jobs(job_ids)
