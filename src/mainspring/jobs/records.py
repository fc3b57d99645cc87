"""Records of jobs, leases, outcomes and workers: the structs that engines store and exchange with workers.

Lists of records are paged by the order of submission, and a place in this order is never reused. So the pages
neither repeat nor omit a job that exists during the whole listing, even if other jobs are added and deleted.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, StrEnum
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from mainspring.jobs.status import JobStatus, require_transition

SUSPECT_CRASHES = 2
"""The number of crashes that makes a job a suspect.

If a worker dies, all jobs that it ran are charged with a crash, so that one crash proves little.
"""


IMMEDIATE, DELAYED, RECURRING = KINDS = ("immediate", "delayed", "recurring")
"""The kinds of jobs, for statistics of lateness and duration: due when submitted; due later, because of a delay, a
retry or a snooze; made by a schedule."""


def kind_of(*, due: int, created: int, schedule: str | None) -> str:
    """Return the kind of a job: see `KINDS`."""
    if schedule is not None:
        return RECURRING
    return DELAYED if due > created else IMMEDIATE


class _HasCrashes(Protocol):
    @property
    def crashes(self) -> int: ...


def is_suspect(job: _HasCrashes) -> bool:
    """Return whether a job has crashed so often that a worker runs at most one such job (a suspect) at a time."""
    return job.crashes >= SUSPECT_CRASHES


class UniqueKey(Struct, frozen=True, gc=False):
    """The unique key of a new job.

    A stored job with the key, in one of `states` and within `window`, conflicts.
    """

    key: str
    states: tuple[JobStatus, ...]
    window: int | None = None
    """Only jobs submitted less than this many microseconds ago conflict; None for jobs of any age."""
    replaces: bool = False
    """Whether the conflicting job, which is PENDING and has never started, gets the arguments and due time of the
    new job."""

    def is_held_by(self, status: JobStatus, created: int, now: int, *, has_started: bool) -> bool:
        """Return whether an existing job with this key, status and submit time conflicts with the new job.

        A job that has started, and waits for a retry or after a snooze, is not replaced.
        """
        if status not in self.states or (self.replaces and has_started):
            return False
        return self.window is None or now - created < self.window


class FollowUp(Struct, frozen=True, gc=False):
    """A plan for a follow-up job, which the engine stores in the transaction that completes the job before it."""

    type: str
    queue: str
    priority: int
    delay: int = 0
    argument: str | None = None
    """The parameter that gets the result of the job before; None if the handler has no parameter left for it."""
    sequence: str | None = None
    steps_aside: bool = False
    expires: int | None = None
    """How many microseconds after its due time the follow-up job may still start."""
    limits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The names of the limits that must admit the job, each with the parameters whose values are its key."""
    follow_up: FollowUp | None = None
    """The plan for the job that follows the follow-up job."""
    bound: bytes | None = None
    """The encoded arguments that `bind` has fixed, by name; None if there are none."""
    codec: str = "json"
    """The encoding of `bound`."""


class NewJob(Struct, frozen=True, gc=False):
    """A job that a caller submits, before it is stored."""

    id: str
    type: str
    queue: str
    priority: int
    due: int
    payload: bytes
    codec: str
    origin: str | None = None
    """The id of the dead letter that this job replays."""
    sequence: str | None = None
    """The sequence key. Jobs with the same key run one after another, ordered by due time, then by submission."""
    steps_aside: bool = False
    """Whether later jobs of its sequence go first while the job waits for a retry or after a snooze."""
    limits: tuple[str, ...] = ()
    """The limits, each with its key (buckets), that must all admit the job before it starts: see `jobs.limits`."""
    unique: UniqueKey | None = None
    expires: int | None = None
    """The instant from which the job may not start any more."""
    schedule: str | None = None
    occurrence: int | None = None
    """The occurrence for which the schedule made the job. The store keeps one job for each occurrence."""
    headers: dict[str, str] | None = None
    """Strings that the application stores with the job, such as a trace id."""
    follow_up: FollowUp | None = None
    search: tuple[str, ...] = ()
    """The search keys: for each parameter in `search=` the text `name=value`, or `name` if it was not given."""

    @property
    def is_plain(self) -> bool:
        """Whether the job has only the fields that every job has: no sequence, limit, unique key, expiry, headers
        and so on.
        """
        return (
            self.origin,
            self.sequence,
            self.limits,
            self.unique,
            self.expires,
            self.schedule,
            self.headers,
            self.follow_up,
            self.search,
        ) == (None, None, (), None, None, None, None, None, ())


