"""The page of workers: slots, running jobs and for how long they run, heartbeats and versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mainspring.jobs.worker_status import Liveness
from mainspring.security.permissions import Scope
from mainspring.web.api.store_state import WorkerView
from mainspring.web.dashboard.page import Page, PageCall
from mainspring.web.dashboard.running_jobs import RunningJob, running_jobs

if TYPE_CHECKING:
    from mainspring.app import Mainspring

SHOWN_JOBS = 25
"""The largest number of RUNNING jobs that the page lists for each worker."""
SHOWN_TYPES = 12


async def _list(call: PageCall) -> Mapping[str, Any]:
    workers: list[WorkerView] = (await call.api("list_workers")).workers
    running = await running_jobs(call)
    by_worker: dict[int | None, list[RunningJob]] = {}
    for job in running.jobs:
        by_worker.setdefault(job.worker, []).append(job)
    rows = [_row(worker, by_worker.pop(worker.number, [])) for worker in workers]
    versions = sorted({worker.version for worker in workers if worker.version and worker.state is Liveness.ALIVE})
    return {
        "rows": rows,
        "states": {state.value: sum(worker.state is state for worker in workers) for state in Liveness},
        "running": len(running.jobs),
        "is_complete": running.is_complete,
        "slots": _slots(workers),
        "versions": versions,
        "orphans": [job for jobs in by_worker.values() for job in jobs],
    }


def _slots(workers: list[WorkerView]) -> str:
    """Return as text how many slots all living workers have: `of 108 slots`; empty if no worker tells."""
    slots: Counter[str] = Counter()
    for worker in workers:
        if worker.state is Liveness.ALIVE:
            slots.update(worker.slots)
    return f"of {slots.total():,} slots" if slots else ""


def _row(worker: WorkerView, jobs: list[RunningJob]) -> dict[str, Any]:
    return {
        "worker": worker,
        "jobs": jobs[:SHOWN_JOBS],
        "running": len(jobs),
        "hidden": max(0, len(jobs) - SHOWN_JOBS),
        "types": worker.types[:SHOWN_TYPES],
        "more_types": max(0, len(worker.types) - SHOWN_TYPES),
    }


def pages(_app: Mainspring) -> list[Page]:
    """Return the declaration of the page of workers."""
    return [
        Page(
            name="workers",
            path="/workers",
            title="Workers",
            scopes=(Scope.READ,),
            load=_list,
            live=("worker_list",),
        )
    ]
