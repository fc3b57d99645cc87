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
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from enum import Enum, StrEnum
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.status import JobStatus

STALE = 45 * MICROSECONDS
"""How long a worker may be silent, three missed heartbeats, before its jobs belong to others."""
MAX_CRASHES = 3
"""The crash that makes a job a dead letter."""
SUSPECT_CRASHES = 2
"""The crash that makes it a suspect: the first one implicates everything that its worker ran."""
HEAD_START = 30 * MICROSECONDS
"""By how much each step of priority lets a job overtake: what has waited longer than that is overtaken no more."""

FRESH = 10 * MICROSECONDS
"""Jobs that became due within this time have a share of the starts while older ones are worked off."""
FRESH_SHARE = 4
"""One start in so many goes to them."""


class FreshShare:
    """Keeps a backlog from starving new work: while old jobs queue, every fourth start goes to a fresh one."""

    def __init__(self) -> None:
        self._credit = 0

    def share(self, starts: int, oldest_due: int, now: int) -> int:
        """Return how many of so many starts to give to jobs that have just become due."""
        if oldest_due >= now - FRESH:
            return 0
        self._credit += starts
        share, self._credit = divmod(self._credit, FRESH_SHARE)
        return share


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


class NewJob(Struct, frozen=True, gc=False):
    """A job to be stored."""

    id: str
    type: str
    queue: str
    priority: int
    due: int
    payload: bytes
    codec: str
    origin: str | None = None
    """The dead letter of which this is a replay."""


class Attempt(Struct, frozen=True, gc=False):
    """An attempt that did not end well, as a job remembers it."""

    number: int
    started: int | None
    ended: int
    cause: str
    error: str


class JobRecord(Struct, frozen=True):
    """A job as the store has it."""

    id: str
    type: str
    queue: str
    priority: int
    status: JobStatus
    due: int
    created: int
    payload: bytes
    codec: str
    token: int
    owner: int | None
    starts: int
    failures: int
    timeouts: int
    crashes: int
    interruptions: int
    started: int | None
    finished: int | None
    result: bytes | None
    error: str | None
    stop_requested: bool
    origin: str | None
    replayed_as: str | None
    history: tuple[Attempt, ...]


class WorkerInfo(Struct, frozen=True):
    """A worker as it presents itself: one start of one process."""

    name: str
    process: int
    types: tuple[str, ...]


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


class Lease(Struct, frozen=True, gc=False):
    """A job in the hands of one worker, until it is settled or taken over."""

    ref: Hashable
    """The engine's own way to find the job."""
    id: str
    type: str
    queue: str
    due: int
    payload: bytes
    codec: str
    token: int
    is_started: bool
    failures: int
    timeouts: int
    crashes: int
    interruptions: int
    priority: int


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