class ConflictKind(Enum):
    """Why a new job was not stored as a job of its own."""

    ID = "id"
    """A job with the same id exists; nothing was stored."""
    UNIQUE = "unique"
    """Another job holds its unique key, or was made for the same occurrence; nothing was stored."""
    REPLACED = "replaced"
    """Another job holds its unique key, and has taken over its arguments and due time."""


class Conflict(Struct, frozen=True, gc=False):
    """The existing job that conflicts with a new one, and the kind of conflict."""

    existing_id: str
    kind: ConflictKind


def conflict_of(job: NewJob, *, same_id: bool, same_occurrence: str | None, holder: str | None) -> Conflict | None:
    """Return the conflict that keeps a new job from being stored as a job of its own; None if there is none.

    The engine passes whether a job has the same id (`same_id`), and the ids of the job that was made for the same
    occurrence (`same_occurrence`) and of the job that holds the unique key (`holder`), each None if it found none.
    """
    if same_id:
        return Conflict(job.id, ConflictKind.ID)
    if same_occurrence is not None:
        return Conflict(same_occurrence, ConflictKind.UNIQUE)
    if holder is None or job.unique is None:
        return None
    return Conflict(holder, ConflictKind.REPLACED if job.unique.replaces else ConflictKind.UNIQUE)


class Attempt(Struct, frozen=True, gc=False):
    """An entry in the history of a job: an attempt that failed, timed out, crashed or was interrupted."""

    number: int
    started: int | None
    ended: int
    cause: str
    error: str
    worker: str | None = None
    """The name of the worker; its number, if the store no longer had its name. Older records do not have it."""


class Progress(Struct, frozen=True, gc=False):
    """The progress that a handler has reported last: `done` of `total`, at the instant `at`."""

    done: float
    total: float | None
    note: str | None
    at: int


class JobRecord(Struct, frozen=True):
    """A stored job."""

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
    """The last error; the warning about its result, if the job is COMPLETED."""
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
    """A lease: the right of one worker to run a job, until the job is settled or another worker takes it over."""

    ref: Hashable
    """A reference to the job that only the engine interprets."""
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
    at_most_once: bool = False
    """Whether the job must not start a second time, as the demand of its worker says."""
    kind: str = IMMEDIATE
    """The kind of the job: see `KINDS`."""
    spent: int | None = None
    """When the envelope of an ended job with the same id was signed; None if there was none: see `signing`."""
    verified_until: int = 0
    """The end of its signature, if `JobSigner.verify` has found it right; 0 if it was not verified.

    Only `JobSigner` sets it. No engine reads it from a store."""

    @property
    def frees_others(self) -> bool:
        """Whether other jobs may wait for the end of this one, because it is in a sequence or under a limit."""
        return self.sequence is not None or bool(self.limits)


class RunningLease(Struct, frozen=True, gc=False):
    """The lease of a job that a worker is running, as the store has it now, also whether it was asked to stop."""

    lease: Lease
    started: int
    stop_asked: int | None
    """When the job was asked to stop, first; None if it was not. If a process of an earlier version has asked, the
    start of the attempt, because such a process stores no time."""

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the job was asked to stop."""
        return self.stop_asked is not None


class OutcomeKind(Enum):
    """How an attempt ended. HANDED_BACK means that the handler did not run."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    RETRY = "retry"
    SNOOZED = "snoozed"
    INTERRUPTED = "interrupted"
    """A shutdown stopped the attempt. The job runs again, and no attempt is used up."""
    HANDED_BACK = "handed back"
    """The handler did not run. The job is PENDING again, as if it had not been leased."""


# for code that runs for each job, because Python 3.11 takes four times as long to read a member of an enum
COMPLETED: Final = OutcomeKind.COMPLETED
FAILED: Final = OutcomeKind.FAILED


STATUS_AFTER = {
    OutcomeKind.COMPLETED: JobStatus.COMPLETED,
    OutcomeKind.FAILED: JobStatus.FAILED,
    OutcomeKind.CANCELED: JobStatus.CANCELED,
    OutcomeKind.RETRY: JobStatus.PENDING,
    OutcomeKind.SNOOZED: JobStatus.PENDING,
    OutcomeKind.INTERRUPTED: JobStatus.PENDING,
    OutcomeKind.HANDED_BACK: JobStatus.PENDING,
}
for _status in STATUS_AFTER.values():
    require_transition(JobStatus.RUNNING, _status)


