"""Policies of handlers, submits and applications, checked when they are made.

They say which jobs are unique, how many run at once or in a time, how many processes run handlers, and how long
jobs are kept that have ended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from mainspring.clock import Duration, to_nanoseconds
from mainspring.jobs.engine import Retention
from mainspring.jobs.ids import require_id
from mainspring.jobs.instants import to_microseconds
from mainspring.jobs.limits import Limit
from mainspring.jobs.status import JobStatus
from mainspring.runners.checks import require_positive

ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)

OnConflict: TypeAlias = Literal["return", "replace", "raise"]


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one job of a handler for each key.

    The key is `key`, the values of the parameters named by `by`, both, or else all arguments. A job is in the way
    of a new one while it is in one of `states` (by default while it waits or runs) and, with a `window`, while it
    was submitted less than that ago (by default then also if it has COMPLETED).

    `on_conflict="return"` hands out the one that is there, `"replace"` gives it the new arguments and due time (a
    debounce: only a job that still waits is in the way), `"raise"` raises `DuplicateJob`.
    """

    key: str | None = None
    window: Duration | None = None
    states: tuple[JobStatus, ...] | None = None
    on_conflict: OnConflict = "return"
    by: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            require_id(self.key, "unique key")
        if self.window is not None and to_nanoseconds(self.window, "window") == 0:
            raise ValueError("window must be longer than nothing, got 0; leave it out for no window")
        if self.on_conflict not in ("return", "replace", "raise"):
            raise ValueError(f"on_conflict must be 'return', 'replace' or 'raise', got {self.on_conflict!r}")
        names_of(self.by)
        if self.states is not None:
            object.__setattr__(self, "states", tuple(JobStatus(state) for state in self.states))
            if not self.states:
                raise ValueError("states must name at least one state, or be left out")
            if self.on_conflict == "replace" and self.states != (JobStatus.PENDING,):
                raise ValueError(
                    f"on_conflict='replace' can only replace jobs that are PENDING, got states={self.states!r}; "
                    "leave states out"
                )

    @property
    def states_in_the_way(self) -> tuple[JobStatus, ...]:
        """The states, with their defaults."""
        if self.on_conflict == "replace":
            return (JobStatus.PENDING,)
        if self.states is not None:
            return self.states
        return ALIVE if self.window is None else (*ALIVE, JobStatus.COMPLETED)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `n` jobs at once, over all workers; with `by`, for each value of these parameters."""

    n: int
    by: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_positive(self.n, "n", "jobs at once")
        names_of(self.by)

    @property
    def limit(self) -> Limit:
        """As an engine knows it."""
        return Limit(self.n, None)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `n` starts per time, over all workers; with `by`, for each value of these parameters.

    A token bucket: up to `n` may start at once after a quiet time, and it fills up again evenly.
    """

    n: int
    per: Duration = 1
    by: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_positive(self.n, "n", "starts per time")
        if to_nanoseconds(self.per, "per") == 0:
            raise ValueError("per must be longer than nothing, got 0; Rate(10, per=60) is ten a minute")
        names_of(self.by)

    @property
    def limit(self) -> Limit:
        """As an engine knows it."""
        return Limit(self.n, to_microseconds(self.per, "per"))


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Make up for missed occurrences of a schedule, for the latest `limit` at most."""

    limit: int

    def __post_init__(self) -> None:
        require_positive(self.limit, "limit", "occurrences")


def names_of(by: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the parameters that make a key."""
    names = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    for name in names:
        if not str(name).isidentifier():
            raise ValueError(f"by must name parameters of the handler, got {name!r}")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The processes of one worker. They are started when the first job needs them."""

    count: int = field(default_factory=lambda: os.cpu_count() or 1)
    max_jobs: int | None = None
    """After so many jobs a process is replaced by a new one."""
    max_memory: int | None = None
    """A process that has more bytes than this after a job is replaced by a new one."""

    def __post_init__(self) -> None:
        require_positive(self.count, "count", "processes")
        if self.max_jobs is not None:
            require_positive(self.max_jobs, "max_jobs", "jobs")
        if self.max_memory is not None:
            require_positive(self.max_memory, "max_memory", "bytes")

    def options(self) -> dict[str, Any]:
        """What the pool of processes wants to know."""
        return {"max_jobs": self.max_jobs, "max_memory": self.max_memory}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long jobs that have ended are kept; None for ever. Dead letters stay until somebody looks at them."""

    completed: Duration | None = timedelta(days=7)
    canceled: Duration | None = timedelta(days=7)
    failed: Duration | None = None
    most: int | None = 1_000_000
    """How many that completed or were canceled, at most; the oldest go first."""

    def __post_init__(self) -> None:
        if self.most is not None:
            require_positive(self.most, "most", "jobs")
        self.retention()

    def retention(self) -> Retention:
        """As an engine knows it."""
        return Retention(
            _age(self.completed, "completed"),
            _age(self.canceled, "canceled"),
            _age(self.failed, "failed"),
            self.most,
        )


def _age(duration: Duration | None, name: str) -> int | None:
    return None if duration is None else to_microseconds(duration, name)
