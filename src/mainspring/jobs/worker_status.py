"""Snapshots of the workers of a store, for operators: `app.workers()` and `mainspring workers list`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from mainspring.jobs.engine import STALE
from mainspring.jobs.records import Direction, WorkerRecord
from mainspring.jobs.timestamps import to_datetime


class Liveness(StrEnum):
    """Whether a worker runs, as far as the store knows."""

    ALIVE = "alive"
    SILENT = "silent"
    """The worker has sent no heartbeat for 45 seconds; a remote worker, for its lease.

    Its process may be suspended, or its machine unreachable.
    """
    DEAD = "dead"
    """The process of the worker has ended, and another worker has not rescued its jobs yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A snapshot of one worker of the store, for operators."""

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
    is_remote: bool = False
    """Whether it is a remote worker, which claims jobs over HTTP."""
    direction: str = Direction.RUN
    """What a remote worker is asked to do: `run`, `quiet` or `terminate`."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """How many handlers it runs at once, by kind: `threads`, `coroutines`, `processes`; empty if not known."""
    version: str | None = None
    """The version of Mainspring; None if it is not known. Version 0.1 does not store it."""


def to_worker_status(record: WorkerRecord, now: int) -> WorkerStatus:
    """Make a snapshot of a stored worker.

    The worker counts as dead if its record says so; else as silent if its last heartbeat is too old at `now`.
    """
    terms = record.info.remote
    patience = STALE if terms is None else terms.lease
    state = Liveness.ALIVE if now - record.heartbeat <= patience else Liveness.SILENT
    return WorkerStatus(
        number=record.number,
        name=record.info.name,
        process=record.info.process,
        types=record.info.types,
        queues=record.info.queues,
        state=Liveness.DEAD if record.is_gone else state,
        heartbeat=to_datetime(record.heartbeat) if record.heartbeat else None,
        is_remote=terms is not None,
        direction=Direction.RUN if terms is None else terms.direction,
        slots=record.info.slots,
        version=record.info.version or None,
    )
