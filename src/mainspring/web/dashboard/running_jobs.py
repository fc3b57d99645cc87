"""The jobs that run now, for the pages of queues and workers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mainspring.jobs.handle import open_manager
from mainspring.jobs.info import JobInfo, ProgressInfo
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import Query
from mainspring.jobs.status import JobStatus
from mainspring.security.permissions import Permissions
from mainspring.web.dashboard.bounded_scan import BoundedScan
from mainspring.web.dashboard.page import PageCall
from mainspring.web.dashboard.snapshots import Source

if TYPE_CHECKING:
    from mainspring.app import Mainspring

MAX_RUNNING = 1_000
"""The largest number of RUNNING jobs that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A RUNNING job as pages of queues and workers show it, without its arguments."""

    id: str
    type: str
    queue: str
    worker: int | None
    started: datetime | None
    attempt: int
    progress: ProgressInfo | None
    stop_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """The RUNNING jobs that were read, the one that started first at the beginning."""

    jobs: list[RunningJob]
    is_complete: bool
    """Whether these are all RUNNING jobs that match; False if the read stopped at a number or a size."""


async def running_jobs(call: PageCall, *, queue: str | None = None, limit: int = MAX_RUNNING) -> RunningJobs:
    """Return the RUNNING jobs that the caller may read, of all queues or of one, at most `limit`.

    Pages of callers with the same rights share the answer for a second.
    """
    permissions = call.identity.permissions

    async def read(app: Mainspring) -> RunningJobs:
        return await app.off_loop.read(_read, (await open_manager(app)), permissions, queue, limit)

    rights = [None if names is None else sorted(names) for names in (permissions.types, permissions.queues)]
    return await call.get(Source(name=f"running jobs {queue!r} {limit} {rights}", read=read))


def _read(manager: JobManager, permissions: Permissions, queue: str | None, limit: int) -> RunningJobs:
    query = Query(
        status=JobStatus.RUNNING,
        queue=queue,
        types=None if permissions.types is None else tuple(sorted(permissions.types)),
        queues=None if permissions.queues is None else tuple(sorted(permissions.queues)),
    )
    scan = BoundedScan(manager.engine.find, query, limit)
    found = [_running(info) for info in manager.infos(list(scan))]
    found.sort(key=lambda job: (job.started is None, job.started))
    return RunningJobs(jobs=found, is_complete=scan.is_complete)


def _running(job: JobInfo) -> RunningJob:
    return RunningJob(
        id=job.id,
        type=job.type,
        queue=job.queue,
        worker=job.worker,
        started=job.started,
        attempt=job.starts,
        progress=job.progress,
        stop_requested=job.stop_requested,
    )
