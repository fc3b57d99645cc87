"""The protocol of engines, which store jobs and lease them to workers.

Most calls take a batch. Nothing here depends on how an engine stores its records. The test suite
`mainspring.testing.EngineConformance` defines what every engine must do.

Invariants of every engine
- The change of one job is atomic. A call for several jobs is atomic if the engine has `Capability.ATOMIC_BATCH`.
  The calls inside of one `unit` are committed together if it has `Capability.ATOMIC_UNIT`.
- `take` leases a job to one worker at a time and raises its fencing token. Only the holder of the current token
  can start and settle the job; the engine refuses all others.
- A handler may run only after `start` (or `take`, for a due job) has marked its job RUNNING. After the engine has
  confirmed the cancel of a job, the job never starts.
- A job that was started at most once (`Demand.at_most_once`) becomes a dead letter if its worker dies. Its start
  survives a power failure when `take` or `start` returns.
- The transaction that makes a job a dead letter also stores a job for each dead-letter handler: see
  `dead_letter_jobs`.
- Times are microseconds of the engine's own clock, `now()`; delays begin at `latest()`.
- Each attempt that a job's `starts` counts has one `started` event. The engine writes it when the worker reports
  that the handler begins, at the latest before the next event of the job. A job that is handed back has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from mainspring.jobs.activity import MINUTE, EngineNote
from mainspring.jobs.activity_rows import ActivityBatch, ActivityCount
from mainspring.jobs.audit import AuditEntry, AuditQuery
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.backlog import Backlog, WaitingJobs
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import (
    Arrangement,
    Changed,
    Command,
    PutLimit,
)
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler, SignLetter
from mainspring.jobs.events import EventPage
from mainspring.jobs.records import (
    Conflict,
    JobRecord,
    Lease,
    NewJob,
    Outcome,
    Page,
    ProgressReport,
    Query,
    RunningLease,
    WorkerInfo,
    WorkerRecord,
)
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    ScheduleRecord,
)
from mainspring.jobs.request_records import NewRequest, RequestEnd, RequestRecord
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import LOOKAHEAD, StoreStatistics, UpcomingJobs
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.tokens import TokenRecord

STALE = 45 * MICROSECONDS
"""On SQLite, a worker that sent no heartbeat for this time (it missed three) counts as dead.

