"""The queries of a job manager: jobs, lists, counts, explanations, statistics, activity, events, audit entries.

No method of `JobQueries` changes a job. `JobManager` adds the changes and the worker.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from mainspring.clock import Clock, Duration
from mainspring.errors import JobNotFound
from mainspring.jobs.activity import MINUTE, ActivityRecorder
from mainspring.jobs.activity_rows import rows_of
from mainspring.jobs.activity_writer import ActivityWriter
from mainspring.jobs.audit import AuditEntry, AuditQuery
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import PutLimit
from mainspring.jobs.engine import Engine
from mainspring.jobs.event_stream import EventFollower, EventStream
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.ids import require_id
from mainspring.jobs.info import JobInfo, JobPage, to_info
from mainspring.jobs.io_layer import closed_error
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.limits import Limit
from mainspring.jobs.off_loop import OffLoop
from mainspring.jobs.periodic_reads import shared_statistics
from mainspring.jobs.quotas import Quota, quotas_of
from mainspring.jobs.records import JobRecord, Query, require_cursor
from mainspring.jobs.redaction import Redactions
from mainspring.jobs.search import JobFilter, search
from mainspring.jobs.serializers import Serializers
from mainspring.jobs.status import JobStatus, to_status
from mainspring.jobs.timestamps import to_datetime, to_past
from mainspring.runners.runner import TaskRunner
from mainspring.runners.thread_pool import ThreadPool
from mainspring.runners.validation import require_positive

if TYPE_CHECKING:
    from mainspring.jobs.activity_rows import ActivityRow
    from mainspring.jobs.explanation import Explanation
    from mainspring.jobs.statistics import ProcessStatistics, Statistics
    from mainspring.jobs.worker.host import WorkerHost
    from mainspring.jobs.worker_status import WorkerStatus

ACTIVITY_PATIENCE = 2.0  # how many seconds a read or a shutdown waits for the store to add this process's counts


class JobQueries:
    """The methods of a job manager that change no job. `JobManager` sets the attributes.

    After `close` every call that needs the store raises `EngineUnavailable`.
    """

    engine: Engine
    registry: HandlerRegistry
    serializers: Serializers
    clock: Clock
    is_closed: bool
    """Whether `close` was called."""
    _activity: ActivityWriter | None
    _limits: LimitRegistry
    _host: WorkerHost | None
    _pools: tuple[ThreadPool, ...]
    _runners: tuple[TaskRunner, ...]
    _off_loop: OffLoop

    def _open_engine(self) -> Engine:
        """Return the engine; raise `EngineUnavailable` if this manager is closed."""
        if self.is_closed:
            raise closed_error(self.engine)
        return self.engine

    def get(self, job_id: str) -> JobInfo:
        """Return a snapshot of a job. Raises `JobNotFound` if there is no such job."""
        (info,) = self.infos([self.record(job_id)])
        return info

    def infos(self, records: Sequence[JobRecord]) -> builtins.list[JobInfo]:
        """Convert stored records of jobs into snapshots for users: arguments decoded, redacted values masked.

        The redactions are read from the store now, so that they are at least as new as the records.
        """
        redactions = self.redactions()
        return [redactions.show_info(to_info(record, self.serializers)) for record in records]

    def redactions(self) -> Redactions:
        """Return the redacted parameters of all job types: those in the store and those declared in this process.

        Call this after the jobs were read, so that it includes the redactions of these jobs.
        """
        return Redactions(self._open_engine().redactions(), self.registry.redacted())

    def error_of(self, job_id: str) -> str | None:
        """Return the error of a job with the values of redacted arguments masked; None if the job has no error.

        The local variables of the caller do not contain the record of the job, because a traceback could show
        them, and its arguments with them. Raises `JobNotFound` if there is no such job.
        """
        record = self.record(job_id)
        mask = self.redactions().mask_of(record, self.serializers)
        return record.error if mask is None else mask.optional(record.error)

    def record(self, job_id: str) -> JobRecord:
        """Return the stored record of a job. Raises `JobNotFound` if there is no such job."""
        found = self._open_engine().find(Query(ids=(require_id(job_id),))).records
        if not found:
            raise JobNotFound(job_id=job_id)
        return found[0]

    def list(
        self,
        *,
        status: JobStatus | str | None = None,
        queue: str | None = None,
        type: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        text: str | None = None,
        limit: int = 50,
        after: str | None = None,
        newest_first: bool = False,
        is_replayed: bool | None = None,
        by_failure: bool = False,
        types: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
    ) -> JobPage:
        """Return a page of jobs in the order of their submission, or the newest first.

        With `by_failure`, dead letters are in the order of their failure. `types` and `queues` are those that the
        caller may read; None for all. They are part of the query, so that pages are full. `after` is `next` of the
        page before. With `arguments` or `text`, a page may be incomplete: see `jobs.search`. Raises `ValueError`
        if one of the `arguments` is redacted.
        """
        engine = self._open_engine()
        query = Query(
            status=None if status is None else to_status(status),
            queue=queue,
            type=self._full_name(type),
            created_since=None if since is None else to_past(since, engine.now(), "since"),
            created_until=None if until is None else to_past(until, engine.now(), "until"),
            limit=require_positive(limit, "limit", "jobs"),
            after=require_cursor(after),
            newest_first=newest_first,
            is_replayed=is_replayed,
            by_failure=by_failure,
            types=None if types is None else tuple(sorted(types)),
            queues=None if queues is None else tuple(sorted(queues)),
        )
        wanted = JobFilter(arguments, text, self.serializers)
        if not wanted.is_empty:
            self.redactions().require_searchable(arguments or (), query.type, query.types)
            return search(engine.find, query, wanted, redactions=self.redactions)
        page = engine.find(query)
        return JobPage(self.infos(page.records), page.end)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[str, int]:
        """Count jobs by status. FAILED counts the dead letters: jobs that failed and were not replayed."""
        counts = self._open_engine().counts(queue=queue, type=self._full_name(type))
        return {str(status): count for status, count in counts.items()}

    def _full_name(self, type_: str | None) -> str | None:
        return None if type_ is None else self.registry.full_name(type_)

    def quotas(self) -> dict[str, Quota]:
        """Return the submit quotas by queue: those in the store, changed by the declarations of this process.

        A quota that this process declares as None is left out, even if it is still in the store.
        """
        limits = {limit.family: Limit(limit.most, limit.per) for limit in self._open_engine().limits()}
        for change in self._limits.quotas():
            if isinstance(change, PutLimit):
                limits[change.family] = Limit(change.most, change.per)
            else:
                limits.pop(change.family, None)
        return quotas_of(limits)

    def audit(self, query: AuditQuery) -> builtins.list[AuditEntry]:
        """List entries of the audit trail, the latest first. `AuditQuery.of` makes the query."""
        return self._open_engine().audit_entries(query)

    def explain(self, job_id: str) -> Explanation:
        """Explain the status of a job, for example why it has not started.

        Raises `JobNotFound` if there is no such job.
        """
        from mainspring.jobs.explanation import explain  # noqa: PLC0415 - see `mainspring.public`

        situation = self._open_engine().situation(require_id(job_id))
        if situation is None:
            raise JobNotFound(job_id=job_id)
        front = None if situation.behind is None else self.engine.situation(situation.behind)
        facts = self.engine.workers(), self.engine.limits(), self.engine.now()
        pause = self._pause_of(situation.record)
        found = explain(situation, *facts, front=front, registry=self.registry, pause=pause)
        records = [each.record for each in (situation, front) if each is not None]
        return self.redactions().show_explanation(found, records, self.serializers)

    def _pause_of(self, record: JobRecord) -> CallbackPauseRecord | None:
        """Return the pause of a receiver of callbacks that holds back a job, the one that ends last; None if none
        does.
        """
        from mainspring.jobs.paused_receivers import pauses_concerning  # noqa: PLC0415 - see `mainspring.public`

        if record.status is not JobStatus.PENDING:
            return None
        pauses = pauses_concerning(record, self.engine.callback_pauses(), self.serializers)
        return max(pauses, key=lambda pause: pause.until, default=None)

    def workers(self) -> builtins.list[WorkerStatus]:
        """List the workers of the store, including dead ones whose jobs were not rescued yet."""
        from mainspring.jobs.worker_status import to_worker_status  # noqa: PLC0415 - see `mainspring.public`

        engine = self._open_engine()
        return [to_worker_status(record, engine.now()) for record in engine.workers()]

    def statistics(self) -> Statistics:
        """Count the jobs of the store by queue and type; return the counts with the statistics of this process.

        The result also has the paused queues, the number of live workers, and the fullest slot of scheduled jobs.
        """
        from mainspring.jobs.statistics import Statistics, to_groups, to_slot  # noqa: PLC0415 - see `mainspring.public`
        from mainspring.jobs.worker_status import Liveness, to_worker_status  # noqa: PLC0415

        engine = self._open_engine()
        store = shared_statistics(engine)
        workers = (to_worker_status(record, store.at) for record in engine.workers())
        return Statistics(
            at=to_datetime(store.at),
            groups=to_groups(store.groups, store.at),
            paused_queues=store.paused,
            workers=sum(worker.state is Liveness.ALIVE for worker in workers),
            fullest_slot=to_slot(store.fullest_slot),
            process=self.process_statistics(),
        )

    def process_statistics(self) -> ProcessStatistics:
        """Return the slots, timers, thread pools and commits of this process, without a call of the engine."""
        from mainspring.jobs.statistics import ProcessStatistics, to_commits  # noqa: PLC0415 - see `mainspring.public`

        host = self._host
        pools = tuple(pool.statistics() for pool in self._pools)
        wheels = [pool.timers for pool in pools]
        if host is not None:
            wheels += host.timer_statistics()
        return ProcessStatistics(
            slots=() if host is None else host.slot_statistics(),
            timers=reduce(add, wheels) if wheels else None,
            pools=pools,
            commits=None if self._activity is None else to_commits(*self._activity.recorder.commits()),
        )

    def events(self, timeout: Duration | None = None) -> EventStream:
        """Return a stream of all events of the store from now on, for iteration.

        It ends after `timeout`, if given.
        """
        return EventStream(
            self._open_engine(), self.clock, timeout=timeout, layers=self._runners, off_loop=self._off_loop
        )

    def follow_events(self) -> EventFollower:
        """Return a follower of all events of the store from now on, for code that reads them in pages."""
        return EventFollower(self._open_engine(), self.clock)

    @property
    def recorder(self) -> ActivityRecorder | None:
        """The counts of submits, attempts and commits of this process; None if it does not count."""
        return None if self._activity is None else self._activity.recorder

    def activity(
        self, since: datetime | timedelta, until: datetime | timedelta | None = None, *, step: int = MINUTE
    ) -> builtins.list[ActivityRow]:
        """Return the counts of all processes by minute or hour, queue and type; or by a `step` of several minutes.

        The rows cover `since` to `until`; `until=None` means now. The counts of this process are stored first,
        unless the store does not answer within two seconds.
        """
        engine = self._open_engine()
        now = engine.now()
        first = to_past(since, now, "since")
        last = now + 1 if until is None else to_past(until, now, "until")
        if self._activity is not None:
            self._activity.flush(ACTIVITY_PATIENCE)
        return rows_of(engine.activity(first, last, step=step))
