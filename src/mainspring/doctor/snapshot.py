"""What a store and an application say at one moment: checks judge it without asking again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mainspring.app import Mainspring
from mainspring.jobs.blocked import Blocked, find_blocked
from mainspring.jobs.crew import Backlog, WorkerState
from mainspring.jobs.engine import STALE, Engine
from mainspring.jobs.queries import Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.status import JobStatus

READ = 1_000  # jobs of one state that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One moment of a store."""

    now: int
    patience: int = STALE
    """For how long a worker may be silent."""
    workers: Sequence[WorkerState] = ()
    backlog: Sequence[Backlog] = ()
    paused: frozenset[str] = frozenset()
    blocked: Sequence[Blocked] = ()
    """Due jobs that wait for others to end; none if `counts` is None."""
    schedules: Sequence[ScheduleRecord] = ()
    counts: Mapping[JobStatus, int] | None = None
    """How many jobs there are of each state; None: counting them would take too long."""
    letters: Sequence[JobRecord] = ()
    """The first dead letters that were not replayed."""
    pending: frozenset[str] = frozenset()
    """The handlers of the first jobs that are PENDING, due or not."""
    handlers: frozenset[str] | None = None
    """What the application can run; None: no application is known."""
    not_stored: Sequence[str] = ()
    """Schedules that it declares and the store does not have,"""
    stored_otherwise: Sequence[str] = ()
    """or has otherwise."""

    @property
    def alive(self) -> list[WorkerState]:
        """The workers that have shown that they live."""
        since = self.now - self.patience
        return [worker for worker in self.workers if not worker.is_gone and worker.heartbeat >= since]

    @property
    def known(self) -> frozenset[str]:
        """What they can run."""
        return frozenset(type_ for worker in self.alive for type_ in worker.info.types)

    @property
    def waiting(self) -> list[Backlog]:
        """What is due and not paused."""
        return [backlog for backlog in self.backlog if backlog.queue not in self.paused]

    def overdue(self, by: int) -> list[ScheduleRecord]:
        """Return the schedules whose time has come so many microseconds ago, and nobody has fired them."""
        return [
            schedule
            for schedule in self.schedules
            if not schedule.is_paused and schedule.next_due is not None and schedule.next_due < self.now - by
        ]


def take_snapshot(engine: Engine, app: Mainspring | None, *, counts: bool, patience: int = STALE) -> Snapshot:
    """Ask an open engine; `app` only if its handlers are known, `counts` if counting jobs takes no time."""
    letters = Query(status=JobStatus.FAILED, is_replayed=False, limit=READ)
    pending = Query(status=JobStatus.PENDING, limit=READ)
    now, schedules = engine.now(), engine.schedules()
    not_stored, stored_otherwise = ([], []) if app is None else app.declared.compare(schedules, now)
    return Snapshot(
        now=now,
        patience=patience,
        workers=engine.workers(),
        backlog=engine.backlog(),
        blocked=find_blocked(engine) if counts else (),
        paused=frozenset(engine.paused_queues()),
        schedules=schedules,
        counts=engine.counts() if counts else None,
        letters=engine.find(letters).records if counts else (),
        pending=frozenset(record.type for record in engine.find(pending).records) if counts else frozenset(),
        handlers=None if app is None else frozenset(app.registry.names(lambda _handler: True)),
        not_stored=not_stored,
        stored_otherwise=stored_otherwise,
    )