class Cause(StrEnum):
    """Why an attempt failed or was interrupted. An attempt that ends in another way has no cause.

    Job records have a counter for each cause: `failures`, `timeouts`, `crashes`, and `interruptions` for DEPLOY.
    """

    FAILURE = "failure"
    TIMEOUT = "timeout"
    CRASH = "crash"
    """The worker, or the child process of the handler, died."""
    DEPLOY = "deploy"
    """A shutdown of the worker interrupted the attempt."""


AttemptOutcome: TypeAlias = Literal[
    "completed", "failed", "timeout", "crashed", "interrupted", "canceled", "snoozed", "expired"
]
"""How an attempt ended, for users: in metrics, in the history of activity and for middleware.

A job that expired never started. It counts as an attempt in metrics and in the history, and middleware does not
learn of it."""

_OUTCOME_OF_KIND: dict[OutcomeKind, AttemptOutcome] = {
    OutcomeKind.COMPLETED: "completed",
    OutcomeKind.CANCELED: "canceled",
    OutcomeKind.SNOOZED: "snoozed",
    OutcomeKind.INTERRUPTED: "interrupted",
    OutcomeKind.HANDED_BACK: "interrupted",
}
_OUTCOME_OF_CAUSE: dict[Cause | None, AttemptOutcome] = {
    Cause.TIMEOUT: "timeout",
    Cause.CRASH: "crashed",
    Cause.DEPLOY: "interrupted",
}


class Outcome(Struct, gc=False):
    """The end of a lease: how the attempt ended, and the data to store."""

    lease: Lease
    kind: OutcomeKind
    due: int | None = None
    """For RETRY and SNOOZED: the instant at which the job is due again."""
    result: bytes | None = None
    error: str | None = None
    """The error, or the reason for a cancel. For COMPLETED: a warning about the result, usually None."""
    cause: Cause | None = None
    """For RETRY, and for FAILED after an attempt: the cause, whose counter the engine raises; else None."""
    began: int | None = None
    """The instant at which the handler began; None if it did not begin, or if this was not measured."""
    keep_result_until: int | None = None
    """The instant from which the result may be deleted; None if it is deleted with the job."""
    follow_up: NewJob | None = None
    """For COMPLETED: the follow-up job, which the engine stores in the same transaction."""
    took: int | None = None
    """How many microseconds the handler ran; None if it did not begin, or if this was not measured."""
    headers: dict[str, str] | None = None
    """For RETRY and SNOOZED: the headers with a new signature; None if the stored ones stay."""

    @property
    def name(self) -> AttemptOutcome:
        """How the attempt ended, for users. A retry or failure with the cause TIMEOUT or CRASH is named by it."""
        return _OUTCOME_OF_KIND.get(self.kind) or _OUTCOME_OF_CAUSE.get(self.cause, "failed")


SIGNATURE_INVALID = "SignatureInvalid"
"""The first word of the error of a job that became a dead letter because its signature is not right."""


def refusal(lease: Lease, problem: str) -> Outcome:
    """Return the outcome that makes a job a dead letter because its signature is not right, as `problem` says."""
    return Outcome(lease, OutcomeKind.FAILED, error=f"{SIGNATURE_INVALID}: {problem}")


class ProgressReport(Struct, frozen=True, gc=False):
    """A report about a running job: the handler begins, or has made progress."""

    lease: Lease
    progress: Progress | None
    """The progress to store; None if the report only says that the handler begins."""


class Direction(StrEnum):
    """What a remote worker is asked to do. The worker reads this in the answers to its claims and heartbeats."""

    RUN = "run"
    """Claim jobs and run them."""
    QUIET = "quiet"
    """Claim no more jobs, and finish those that run."""
    TERMINATE = "terminate"
    """Finish or give back the jobs that run, leave, and end."""


class RemoteTerms(Struct, frozen=True):
    """The terms of a remote worker: a program that claims jobs over HTTP, through any server of the store."""

    caller: str
    """The caller that has enrolled the worker: see `Identity.caller`. Only this caller may act for the worker."""
    lease: int
    """A remote worker that sent no heartbeat for so many microseconds counts as dead."""
    direction: Direction = Direction.RUN
    removed: str | None = None
    """Why the worker was removed: see `RemoveWorker.reason`. None as long as it was not removed."""


