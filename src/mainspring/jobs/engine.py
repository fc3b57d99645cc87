"""What an engine is: where jobs live and how they move.

Verbs of the domain, each over a batch. Nothing here names a table, a subject or a row. The suite in
`mainspring.testing.EngineConformance` says in tests what every engine must do.

Invariants of every engine
- A verb is atomic; verbs called inside of one `unit` are committed together where the engine can.
- `take` gives a job to one worker at a time and raises its fencing token. Only the holder of the current token can
  start and settle the job; everybody else is refused.
- A handler may run only after `start` (or `take`, for what is due) has marked its job RUNNING. A cancel that
  answered CANCELED is never followed by a start.
- Times are microseconds of the engine's own clock, `now()`.
- Each attempt that a job's `starts` counts has one `started` event. It is written when the worker reports that the
  handler begins, at the latest before the next event of the job. A job that is handed back has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from mainspring.jobs.commands import (
    Arrangement,
    Changed,
    Command,
    PutLimit,
)
from mainspring.jobs.crew import Backlog, WorkerInfo, WorkerState
from mainspring.jobs.events import EventPage
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.queries import Page, Query
from mainspring.jobs.records import (
    Conflict,
    JobRecord,
    Lease,
    NewJob,
    Outcome,
    ProgressReport,
)
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    ScheduleRecord,
)
from mainspring.jobs.status import JobStatus
from mainspring.jobs.waiting import Waiting

STALE = 45 * MICROSECONDS
"""How long a worker may be silent, three missed heartbeats, before its jobs belong to others."""
MAX_CRASHES = 3
"""The crash that makes a job a dead letter."""
SUSPECT_CRASHES = 2
"""The crash that makes it a suspect: the first one implicates everything that its worker ran."""


class _HasCrashes(Protocol):
    @property
    def crashes(self) -> int: ...


def is_suspect(job: _HasCrashes) -> bool:
    """Answer whether a job may be one that kills its workers. A worker runs one suspect at a time."""
    return job.crashes >= SUSPECT_CRASHES


class Capability(StrEnum):
    """What not every engine can do. An option that needs a missing one is refused when it is given."""

    ATOMIC_UNIT = "atomic_unit"
    """What is called inside of one `unit` is committed or rolled back as a whole."""
    ATOMIC_BATCH = "atomic_batch"
    """Many jobs are stored all or none."""
    VIRTUAL_TIME = "virtual_time"
    """The engine lives by the clock that it is given, so a manual clock can drive it."""
    BACKUP = "backup"
    """A consistent copy can be written to a file while everybody works."""
    SHARED = "shared"
    """Several processes may work on the same jobs."""
    EXACT_ORDER = "exact_order"
    """Jobs come exactly by due time, priority and submission; without it, priority is a preference with a bounded
    wait, and jobs come about in the order in which they became due."""
    FORESIGHT = "foresight"
    """`take` tells when there will be more to do; without it, the engine wakes its workers when there is."""


class Demand(Struct, frozen=True):
    """What a worker has room for, among handlers that share the same slots."""

    types: tuple[str, ...]
    starts: int
    """How many due jobs may start at once."""
    ahead: int
    """How many jobs it would hold that are due within the lead."""
    queues: tuple[str, ...] | None = None
    """Only from these queues; None for all."""
    suspects: bool = True
    """Whether a job that has crashed two workers may be among them; one at most."""


class Taken(Struct, frozen=True):
    """What a worker got."""

    leases: list[Lease]
    next_due: int | None
    """The earliest due time, among the types asked for, of a job that is not due yet and was not taken."""
    is_more: bool
    """Whether due jobs may have been left for lack of room."""
    stops: list[str]
    """Jobs of this worker that somebody wants stopped."""
    is_alive: bool = True
    """False: this worker was declared dead, and gets nothing under its old number."""
    next_look: int | None = None
    """When something else comes to pass that takes a look: a limit admits again, a job expires."""
    next_firing: int | None = None
    """The earliest occurrence of all schedules."""


class Swept(Struct, frozen=True):
    """What a sweep found."""

    rescued: list[str]
    """Jobs of dead workers that will run again."""
    quarantined: list[str]
    """Jobs that crashed their workers too often, now dead letters."""
    waiting: tuple[Waiting, ...]
    """What could start, of all handlers, by handler and queue."""


class Situation(Struct, frozen=True):
    """Why a job is where it is, as far as the store knows."""

    record: JobRecord
    is_queue_paused: bool
    behind: str | None
    """The job before it in its sequence."""
    full_bucket: str | None
    """The limit that it waits for."""
    limited_until: int | None
    bucket_holders: tuple[str, ...]
    """Some of the jobs that occupy that bucket."""
    unique_holder: str | None
    """Another job, not ended, with its unique key."""


class Retention(Struct, frozen=True):
    """How long jobs that have ended are kept, in microseconds; None: for ever."""

    completed: int | None
    canceled: int | None
    failed: int | None
    most: int | None = None
    """How many, at most, that COMPLETED or were CANCELED; the oldest go first."""


class Pruned(Struct, frozen=True):
    """What a prune has done."""

    deleted: int
    is_more: bool
    """Whether there may be more to do at once."""


class JobStore(Protocol):
    """Submits, changes and lists jobs."""

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        """Store jobs; return for each the conflict that kept it from being stored, or None."""

    def change(self, commands: Sequence[Command]) -> list[Changed]:
        """Carry out commands on jobs, in order."""

    def find(self, query: Query) -> Page:
        """List jobs."""

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        """Count jobs by state; under FAILED, the dead letters: jobs that failed and were not replayed."""

    def queues(self) -> tuple[str, ...]:
        """List the queues that have jobs, in whatever state, by name."""

    def situation(self, job_id: str) -> Situation | None:
        """Return why a job is where it is; None if there is no such job."""


class WorkerStore(Protocol):
    """Leases jobs to workers, and rescues those of dead workers."""

    @property
    def start_lead(self) -> int:
        """How many microseconds before a job is due its start is to be committed."""

    def enroll(self, worker: WorkerInfo) -> int:
        """Register a worker and return its number, which is never used again."""

    def renew(self, worker: int) -> bool:
        """Store a heartbeat; False if the worker was declared dead and its jobs were taken over."""

    def announce(self, worker: int, types: tuple[str, ...]) -> bool:
        """Store which job types a worker has handlers for; False if it was declared dead or has left."""

    def leave(self, worker: int) -> None:
        """Remove a worker whose jobs are settled."""

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        """Lease jobs to a worker: due within `start_lead` and started at once, or held, due within `lead`."""

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark held jobs RUNNING; False for those that were canceled or taken over meanwhile."""

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        """End leases; False for those whose fencing token is stale, of which nothing is kept."""

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        """Store that handlers begin, or their progress; False for those whose fencing token is stale."""

    def sweep(self, worker: int) -> Swept:
        """Rescue the jobs of dead workers, and return which jobs could start."""

    def workers(self) -> list[WorkerState]:
        """List the workers, by their numbers, also dead ones whose jobs were not rescued yet."""

    def backlog(self) -> list[Backlog]:
        """List the due jobs that wait for a worker, by queue and type, paused queues included."""


