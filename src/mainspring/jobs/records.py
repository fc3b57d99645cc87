"""What an engine keeps of a job, and what travels between it and a worker."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, StrEnum

from msgspec import Struct

from mainspring.jobs.status import JobStatus


class UniqueKey(Struct, frozen=True, gc=False):
    """Which other jobs are in the way of a new one: those with the same key, in these states, this young."""

    key: str
    states: tuple[JobStatus, ...]
    window: int | None = None
    """Only jobs submitted within so many microseconds; None: however old."""
    replaces: bool = False
    """Whether the one in the way, still PENDING, takes over the arguments and due time of the new one."""


class FollowUp(Struct, frozen=True, gc=False):
    """The job to be submitted in the same step that completes its predecessor."""

    type: str
    queue: str
    priority: int
    delay: int = 0
    argument: str | None = None
    """The parameter that gets the predecessor's result; None: it takes nothing."""
    sequence: str | None = None
    steps_aside: bool = False
    expires: int | None = None
    """How long after its due time it may still start."""
    limits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Families of limits, each with the parameters that make its key."""
    follow_up: FollowUp | None = None
    """What follows it in turn."""


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
    sequence: str | None = None
    """Jobs with equal keys run one after another, in the order (due, submission)."""
    steps_aside: bool = False
    """Whether a retry or a snooze lets those behind it in its sequence go first."""
    limits: tuple[str, ...] = ()
    """The buckets, of which each must admit it: see `jobs.limits`."""
    unique: UniqueKey | None = None
    expires: int | None = None
    """From this instant on it is too late to start."""
    schedule: str | None = None
    occurrence: int | None = None
    """Which occurrence of its schedule it is; the pair is stored once."""
    headers: dict[str, str] | None = None
    """Context that is carried along."""
    follow_up: FollowUp | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing but arguments and a due time, as nearly all jobs of a bulk submit."""
        return (
            self.origin,
            self.sequence,
            self.limits,
            self.unique,
            self.expires,
            self.schedule,
            self.headers,
            self.follow_up,
        ) == (None, None, (), None, None, None, None, None)


class ConflictKind(Enum):
    """What was in the way of a new job."""

    ID = "id"
    """A job with its id exists; nothing was stored."""
    UNIQUE = "unique"
    """A job holds its unique key; nothing was stored."""
    REPLACED = "replaced"
    """A job holds its unique key, and has now its arguments and due time."""


class Conflict(Struct, frozen=True, gc=False):
    """The job in the way of a new one, and what was done about it."""

    existing_id: str
    kind: ConflictKind


class Attempt(Struct, frozen=True, gc=False):
    """An attempt that did not end well, as a job remembers it."""

    number: int
    started: int | None
    ended: int
    cause: str
    error: str


class Progress(Struct, frozen=True, gc=False):
    """How far a handler has come, by its own account."""

    done: float
    total: float | None
    note: str | None
    at: int


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
    sequence: str | None = None
    steps_aside: bool = False
    limits: tuple[str, ...] = ()
    unique_key: str | None = None
    expires: int | None = None
    schedule: str | None = None
    occurrence: int | None = None
    headers: dict[str, str] | None = None
    follow_up: FollowUp | None = None
    progress: Progress | None = None


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
    sequence: str | None = None
    limits: tuple[str, ...] = ()
    headers: dict[str, str] | None = None
    follow_up: FollowUp | None = None

    @property
    def frees_others(self) -> bool:
        """Whether other jobs may wait for its end."""
        return self.sequence is not None or bool(self.limits)


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
    keep_result_until: int | None = None
    """When the result may be forgotten; None: with the job."""
    follow_up: NewJob | None = None
    """For COMPLETED: the job to be stored in the same step."""


class ProgressReport(Struct, frozen=True, gc=False):
    """News of a job that runs."""

    lease: Lease
    progress: Progress | None
    """None: its handler begins, and nothing more is known."""
