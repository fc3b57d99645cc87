"""What an engine is: where jobs live and how they move.

Verbs of the domain, each over a batch. Nothing here names a table, a subject or a row. The suite in
`mainspring.testing.EngineConformance` says in tests what every engine must do.

Invariants of every engine
- A verb is atomic; verbs called inside of one `unit` are committed together where the engine can.
- `take` gives a job to one worker at a time and raises its fencing token. Only the holder of the current token
  can start and settle the job; everybody else is refused.
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
    Cancel,
    Changed,
    Command,
    Delete,
    DropLimit,
    Edit,
    PauseQueue,
    PauseSchedule,
    PutLimit,
    PutSchedule,
    Regroup,
    RemoveSchedule,
    Reopen,
    Replay,
    Reschedule,
)
from mainspring.jobs.crew import Backlog, WorkerInfo, WorkerState
from mainspring.jobs.events import Event, EventKind, EventPage
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.queries import Page, Query
from mainspring.jobs.records import (
    STATUS_AFTER,
    Attempt,
    Cause,
    Conflict,
    ConflictKind,
    FollowUp,
    JobRecord,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    Progress,
    ProgressReport,
    UniqueKey,
)
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    OccurrenceKind,
    Overlap,
    ScheduleRecord,
)
from mainspring.jobs.status import JobStatus
from mainspring.jobs.waiting import HEAD_START, MOST_COUNTED, Waiting

__all__ = [
    "HEAD_START",
    "MAX_CRASHES",
    "MOST_COUNTED",
    "STALE",
    "STATUS_AFTER",
    "SUSPECT_CRASHES",
    "Arrangement",
    "Attempt",
    "Backlog",
    "Cancel",
    "Capability",
    "Cause",
    "Changed",
    "Command",
    "Conflict",
    "ConflictKind",
    "Delete",
    "Demand",
    "DropLimit",
    "Edit",
    "Engine",
    "Event",
    "EventKind",
    "EventPage",
    "Fired",
    "Firing",
    "FollowUp",
    "JobRecord",
    "Lease",
    "NewJob",
    "Occurrence",
    "OccurrenceKind",
    "Outcome",
    "OutcomeKind",
    "Overlap",
    "Page",
    "PauseQueue",
    "PauseSchedule",
    "Progress",
    "ProgressReport",
    "Pruned",
    "PutLimit",
    "PutSchedule",
    "Query",
    "Regroup",
    "RemoveSchedule",
    "Reopen",
    "Replay",
    "Reschedule",
    "Retention",
    "ScheduleRecord",
    "Situation",
    "Swept",
    "Taken",
    "UniqueKey",
    "Waiting",
    "WorkerInfo",
    "WorkerState",
]

STALE = 45 * MICROSECONDS
"""How long a worker may be silent, three missed heartbeats, before its jobs belong to others."""
MAX_CRASHES = 3
"""The crash that makes a job a dead letter."""
SUSPECT_CRASHES = 2
"""The crash that makes it a suspect: the first one implicates everything that its worker ran."""


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


class Engine(Protocol):
    """Where jobs live. `now`, `get`-like reads and `unit` may be called from any thread, the rest from one."""

    @property
    def description(self) -> str:
        """Say where the jobs are, for people: 'SQLite file /srv/shop/orders.db'."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Say what this engine can do beyond the common ground."""

    @property
    def start_lead(self) -> int:
        """How many microseconds before a job is due its start is to be committed."""

    @property
    def is_followed(self) -> bool:
        """Whether events were written when jobs were last started: then a worker reports handlers that begin."""

    def now(self) -> int:
        """Return the engine's own time, in microseconds since 1970."""

    def open(self, wake: Callable[[], None]) -> None:
        """Get ready; from now on `wake` is called, on any thread, when a worker should look for jobs."""

    def close(self) -> None:
        """Give everything back; a closed engine may be opened again."""

    def unit(self, *, durable: bool) -> AbstractContextManager[Any]:
        """Commit what is called inside as one; `durable=False` if losing it in a power failure does no harm."""

    # -- submitters

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        """Store jobs; for each what was in its way, or None if it was stored."""

    def change(self, commands: Sequence[Command]) -> list[Changed]:
        """Carry out commands on jobs, in order."""

    def arrange(self, arrangements: Sequence[Arrangement]) -> list[bool]:
        """Set up schedules, queues and limits, in order; for each whether it changed anything."""

    # -- workers

    def enroll(self, worker: WorkerInfo) -> int:
        """Begin an incarnation and return its number, which is never used again."""

    def renew(self, worker: int) -> bool:
        """Show that this worker lives; False if it was declared dead and its jobs were taken over."""

    def announce(self, worker: int, types: tuple[str, ...]) -> bool:
        """Note which handlers a worker knows now; False if it was declared dead or has left."""

    def leave(self, worker: int) -> None:
        """End an incarnation whose jobs are settled."""

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        """Lease jobs to a worker: due within `start_lead` and started at once, or held, due within `lead`."""

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark held jobs RUNNING; False for those that were cancelled or taken over meanwhile."""

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        """End leases; False for those whose token is stale, of which nothing is kept."""

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        """Note that handlers begin, or how far jobs have come; False for those whose token is stale."""

    def sweep(self, worker: int) -> Swept:
        """Rescue the jobs of dead workers, and say what waits."""

    def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        """Move schedules on and store the jobs of their occurrences, each only if nobody was quicker."""

    def prune(self, retention: Retention) -> Pruned:
        """Forget a few jobs whose time is over, and results that were to be kept for a time only."""

    # -- readers

    def find(self, query: Query) -> Page:
        """List jobs."""

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        """Count jobs by state; under FAILED, the dead letters: jobs that failed and were not replayed."""

    def queues(self) -> tuple[str, ...]:
        """List the queues in which there are jobs, in whatever state, by name."""

    def situation(self, job_id: str) -> Situation | None:
        """Say why a job is where it is; None if there is none."""

    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        """List schedules by name; or those that are due by then, not paused, the earliest first."""

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        """List the occurrences of a schedule for which no job was made, the latest first."""

    def paused_queues(self) -> tuple[str, ...]:
        """List the queues from which no jobs start."""

    def limits(self) -> list[PutLimit]:
        """List the limits that hold."""

    def workers(self) -> list[WorkerState]:
        """List the workers, by their numbers, those included whose jobs nobody has rescued yet."""

    def backlog(self) -> list[Backlog]:
        """List what is due and waits for a worker, by queue and handler, paused queues included."""

    def listen(self, until: int) -> str:
        """Let events be written down until an instant; return the place from which on there are some."""

    def events(self, after: str, limit: int) -> EventPage:
        """Return what happened after a place."""

    def backup(self, path: str) -> None:
        """Write a consistent copy, if the engine has `Capability.BACKUP`."""