Other workers then take over its jobs. On NATS, the setting `lease` is this time.
"""
MAX_CRASHES = 3
"""The number of crashes after which a job becomes a dead letter."""


class Capability(StrEnum):
    """An ability that only some engines have. Mainspring refuses an option that the engine cannot carry out."""

    ATOMIC_UNIT = "atomic_unit"
    """All calls inside of one `unit` are committed or rolled back together."""
    ATOMIC_BATCH = "atomic_batch"
    """`submit` stores either all jobs of a batch or none."""
    VIRTUAL_TIME = "virtual_time"
    """The engine uses the clock that it is given, so a manual clock can drive it."""
    BACKUP = "backup"
    """The engine can write a consistent copy to a file while workers and other processes use the store."""
    SHARED = "shared"
    """Several processes may work on the same jobs."""
    EXACT_ORDER = "exact_order"
    """`take` leases jobs exactly in the order of due time, priority and submission. Without it, `take` leases jobs
    roughly in the order in which they became due; it prefers high priorities, but bounds the wait of low ones."""
    ANY_THREAD = "any_thread"
    """Calls of `submit`, `change`, `arrange` and `fire` may come from any thread, one at a time, and not only from
    the io thread. A `KeyboardInterrupt` may end such a call at any point: the next call then finds no remains of
    it. `wake` may be called on the same thread. Without it, the io thread makes every call that writes."""
    FORESIGHT = "foresight"
    """The answer of `take` has the instants at which the worker should fetch again: `next_due` and `next_look`.
    Without it, the engine itself wakes its workers at these instants."""
    REMOTE_WORKERS = "remote_workers"
    """Workers with `WorkerInfo.remote` can be enrolled. Any process may call the engine for them, and they stay
    alive by heartbeats alone."""
    ADMITS_AT_SUBMIT = "admits_at_submit"
    """Limits admit due jobs when they are submitted, and not when they are claimed. So a process stores the limits
    that it declares before it submits the first job."""


class Demand(Struct, frozen=True):
    """How many jobs a worker can accept in one `take`, for job types that share the same slots."""

    types: tuple[str, ...]
    starts: int
    """How many due jobs can start immediately."""
    ahead: int
    """How many more jobs the worker can hold that are not due yet, but within the `lead` of `take`."""
    queues: tuple[str, ...] | None = None
    """Lease only jobs of these queues; None for all queues."""
    suspects: bool = True
    """Whether the worker accepts a job with two crashes (a suspect). One `take` leases at most one of them."""
    at_most_once: tuple[str, ...] = ()
    """Those of `types` whose jobs must not start a second time. The engine stores this with each start."""
    at_most_once_starts: int = 0
    """How many jobs of these types can start. They are not prefetched, because a started job may not go back if
    its worker dies."""


class Taken(Struct, frozen=True):
    """The answer of an engine to `take`: leases for a worker, and when the worker should fetch again."""

    leases: list[Lease]
    next_due: int | None
    """The earliest due time of a job of the demanded types that is not due yet and was not leased.

    None if there is no such job.
    """
    is_more: bool
    """Whether due jobs may remain that the worker had no free slots for."""
    stops: list[str]
    """The ids of this worker's running jobs that were asked to stop."""
    is_alive: bool = True
    """False if this worker was declared dead: the engine leases nothing to its old number any more."""
    next_look: int | None = None
    """Another instant at which the worker should fetch: a limit admits jobs again, or a job expires.

    None if there is no such instant.
    """
    next_firing: int | None = None
    """The earliest next occurrence of all schedules that are not paused; None if there is none."""
    may_be_spent: bool = True
    """False if the engine remembers no envelope of an ended job, so that `spent` need not be called."""


class Swept(Struct, frozen=True):
    """The answer of an engine to `sweep`: the jobs that it took from dead workers, and the jobs that could
    start.
    """

    rescued: list[str]
    """The ids of jobs of dead workers that will run again."""
    quarantined: list[str]
    """The ids of jobs that became dead letters: they crashed too often, or run at most once."""
    waiting: tuple[WaitingJobs, ...]
    """The due jobs that could start, of all job types, counted by job type and queue."""


class Hindrance(Struct, frozen=True):
    """What keeps the store from delivering a job that is due, and what a user can do about it. See `explain`."""

    text: str
    remedy: str


class Situation(Struct, frozen=True):
    """A stored job, with the facts in the store that explain its state. `explain` reads it."""

    record: JobRecord
    is_queue_paused: bool
    behind: str | None
    """The id of the job that must end before this one can start: the running job of its sequence, else the first.

    None if this job is the first one, or is in no sequence.
    """
    full_bucket: str | None
    """The limit that the job waits for, with its key (a bucket); None if no limit holds it back."""
    limited_until: int | None
    """The instant at which the full limit, a rate, admits the job; None for a concurrency, or if unknown."""
    bucket_holders: tuple[str, ...]
    """The ids of some of the running jobs that fill the limit, a concurrency; empty for a rate."""
    unique_holder: str | None
    """The id of another job with the same unique key, which has not ended; None if there is none."""
    hindrance: Hindrance | None = None
    """What keeps the store from delivering this job, which is due; None if nothing does."""


class Retention(Struct, frozen=True):
    """How long an engine keeps ended jobs, in microseconds after their end, by status; None for ever."""

    completed: int | None
    canceled: int | None
    failed: int | None
    most: int | None = None
    """The largest number of COMPLETED and CANCELED jobs to keep; the oldest are deleted first."""
    audit: int | None = None
    """How many microseconds entries of the audit trail are kept; None for ever."""
    most_audited: int | None = None
    """The largest number of entries of the audit trail to keep; the oldest are deleted first."""


