"""Reads the state of a store and an application once, so that checks need no further queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.app import Mainspring
from mainspring.doctor.signatures import SignatureFacts, read_signatures
from mainspring.jobs.backlog import Backlog
from mainspring.jobs.blocked_jobs import BlockedGroup, find_blocked
from mainspring.jobs.engine import STALE, Engine
from mainspring.jobs.limits import Limit
from mainspring.jobs.quotas import quotas_of
from mainspring.jobs.records import JobRecord, Query, WorkerRecord
from mainspring.jobs.recurrence.orphaned_schedules import was_declared
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.statistics import UpcomingSlot, to_slot
from mainspring.jobs.status import JobStatus

READ = 1_000  # how many jobs of one status are read
LOOKAHEAD = 200_000  # how many scheduled jobs are examined for the fullest slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a store at one moment, with the handlers and schedules that the application declares."""

    now: int
    patience: int = STALE
    """The largest age of a live worker's last heartbeat, in microseconds."""
    workers: Sequence[WorkerRecord] = ()
    backlog: Sequence[Backlog] = ()
    paused: frozenset[str] = frozenset()
    blocked: Sequence[BlockedGroup] = ()
    """Groups of due jobs that wait for other jobs to end; empty if `counts` is None."""
    schedules: Sequence[ScheduleRecord] = ()
    counts: Mapping[JobStatus, int] | None = None
    """The number of jobs by status; None if counting them would take too long."""
    letters: Sequence[JobRecord] = ()
    """The first 1,000 dead letters that were not replayed; empty if `counts` is None."""
    pending: frozenset[str] = frozenset()
    """The job types of the first 1,000 PENDING jobs, due or not; empty if `counts` is None."""
    handlers: frozenset[str] | None = None
    """The job types for which the application has handlers; None if no application is known."""
    handler_queues: frozenset[str] = frozenset()
    """The queues of the application's handlers; empty if no application is known."""
    remote: frozenset[str] = frozenset()
    """The job types that remote workers run, as the application declares."""
    not_stored: Sequence[str] = ()
    """The names of schedules that the application declares and that are not stored."""
    stored_otherwise: Sequence[str] = ()
    """The names of schedules whose stored definition differs from the declared one."""
    undeclared: Sequence[ScheduleRecord] = ()
    """The stored schedules whose handler the application has, but which its code no longer declares."""

    fullest_slot: UpcomingSlot | None = None
    """The fullest slot of the next scheduled jobs; None if no jobs are scheduled, or `counts` is None."""
    depths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each queue with a depth quota: how many jobs are pending, and how many may be."""

    signatures: SignatureFacts | None = None
    """The keys that have signed jobs and schedules; None if counting them would take too long."""

    @property
    def alive(self) -> list[WorkerRecord]:
        """The workers whose last heartbeat is recent enough and whose process is not known to have ended."""
        return [worker for worker in self.workers if not worker.is_gone and self._is_recent(worker)]

    def _is_recent(self, worker: WorkerRecord) -> bool:
        terms = worker.info.remote
        return worker.heartbeat >= self.now - (self.patience if terms is None else terms.lease)

    @property
    def known(self) -> frozenset[str]:
        """The job types for which live workers have handlers."""
        return frozenset(type_ for worker in self.alive for type_ in worker.info.types)

    @property
    def waiting(self) -> list[Backlog]:
        """The due jobs that wait for a worker, in queues that are not paused."""
        return [backlog for backlog in self.backlog if backlog.queue not in self.paused]

    def overdue(self, by: int) -> list[ScheduleRecord]:
        """Return the schedules that no worker has fired although they were due more than `by` microseconds ago."""
        return [
            schedule
            for schedule in self.schedules
            if not schedule.is_paused and schedule.next_due is not None and schedule.next_due < self.now - by
        ]


def take_snapshot(engine: Engine, app: Mainspring | None, *, counts: bool, patience: int = STALE) -> Snapshot:
    """Read the state of the store of an open engine.

    Pass `app` only if its handlers are loaded, else None. With `counts=False`, no reads are made that take long in
    a store with many jobs: the fields for which jobs must be counted or listed stay None or empty.
    """
    letters = Query(status=JobStatus.FAILED, is_replayed=False, limit=READ)
    pending = Query(status=JobStatus.PENDING, limit=READ)
    now, schedules = engine.now(), engine.schedules()
    handlers = () if app is None else app.registry.all()
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
        handlers=None if app is None else frozenset(app.registry.names()),
        handler_queues=frozenset(handler.options.queue for handler in handlers if not handler.is_remote),
        remote=frozenset() if app is None else frozenset(app.registry.remote_names()),
        not_stored=not_stored,
        stored_otherwise=stored_otherwise,
        undeclared=[] if app is None else [schedule for schedule in schedules if _is_undeclared(schedule, app)],
        fullest_slot=to_slot(engine.statistics(lookahead=LOOKAHEAD).fullest_slot) if counts else None,
        depths=_depths(engine) if counts else {},
        signatures=read_signatures(engine, schedules, None if app is None else app.signing) if counts else None,
    )


def _is_undeclared(schedule: ScheduleRecord, app: Mainspring) -> bool:
    return was_declared(schedule) and schedule.name not in app.declared and schedule.type in app.registry


def _depths(engine: Engine) -> dict[str, tuple[int, int]]:
    quotas = quotas_of({limit.family: Limit(limit.most, limit.per) for limit in engine.limits()})
    return {
        queue: (engine.counts(queue=queue)[JobStatus.PENDING], quota.max_depth)
        for queue, quota in quotas.items()
        if quota.max_depth is not None
    }
