"""Policies: unique jobs, concurrency and rate limits, catch-up of schedules, child processes, retention.

Handlers, submits, schedules and applications have policies. A policy checks its values when it is made.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec import field as struct_field

from mainspring.clock import NANOSECONDS, Duration, to_nanoseconds
from mainspring.jobs.engine import Retention
from mainspring.jobs.ids import require_id
from mainspring.jobs.limits import Limit
from mainspring.jobs.processes.application import ChildSetup
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import to_microseconds
from mainspring.runners.validation import require_positive

ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)

OnConflict: TypeAlias = Literal["return", "replace", "raise"]


@dataclass(frozen=True, slots=True)
class Unique:
    """Allow at most one job of a handler for each key.

    The key is made of `key`, of the values of the parameters named by `by`, or of both. Without them it is made of
    all arguments. An existing job with the same key conflicts with a new one while it is in one of `states`, by
    default while it is PENDING or RUNNING. With a `window`, it conflicts only if it was submitted less than that
    ago; by default it then also conflicts if it has COMPLETED.

    `on_conflict="return"` returns the existing job. `"replace"` gives the existing job the new arguments and due
    time, which makes a debounce; only a PENDING job that has never started conflicts then. `"raise"` raises
    `DuplicateJob`.
    """

    key: str | None = None
    """The unique key of the job; with `by`, only the first part of the key."""
    window: Duration | None = None
    """How long after its submit a job conflicts with a new one; None for as long as it has one of the states."""
    states: tuple[JobStatus, ...] | None = None
    """The statuses in which a job conflicts with a new one; None for the default above.

    The default is PENDING and RUNNING; with a `window` also COMPLETED; with `on_conflict="replace"` only PENDING.
    """
    on_conflict: OnConflict = "return"
    """What a conflicting submit does: return the existing job, replace it, or raise `DuplicateJob`."""
    by: str | tuple[str, ...] | None = None
    """The names of parameters whose values are part of the key."""

    def __post_init__(self) -> None:
        if self.key is not None:
            require_id(self.key, "unique key")
        if self.window is not None and to_nanoseconds(self.window, "window") == 0:
            raise ValueError("window must be greater than zero, got 0; leave it out for no window")
        if self.on_conflict not in ("return", "replace", "raise"):
            raise ValueError(f"on_conflict must be 'return', 'replace' or 'raise', got {self.on_conflict!r}")
        names_of(self.by)
        if self.states is not None:
            object.__setattr__(self, "states", tuple(JobStatus(state) for state in self.states))
            if not self.states:
                raise ValueError("states must name at least one status, got (); leave it out for the default")
            if self.on_conflict == "replace" and self.states != (JobStatus.PENDING,):
                raise ValueError(
                    f"on_conflict='replace' can only replace jobs that are PENDING, got states={self.states!r}; "
                    "leave states out"
                )

    @property
    def conflicting_states(self) -> tuple[JobStatus, ...]:
        """The statuses in which an existing job conflicts with a new one, with the defaults applied."""
        if self.on_conflict == "replace":
            return (JobStatus.PENDING,)
        if self.states is not None:
            return self.states
        return ALIVE if self.window is None else (*ALIVE, JobStatus.COMPLETED)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Run at most `n` jobs at once over all workers; with `by`, for each value of these parameters."""

    n: int
    """The largest number of jobs that run at once."""
    by: str | tuple[str, ...] | None = None
    """The names of parameters; each combination of their values has a limit of its own."""

    def __post_init__(self) -> None:
        require_positive(self.n, "n", "jobs at once")
        names_of(self.by)

    @property
    def limit(self) -> Limit:
        """The same limit in the form that engines use."""
        return Limit(self.n, None)