class ScheduleStore(Protocol):
    """Keeps schedules, and stores the jobs of their occurrences."""

    def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        """Move schedules on and store the jobs of their occurrences, each unless another worker was quicker."""

    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        """List schedules by name; or those that are due by then, not paused, the earliest first."""

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        """List the occurrences of a schedule for which no job was made, the latest first."""


class EventLog(Protocol):
    """Keeps events of jobs while someone follows them."""

    @property
    def is_followed(self) -> bool:
        """Whether events were written when jobs were last started: then a worker reports handlers that begin."""

    def listen(self, until: int) -> str:
        """Write events until an instant; return the position from which on there are some."""

    def events(self, after: str, limit: int) -> EventPage:
        """Return the events after a position."""


class Admin(Protocol):
    """Keeps the settings of queues and limits, and cleans up."""

    def arrange(self, arrangements: Sequence[Arrangement]) -> list[bool]:
        """Store schedules, pauses and limits, in order; return for each whether it changed anything."""

    def paused_queues(self) -> tuple[str, ...]:
        """List the queues from which no jobs start."""

    def limits(self) -> list[PutLimit]:
        """List the limits."""

    def prune(self, retention: Retention) -> Pruned:
        """Delete a few jobs that are older than `retention`, and results that were to be kept for a time only."""

    def backup(self, path: str) -> None:
        """Write a consistent copy, if the engine has `Capability.BACKUP`."""


class Engine(JobStore, WorkerStore, ScheduleStore, EventLog, Admin, Protocol):
    """A store of jobs. `now`, reads and `unit` may be called from any thread, the rest from one at a time."""

    @property
    def description(self) -> str:
        """Where the jobs are, for people: 'SQLite file /srv/shop/orders.db'."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this engine can do that not every engine can."""

    def now(self) -> int:
        """Return the engine's own time, in microseconds since 1970."""

    def open(self, wake: Callable[[], None]) -> None:
        """Open the store; the engine calls `wake`, on any thread, when a worker should fetch jobs."""

    def close(self) -> None:
        """Close the store; it may be opened again."""

    def unit(self, *, durable: bool) -> AbstractContextManager[Any]:
        """Commit what is called inside as one; `durable=False` if losing it in a power failure does no harm."""