class OutcomeKind(Enum):
    """How an attempt ended, or that there was none."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    RETRY = "retry"
    SNOOZED = "snoozed"
    INTERRUPTED = "interrupted"
    """Stopped by a shutdown: runs again and has used up nothing."""
    HANDED_BACK = "handed back"
    """Never ran: it goes back as if it had not been taken."""


STATUS_AFTER = {
    OutcomeKind.COMPLETED: JobStatus.COMPLETED,
    OutcomeKind.FAILED: JobStatus.FAILED,
    OutcomeKind.CANCELED: JobStatus.CANCELED,
    OutcomeKind.RETRY: JobStatus.PENDING,
    OutcomeKind.SNOOZED: JobStatus.PENDING,
    OutcomeKind.INTERRUPTED: JobStatus.PENDING,
    OutcomeKind.HANDED_BACK: JobStatus.PENDING,
}


class Cause(StrEnum):
    """What an attempt that did not end well is charged to."""

    FAILURE = "failure"
    TIMEOUT = "timeout"
    CRASH = "crash"
    DEPLOY = "deploy"


class Outcome(Struct, gc=False):
    """What becomes of a leased job."""

    lease: Lease
    kind: OutcomeKind
    due: int | None = None
    """When it runs again: for RETRY and SNOOZED."""
    result: bytes | None = None
    error: str | None = None
    cause: Cause | None = None
    """For RETRY and FAILED: which counter it goes to."""
    began: int | None = None
    """When its handler really began; None if it did not, or if nobody looked."""


class Cancel(Struct, frozen=True, gc=False):
    """Call a job off."""

    id: str


class Reopen(Struct, frozen=True, gc=False):
    """Let a dead letter run again, as the same job, with its attempts forgotten."""

    id: str
    due: int


class Replay(Struct, frozen=True, gc=False):
    """Submit a copy of a dead letter and link the two; a letter is replayed once."""

    id: str
    new_id: str
    due: int
    payload: bytes | None = None
    """Other arguments; None for the same."""
    codec: str | None = None


class Edit(Struct, frozen=True, gc=False):
    """Give a dead letter other arguments."""

    id: str
    payload: bytes
    codec: str


class Delete(Struct, frozen=True, gc=False):
    """Forget a job that has ended."""

    id: str
    status: JobStatus | None = None
    """Only if it ended like this."""


Command: TypeAlias = Cancel | Reopen | Replay | Edit | Delete


class Changed(Struct, frozen=True, gc=False):
    """The answer to a command: whether it was carried out, and the state of the job before it."""

    is_done: bool
    status: JobStatus | None
    """None: there is no such job."""
    note: str | None = None
    """For a replay that was refused: the job that it was replayed as."""


class Query(Struct, frozen=True):
    """Which jobs to list, in the order of their submission."""

    status: JobStatus | None = None
    queue: str | None = None
    type: str | None = None
    ids: tuple[str, ...] | None = None
    is_replayed: bool | None = None
    limit: int = 50
    after: str | None = None
    """The place at which the last page ended."""


class Page(Struct, frozen=True):
    """A part of a list, and where the next one begins."""

    records: list[JobRecord]
    end: str | None
    """The engine's own way to go on; None: there is no more."""


class Swept(Struct, frozen=True):
    """What a sweep found."""

    rescued: list[str]
    """Jobs of dead workers that will run again."""
    quarantined: list[str]
    """Jobs that crashed their workers too often, now dead letters."""
    waiting: tuple[str, ...]
    """Handlers for which due jobs wait."""


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

    def now(self) -> int:
        """Return the engine's own time, in microseconds since 1970."""

    def open(self, wake: Callable[[], None]) -> None:
        """Get ready; from now on `wake` is called, on any thread, when a worker should look for jobs."""

    def close(self) -> None:
        """Give everything back; a closed engine may be opened again."""

    def unit(self, *, durable: bool) -> AbstractContextManager[Any]:
        """Commit what is called inside as one; `durable=False` if losing it in a power failure does no harm."""

    # -- submitters

    def submit(self, jobs: Sequence[NewJob]) -> list[str | None]:
        """Store jobs; for each the id of the one in its way, or None if it was stored."""

    def change(self, commands: Sequence[Command]) -> list[Changed]:
        """Carry out commands, in order."""

    # -- workers

    def enroll(self, worker: WorkerInfo) -> int:
        """Begin an incarnation and return its number, which is never used again."""

    def renew(self, worker: int) -> bool:
        """Show that this worker lives; False if it was declared dead and its jobs were taken over."""

    def leave(self, worker: int) -> None:
        """End an incarnation whose jobs are settled."""

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        """Lease jobs to a worker: due within `start_lead` and started at once, or held, due within `lead`."""

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark held jobs RUNNING; False for those that were cancelled or taken over meanwhile."""

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        """End leases; False for those whose token is stale, of which nothing is kept."""

    def sweep(self, worker: int) -> Swept:
        """Rescue the jobs of dead workers."""

    # -- readers

    def find(self, query: Query) -> Page:
        """List jobs."""

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        """Count jobs by state."""

    def backup(self, path: str) -> None:
        """Write a consistent copy, if the engine has `Capability.BACKUP`."""