class Pruned(Struct, frozen=True):
    """The answer of an engine to `prune`: how many jobs it deleted, and whether another call could delete more."""

    deleted: int
    is_more: bool
    """Whether another `prune` may delete more now: jobs, or other rows that are too old."""


class JobStore(Protocol):
    """The part of an engine that submits, changes and lists jobs."""

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        """Store new jobs. Return for each job None, or the conflict that kept it from being stored.

        If the conflict is REPLACED, the existing job has the values of the new job now.
        Raise `LimitExceeded` and store nothing if the jobs exceed a stored quota of their queue: see `quotas`.
        """

    def change(self, commands: Sequence[Command], *, audit: AuditDraft | None = None) -> list[Changed]:
        """Carry out commands on jobs, in order; return an answer for each.

        With `audit`, each transaction that changes jobs also stores the entry of `audit.for_commands`.
        """

    def find(self, query: Query) -> Page:
        """Return a page of the jobs that match a query."""

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        """Count jobs by state. FAILED counts the dead letters: jobs that failed and were not replayed."""

    def count_up_to(self, query: Query, most: int) -> int:
        """Count the jobs that match a query, but stop at `most`, so that the call is fast with any number of jobs.

        `ids`, `search`, `limit`, `after` and the order of the query are ignored.
        """

    def queues(self) -> tuple[str, ...]:
        """List the queues that have jobs in any state, sorted by name."""

    def situation(self, job_id: str) -> Situation | None:
        """Return a job with the facts that explain its state; None if there is no such job."""


