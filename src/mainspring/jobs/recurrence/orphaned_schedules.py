"""Orphaned schedules: schedules that still fire although their code is gone. A worker warns once about each.

A schedule stays in the store when its declaration is deleted from the code, because another version of the code
may still declare it. There are two kinds of orphans:

- The handler is still there, and only the declaration is gone. The jobs run.
- No worker that runs has the handler. The jobs wait. With `overlap="skip"`, later occurrences get no job.

A schedule of another application that shares the store is no orphan while a worker of that application runs.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Container

from mainspring.jobs.engine import Engine
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.timestamps import MICROSECONDS

WORKERS_KNOWN_FOR = 60 * MICROSECONDS
"""For how many microseconds the list of workers is used before it is read from the store again."""

logger = logging.getLogger("mainspring.schedules")


class OrphanReporter:
    """Logs a warning once about each schedule that fires although its declaration is gone from the code, or no
    running worker has its handler.

    Only the firing thread of a worker uses it.
    """

    def __init__(self, engine: Engine, registry: Container[str], declared: Container[str]) -> None:
        self._engine = engine
        self._registry = registry
        self._declared = declared
        self._reported: dict[str, int] = {}  # the revisions of schedules that were reported
        self._types: frozenset[str] = frozenset()  # the job types of all workers that run
        self._types_read_at: int | None = None

    def check(self, record: ScheduleRecord) -> bool:
        """Log a warning, once for each revision, if the declaration of a schedule is gone, or no running worker
        has its handler.

        Return whether no running worker has the handler.
        """
        if record.type in self._registry:
            if was_declared(record) and record.name not in self._declared:
                self._report(
                    record,
                    "schedule %r fires, but its declaration is gone from the code; if it is not needed, remove "
                    "it: %s",
                    record.name,
                    _removal(record),
                )
            return False
        if self._has_worker(record.type):
            return False
        self._report(
            record,
            "schedule %r fires, but no running worker has its handler %r, so its jobs wait; if its code is gone, "
            "remove it: %s",
            record.name,
            record.type,
            _removal(record),
        )
        return True

    def _report(self, record: ScheduleRecord, message: str, *values: str) -> None:
        if self._reported.get(record.name) != record.revision:
            self._reported[record.name] = record.revision
            logger.warning(message, *values)

    def _has_worker(self, job_type: str) -> bool:
        now = self._engine.now()
        if self._types_read_at is None or abs(now - self._types_read_at) > WORKERS_KNOWN_FOR:
            alive = [worker for worker in self._engine.workers() if not worker.is_gone]
            self._types = frozenset(job_type for worker in alive for job_type in worker.info.types)
            self._types_read_at = now
        return job_type in self._types


def was_declared(record: ScheduleRecord) -> bool:
    """Return whether code declared a schedule, and not `app.schedules.put`.

    A schedule that version 0.1 stored counts as declared if its name is the job type.
    """
    return record.name == record.type if record.is_declared is None else record.is_declared


def _removal(record: ScheduleRecord) -> str:
    return shlex.join(("mainspring", "schedules", "remove", record.name))