@dataclass(frozen=True, slots=True)
class Rate:
    """Start on average at most `n` jobs in each `per`, over all workers.

    With `by`, this holds for each value of these parameters. The rate is a token bucket: after a quiet time up to
    `n` jobs start at once, and tokens are refilled evenly. So up to twice `n` jobs can start in the first `per`
    after a quiet time.
    """

    n: int
    """How many tokens, each for one start, are refilled within `per`; also the most jobs that start at once."""
    per: Duration = 1
    """The time in which `n` tokens are refilled, in seconds or as a timedelta."""
    by: str | tuple[str, ...] | None = None
    """The names of parameters; each combination of their values has a rate of its own."""

    def __post_init__(self) -> None:
        require_positive(self.n, "n", "starts per time")
        if to_nanoseconds(self.per, "per") == 0:
            raise ValueError("per must be greater than zero, got 0; Rate(10, per=60) is ten a minute")
        names_of(self.by)

    @property
    def limit(self) -> Limit:
        """The same limit in the form that engines use."""
        return Limit(self.n, to_microseconds(self.per, "per"))


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A misfire policy: run the missed occurrences of a schedule late, but only the latest `limit` of them."""

    limit: int

    def __post_init__(self) -> None:
        require_positive(self.limit, "limit", "occurrences")


def names_of(by: str | tuple[str, ...] | None, option: str = "by") -> tuple[str, ...]:
    """Return the parameter names that an option such as `by=` lists; raise `ValueError` if one is no identifier.

    The error calls the option `option`.
    """
    names = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    for name in names:
        if not str(name).isidentifier():
            raise ValueError(f"{option} must name parameters of the handler, got {name!r}")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Settings of a worker's child processes. A process starts when a job needs one and none is idle."""

    count: int = field(default_factory=lambda: os.cpu_count() or 1)
    """The largest number of child processes; by default the number of processors."""
    max_jobs: int | None = None
    """The worker replaces a child process after this many jobs."""
    max_memory: int | None = None
    """The worker replaces a child process that uses more than this many bytes of memory after a job."""

    def __post_init__(self) -> None:
        require_positive(self.count, "count", "processes")
        if self.max_jobs is not None:
            require_positive(self.max_jobs, "max_jobs", "jobs")
        if self.max_memory is not None:
            require_positive(self.max_memory, "max_memory", "bytes")

    def options(self) -> dict[str, Any]:
        """Return these settings, except `count`, as named arguments of `ProcessPool`."""
        return {"max_jobs": self.max_jobs, "max_memory": self.max_memory}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long, and how many, ended jobs and audit entries are kept.

    None means no limit. Dead letters are kept for ever by default.
    """

    completed: Duration | None = timedelta(days=7)
    """How long COMPLETED jobs are kept."""
    canceled: Duration | None = timedelta(days=7)
    """How long CANCELED jobs are kept."""
    failed: Duration | None = None
    """How long dead letters are kept."""
    most: int | None = 1_000_000
    """The largest number of COMPLETED and CANCELED jobs to keep; the oldest are deleted first."""
    audit: Duration | None = timedelta(days=90)
    """How long entries of the audit trail are kept."""
    most_audited: int | None = 10_000
    """The largest number of entries of the audit trail to keep; the oldest are deleted first."""

    def __post_init__(self) -> None:
        if self.most is not None:
            require_positive(self.most, "most", "jobs")
        if self.most_audited is not None:
            require_positive(self.most_audited, "most_audited", "entries")
        self.retention()

    def retention(self) -> Retention:
        """Return these settings in the form that engines use."""
        return Retention(
            _age(self.completed, "completed"),
            _age(self.canceled, "canceled"),
            _age(self.failed, "failed"),
            self.most,
            _age(self.audit, "audit"),
            self.most_audited,
        )


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Settings of a worker: how many handlers it runs at once, which queues it serves, and its maintenance."""

    coroutines: int = 100
    """How many coroutine handlers the worker runs at once."""
    processes: ProcessSettings = struct_field(default_factory=ProcessSettings)
    child_setup: ChildSetup = struct_field(default_factory=ChildSetup)
    """The application and the store, for child processes."""
    queues: tuple[str, ...] | None = None
    """The queues that the worker serves; None for all."""
    keep: Keep = struct_field(default_factory=Keep)
    stall_after_ns: int = 60 * NANOSECONDS
    """How long due jobs stay unclaimed until the worker reports a stall, in nanoseconds; 0 for never."""
    has_maintenance: bool = True
    """Whether the worker sends heartbeats, rescues jobs and prunes. In time travel it does not."""
    has_jitter: bool = True
    """Whether the delays of retries vary at random. In time travel they do not, so that tests are repeatable."""


def _age(duration: Duration | None, name: str) -> int | None:
    return None if duration is None else to_microseconds(duration, name)