class WorkerInfo(Struct, frozen=True):
    """A worker as it registers itself in the store. Each start of a worker is a new registration."""

    name: str
    process: int
    types: tuple[str, ...]
    queues: tuple[str, ...] | None = None
    """The queues that the worker serves; None for all. Workers of version 0.1 do not store them."""
    timeouts: dict[str, int] = {}
    """The timeouts of its handlers in microseconds, by job type. Workers of version 0.1 do not store them."""
    slots: dict[str, int] = {}
    """How many handlers it runs at once, by `SlotKind`; empty if it does not tell."""
    version: str = ""
    """The version of Mainspring; empty if the worker does not tell."""
    remote: RemoteTerms | None = None
    """The terms of a remote worker; None for a worker that is a process of the application."""

    def serves(self, queue: str) -> bool:
        """Return whether the worker runs jobs of a queue."""
        return self.queues is None or queue in self.queues


class WorkerRecord(Struct, frozen=True):
    """A registered worker, as the store has it."""

    number: int
    info: WorkerInfo
    heartbeat: int
    """The instant of the worker's last heartbeat."""
    is_gone: bool
    """Whether the worker is known to be dead, so that its jobs wait for a rescue.

    A worker that only stopped sending heartbeats may still live, and is not gone.
    """


class SearchTerm(Struct, frozen=True):
    """A filter for the value of one parameter. An engine with a search index uses it to read fewer jobs.

    Of the jobs that are indexed by the parameter, the engine may leave out those without one of the keys. The
    engine returns all other jobs, and the caller compares their arguments.
    """

    name: str
    """The name of the parameter."""
    keys: tuple[str, ...]
    """The search keys that match: see `NewJob.search`."""


class Query(Struct, frozen=True):
    """Filters, page size and order of a list of jobs.

    The order is that of submission, or with `by_failure` that of failure; with `newest_first`, it is reversed.
    """

    status: JobStatus | None = None
    queue: str | None = None
    type: str | None = None
    ids: tuple[str, ...] | None = None
    is_replayed: bool | None = None
    due_until: int | None = None
    """Only jobs whose due time is not after this instant."""
    created_since: int | None = None
    """Only jobs that were submitted at this instant or later."""
    created_until: int | None = None
    """Only jobs that were submitted before this instant."""
    search: tuple[SearchTerm, ...] = ()
    """The arguments that the caller looks for. Queries by ids ignore them."""
    is_limited: bool | None = None
    """Only jobs under a limit (True), or only jobs under no limit (False)."""
    is_bound: bool | None = None
    """Only jobs under a limit or in a sequence (True), or only jobs with neither (False)."""
    limit: int = 50
    after: str | None = None
    """The position at which the previous page ended, in either direction."""
    newest_first: bool = False
    types: tuple[str, ...] | None = None
    """Only jobs of these types, beside `type`: those that the caller may read; None for all."""
    queues: tuple[str, ...] | None = None
    """Only jobs of these queues, beside `queue`: those that the caller may read; None for all."""
    by_failure: bool = False
    """List dead letters by the instant at which they failed; only with the status FAILED, and without `search`."""


class Page(Struct, frozen=True):
    """A page of a list of jobs, and the position at which it ends."""

    records: list[JobRecord]
    end: str | None
    """The value of `Query.after` for the next page, in the engine's own format; None if there are no more jobs."""
    positions: tuple[str, ...] = ()
    """For each record, the value of `Query.after` for a list that continues behind it. Lists by ids have none."""


MAX_PLACE = 2**63 - 1


def to_place(cursor: str) -> int:
    """Return the position in the order of submission that a cursor names; raise `ValueError` if it names none.

    This function is for engines whose cursors are numbers of at most 63 bits.
    """
    is_number = cursor.isascii() and cursor.isdecimal() and len(cursor) <= len(str(MAX_PLACE))
    if not is_number or int(cursor) > MAX_PLACE:
        raise invalid_cursor(cursor)
    return int(cursor)


def invalid_cursor(cursor: object) -> ValueError:
    """Return the error for an `after` that is not the `next` of an earlier page."""
    return ValueError(f"after must be the `next` of an earlier page, got {cursor!r:.100}")


def require_cursor(cursor: str | None) -> str | None:
    """Return the cursor `after` of a list call unchanged; raise `ValueError` if it is neither a string nor
    None.
    """
    if cursor is not None and not isinstance(cursor, str):
        raise invalid_cursor(cursor)
    return cursor