class WorkerStore(Protocol):
    """The part of an engine that leases jobs to workers, and rescues the jobs of dead workers."""

    @property
    def start_lead(self) -> int:
        """How many microseconds before its due time a worker commits the start of a job that it has leased."""

    def enroll(self, worker: WorkerInfo) -> int:
        """Register a worker and return its number, which is never used again."""

    def renew(self, worker: int, *, longest_lease: int | None = None) -> bool:
        """Store a heartbeat of a worker; return False if it was declared dead and its jobs were taken over.

        A remote worker whose lease is longer than `longest_lease` microseconds has this lease from now on.
        """

    def announce(self, worker: int, info: WorkerInfo) -> bool:
        """Replace the stored job types and queues of a worker; return False if it was declared dead or has
        left.
        """

    def leave(self, worker: int) -> None:
        """Remove a worker from the store after its jobs are settled."""

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        """Lease jobs to a worker: start those due within `start_lead`; others due within `lead` start later."""

    def spent(self, ids: Sequence[str]) -> dict[str, int]:
        """Return which of these signed ids belong to ended jobs that the engine remembers, and when they were
        signed.

        The worker refuses other jobs with the same signature: see `spent_envelopes`. An engine may remember an
        envelope only after its job was deleted.
        """

    def sign_letters(self, sign: SignLetter) -> None:
        """Sign the jobs of dead-letter handlers with the function `sign` from now on.

        This method is called before `open`.
        """

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark jobs RUNNING that a worker has leased before they were due.

        Return for each lease whether its job was marked. False means that the job was canceled, or that the worker
        has lost the lease.
        """

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        """Store outcomes and end their leases; return for each outcome whether it was stored.

        An outcome with a stale fencing token is not stored.
        """

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        """Store that handlers have begun, or their progress; return for each report whether it was accepted.

        A report with a stale fencing token is ignored.
        """

    def sweep(self, worker: int) -> Swept:
        """Rescue the jobs of dead workers; return the rescued jobs, new dead letters, and the due jobs that could
        start.

        `worker` is the number of the worker that calls; 0 for a process without one.
        """

    def leased(self, worker: int) -> list[RunningLease]:
        """List the leases of the jobs that a remote worker is running.

        Call it only if the engine has `Capability.REMOTE_WORKERS`.
        """

    def workers(self) -> list[WorkerRecord]:
        """List the workers, sorted by number, including dead ones whose jobs were not rescued yet."""

    def backlog(self) -> list[Backlog]:
        """Count the due jobs that wait for a worker, by queue and type, including those of paused queues."""


class ScheduleStore(Protocol):
    """The part of an engine that keeps schedules and stores the jobs of their occurrences."""

    def fire(self, firings: Sequence[Firing], *, audit: AuditDraft | None = None) -> list[Fired]:
        """Advance schedules and store the jobs of their occurrences; return an answer for each firing.

        A firing is refused if the schedule has changed since the caller read it: another worker may have fired it.
        With `audit`, there is one firing, which an operator has triggered. Its transaction also stores the entry
        of `audit.for_firing`.
        """

    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        """List at most `limit` schedules, sorted by name: all, or those with one of `names`.

        With `due_until`, list the schedules that are due by then and not paused, the earliest first.
        """

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        """List at most `limit` of the occurrences of a schedule for which no job was made, the latest first."""


class EventLog(Protocol):
    """The part of an engine that stores events of jobs while a client follows them."""

    @property
    def is_followed(self) -> bool:
        """Whether a client follows events, as far as this process knows.

        If so, workers report each handler that begins, so that the engine writes `started` events.
        """

    def listen(self, until: int) -> str:
        """Make all processes write events until the instant `until`; return the position to read them from."""

    def events(self, after: str, limit: int) -> EventPage:
        """Return at most `limit` events after a position, and the position of the next page."""

    def holds(self, position: str) -> bool:
        """Return whether a client that has read the events up to a position can continue there without missing
        one.

        All events since then must be stored: none was deleted, and a client was listening all the time, so that
        engines wrote all of them. The position may come from another process or from before a restart. It may be
        any text, because clients send it: return False for one that this store has not given out.
        """


class Admin(Protocol):
    """The part of an engine that stores schedules, pauses, limits and tokens, the audit trail, and backups."""

    def arrange(self, arrangements: Sequence[Arrangement], *, audit: AuditDraft | None = None) -> list[bool]:
        """Store or delete schedules, pauses, limits, dead-letter handlers, redactions and tokens, in order.

        Pauses are those of queues and of receivers of callbacks. Return for each whether it changed anything.
        With `audit`, the transaction of an arrangement that changed something also stores the entry of
        `audit.for_arrangement`.
        """

    def paused_queues(self) -> tuple[str, ...]:
        """List the paused queues, whose jobs do not start."""

    def callback_pauses(self) -> tuple[CallbackPauseRecord, ...]:
        """List the paused receivers of callbacks by host, type and URL. They are read from the store, never from a
        cache.
        """

    def limits(self) -> list[PutLimit]:
        """List the stored limits: rates, concurrencies and submit quotas."""

    def dead_letter_handlers(self) -> list[DeadLetterHandler]:
        """List the stored dead-letter handlers, sorted by their job types."""

    def redactions(self) -> dict[str, tuple[str, ...]]:
        """Return the redacted parameters of each job type. Types and parameters are sorted by name.

        They are read from the store, never from a cache. If this process has read a job before this call, the
        result contains all redactions that were stored before that job.
        """

    def tokens(self) -> list[TokenRecord]:
        """List the tokens of the HTTP server by name. They are read from the store, never from a cache."""

    @property
    def token_changes(self) -> int:
        """A number that grows if this process stores or revokes tokens, or learns that another process may have.

        Another process may have changed tokens even if the number is the same.
        """

    def audit_entries(self, query: AuditQuery) -> list[AuditEntry]:
        """List the entries of the audit trail that match a query, the latest first."""

    def prune(self, retention: Retention) -> Pruned:
        """Delete a few of the jobs that `retention` does not keep, and results that are older than their job's
        limit.

        Also delete expired requests and old audit entries, add up the activity of old minutes by the hour, and
        delete that of old hours.
        """

    def backup(self, path: str) -> None:
        """Write a consistent copy of the store to a file.

        Raises `EngineUnavailable` if the engine does not have `Capability.BACKUP`.
        """


class Monitoring(Protocol):
    """The part of an engine that counts jobs and what processes do, and keeps a history of it."""

    def statistics(self, *, lookahead: int = LOOKAHEAD) -> StoreStatistics:
        """Count due, blocked, scheduled and running jobs and dead letters, by queue and job type.

        A job counts as due or as blocked exactly as the method `situation` says of it: see `statistics`. The call
        takes a few milliseconds, however many jobs are stored: an engine may stop counting at `MAX_COUNTED` jobs.
        It examines about `lookahead` scheduled jobs to find the short period in which most of them are due.
        """

    def upcoming(self, edges: Sequence[int]) -> list[UpcomingJobs]:
        """Count the scheduled jobs in each period between two successive instants `edges`, by queue and job type.

        The counts include jobs that wait only for their time, also those that a worker has leased early. Jobs
        behind others of their sequence or under the same limits may be left out. An engine may stop counting at
        `MAX_IN_PERIOD` jobs, and lists only queues and types with such jobs.
        """

    def take_notes(self) -> Sequence[EngineNote]:
        """Return, and forget, what committed calls of this process did beside their answers since the last call.

        These are jobs that expired, attempts whose worker died, and jobs that the engine has stored by itself, for
        dead-letter handlers and replays. Any thread may call it. It reads nothing from the store.
        """

    def record_activity(self, batch: ActivityBatch) -> None:
        """Add the counts of a process to the stored counts of the same minutes; ignore a batch that is stored
        already.

        This method is called inside of a `unit`. Without `Capability.ATOMIC_UNIT`, any thread may call it, also
        during other calls.
        """

    def activity(self, since: int, until: int, *, step: int = MINUTE) -> list[ActivityCount]:
        """Return the counts of all minutes that overlap `since` to `until`; of hours, where minutes are not kept.

        With a `step` of several minutes, the engine adds up the counts of so many minutes, or of the whole hours
        in them, which is faster than in the caller.
        """


class RequestStore(Protocol):
    """The part of an engine that keeps requests with an `Idempotency-Key`, so that none is carried out twice."""

    def begin_requests(self, requests: Sequence[NewRequest]) -> list[RequestRecord | None]:
        """Store that requests begin, unless they were made before: see `request_records.begun`.

        Return the record of each; None if the store has too many requests of its caller, or of all callers. An
        engine may count them every few seconds only.
        """

    def end_requests(self, ends: Sequence[RequestEnd]) -> list[bool]:
        """Store the answers of requests: see `request_records.ended`. Return for each whether it was stored."""


class Engine(JobStore, WorkerStore, ScheduleStore, EventLog, Admin, Monitoring, RequestStore, Protocol):
    """The protocol that every engine implements.

    Any thread may call `now`, `unit` and methods that read; one thread at a time makes other calls.
    """

    @property
    def description(self) -> str:
        """A description of the store for users: 'SQLite file /srv/shop/orders.db'."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The abilities that this engine has, of those that only some engines have."""

    def now(self) -> int:
        """Return the engine's own time, in microseconds since 1970.

        If the engine measures the time of a server, this is the earliest that it may be: a job that is due by it
        is due by the server's clock, too.
        """

    def latest(self) -> int:
        """Return the latest that the engine's own time may be; `now()` if the engine does not measure it.

        A delay that begins at this time is never shorter than asked.
        """

    def open(self, wake: Callable[[], None]) -> None:
        """Open the store. From then on the engine calls `wake`, on any thread, when a worker should fetch jobs."""

    def close(self) -> None:
        """Close the store; it may be opened again."""

    def unit(self, *, durable: bool) -> AbstractContextManager[Any]:
        """Return a context manager that makes the engine calls inside of its `with` block one transaction.

        Without `Capability.ATOMIC_UNIT`, each call is committed by itself. A power cut may lose the transaction if
        it is not `durable`.
        """
