"""Snapshots of the workers of a store, for operators: `app.workers()` and `mainspring workers list`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mainspring.jobs.engine import STALE
from mainspring.jobs.records import WorkerRecord
from mainspring.jobs.timestamps import to_datetime


class Liveness(StrEnum):
    """Whether a worker runs, as far as the store knows."""

    ALIVE = "alive"
    SILENT = "silent"
    """The worker has sent no heartbeat for 45 seconds.

    Its process may be suspended, or its machine unreachable.
    """
    DEAD = "dead"
    """The process of the worker has ended, and another worker has not rescued its jobs yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A snapshot of a worker."""

    number: int
    """The number of the worker. `JobInfo.worker` is the number of the worker that has leased the job."""
    name: str
    """The host and the process id of the worker: `host:4711`."""
    process: int
    types: tuple[str, ...]
    """The job types that the worker has handlers for."""
    queues: tuple[str, ...] | None
    """The queues that the worker serves; None for all."""
    state: Liveness
    heartbeat: datetime | None
    """The instant of the last heartbeat; None if the worker was declared dead."""


def to_worker_status(record: WorkerRecord, now: int) -> WorkerStatus:
    """Make a snapshot of a stored worker."""
    state = Liveness.ALIVE if now - record.heartbeat <= STALE else Liveness.SILENT
    return WorkerStatus(
        number=record.number,
        name=record.info.name,
        process=record.info.process,
        types=record.info.types,
        queues=record.info.queues,
        state=Liveness.DEAD if record.is_gone else state,
        heartbeat=to_datetime(record.heartbeat) if record.heartbeat else None,
    )
