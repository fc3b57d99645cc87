"""Statistics: which jobs of a store are due, blocked or scheduled, and how busy this process is.

- A **due** job could start now: it is PENDING, its due time has come, its queue is not paused, no job is before it
  in its sequence, and its limits would admit it. It waits only for a worker. A job that a worker holds counts,
  too, until its start is committed.
- A **blocked** job is PENDING and its due time has come, but it waits for something else: its queue is paused, a
  job of its sequence must end first, or a limit admits no more jobs.
- A **scheduled** job is PENDING and due later.

So due, blocked and scheduled jobs are together the PENDING jobs. These are the definitions of `app.explain`: a due
job is one that `explain` calls queued, or waiting for a worker.

Engines return the counts of `jobs.store_statistics`, with instants in microseconds. Users get the frozen classes
of this module, with `datetime`s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from mainspring.jobs.histogram import Histogram
from mainspring.jobs.store_statistics import HOT_JOBS, JobGroup, JobsInSlot
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime
from mainspring.runners.statistics import PoolStatistics
from mainspring.timing.wheel import WheelStatistics

HOT_FACTOR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """The numbers of jobs of one queue and job type, for users."""

    queue: str
    type: str
    due: int
    """Jobs that could start now: they wait only for a worker."""
    blocked: int
    """Jobs whose due time has come, but whose queue is paused, or that wait for a limit or their sequence."""
    scheduled: int
    """Jobs that are due later, including those that wait for a retry."""
    running: int
    dead_letters: int
    """Jobs that failed and were not replayed."""
    oldest_due: timedelta | None
    """How long ago the oldest due job became due; None if no job is due. Blocked jobs do not count."""
    oldest_blocked: timedelta | None
    """How long ago the oldest blocked job became due; None if no job is blocked."""
    is_exact: bool
    """False if a count may be too small, because the engine stops counting at 10,000 jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingSlot:
    """Scheduled jobs that become due within the same slot of 268 ms, the finest slot of a timing wheel."""

    queue: str
    type: str
    at: datetime
    """The instant at which the slot begins."""
    jobs: int
    """How many jobs become due within the slot; 10,000 means that many or more."""
    at_once: int
    """How many jobs of the slot are due at the same instant, at most."""
    average: float
    """How many jobs the other slots from now on have on average."""

    @property
    def is_hot(self) -> bool:
        """Whether the slot has at least 1,000 jobs, and ten times as many as the other slots on average."""
        return self.jobs >= HOT_JOBS and self.jobs >= HOT_FACTOR * self.average


class SlotKind(StrEnum):
    """What occupies a slot of a worker: a handler on a thread, on the event loop or in a child process, or a
    callback.
    """

    THREADS = "threads"
    COROUTINES = "coroutines"
    PROCESSES = "processes"
    CALLBACKS = "callbacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatistics:
    """How many slots of one kind the worker of this process has, and how many are busy."""

    kind: SlotKind
    slots: int
    """How many handlers can run at once."""
    busy: int
    """How many slots are occupied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStatistics:
    """The number, duration and size of the commits of this process since its start."""

    commits: int
    seconds: float
    """How many seconds all these commits took together."""
    operations: int
    """How many calls of the engine all these commits contained together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatistics:
    """The slots, timers, thread pools and commits of this process."""

    slots: tuple[SlotStatistics, ...]
    """The slots of the worker, by kind; empty if no worker runs in this process."""
    timers: WheelStatistics | None
    """The timing wheels of this process together: those of its pools and of its worker.

    Jobs that are due later than in a second are in the store, not in a wheel: see `Statistics.fullest_slot`. None
    if the runners of this process have no wheel.
    """
    pools: tuple[PoolStatistics, ...]
    """The thread pools that this application has open."""
    commits: CommitStatistics | None
    """The commits of this process; None if they are not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A snapshot of the jobs in the store and of this process: `app.statistics()`."""

    at: datetime
    """The time of the snapshot, by the clock of the store."""
    groups: tuple[GroupStatistics, ...]
    """The queues and job types that have jobs which have not ended, or dead letters; sorted by queue and type."""
    paused_queues: tuple[str, ...]
    workers: int
    """How many workers of the store are alive, in all processes and on all machines."""
    fullest_slot: UpcomingSlot | None
    """The fullest slot of the next scheduled jobs; None if no jobs are scheduled.

    If slots of several job types have more than 1,000 jobs, it may be the earliest of them.
    """
    process: ProcessStatistics

    @property
    def due(self) -> int:
        """How many jobs could start now and wait only for a worker."""
        return sum(group.due for group in self.groups)

    @property
    def blocked(self) -> int:
        """How many jobs have reached their due time, but wait for a paused queue, a limit or their sequence."""
        return sum(group.blocked for group in self.groups)

    @property
    def scheduled(self) -> int:
        """How many PENDING jobs are due later."""
        return sum(group.scheduled for group in self.groups)

    @property
    def running(self) -> int:
        """How many jobs are running."""
        return sum(group.running for group in self.groups)

    @property
    def dead_letters(self) -> int:
        """How many jobs failed and were not replayed."""
        return sum(group.dead_letters for group in self.groups)

    @property
    def oldest_due(self) -> timedelta | None:
        """How long ago the oldest due job became due; None if no job is due. Blocked jobs do not count."""
        return _longest(group.oldest_due for group in self.groups)

    @property
    def oldest_blocked(self) -> timedelta | None:
        """How long ago the oldest blocked job became due; None if no job is blocked."""
        return _longest(group.oldest_blocked for group in self.groups)

    @property
    def is_exact(self) -> bool:
        """Whether all counts are exact. If not, some may be too small."""
        return all(group.is_exact for group in self.groups)

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues that occur in `groups`, sorted."""
        return tuple(sorted({group.queue for group in self.groups}))

    def queue(self, name: str) -> QueueTotals:
        """Return the totals of one queue; all counts are zero if it has no jobs."""
        groups = [group for group in self.groups if group.queue == name]
        return QueueTotals(
            queue=name,
            is_paused=name in self.paused_queues,
            due=sum(group.due for group in groups),
            blocked=sum(group.blocked for group in groups),
            scheduled=sum(group.scheduled for group in groups),
            running=sum(group.running for group in groups),
            dead_letters=sum(group.dead_letters for group in groups),
            oldest_due=_longest(group.oldest_due for group in groups),
            oldest_blocked=_longest(group.oldest_blocked for group in groups),
            is_exact=all(group.is_exact for group in groups),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTotals:
    """The jobs of one queue, of all job types together: `app.statistics().queue("mail")`."""

    queue: str
    is_paused: bool
    due: int
    """Jobs that could start now: they wait only for a worker."""
    blocked: int
    """Jobs whose due time has come, but whose queue is paused, or that wait for a limit or their sequence."""
    scheduled: int
    """Jobs that are due later, including those that wait for a retry."""
    running: int
    dead_letters: int
    """Jobs that failed and were not replayed."""
    oldest_due: timedelta | None
    """How long ago the oldest due job became due; None if no job is due. Blocked jobs do not count."""
    oldest_blocked: timedelta | None
    """How long ago the oldest blocked job became due; None if no job is blocked."""
    is_exact: bool
    """False if a count may be too small, because the engine stops counting at 10,000 jobs of a job type."""


def _longest(ages: Iterable[timedelta | None]) -> timedelta | None:
    return max((age for age in ages if age is not None), default=None)


def to_groups(groups: Iterable[JobGroup], now: int) -> tuple[GroupStatistics, ...]:
    """Convert the counts of an engine, with instants in microseconds, to those for users, with ages at `now`."""
    return tuple(
        GroupStatistics(
            queue=group.queue,
            type=group.type,
            due=group.due,
            blocked=group.blocked,
            scheduled=group.scheduled,
            running=group.running,
            dead_letters=group.dead_letters,
            oldest_due=_age(group.oldest_due, now),
            oldest_blocked=_age(group.oldest_blocked, now),
            is_exact=group.is_exact,
        )
        for group in groups
    )


def to_slot(slot: JobsInSlot | None) -> UpcomingSlot | None:
    """Convert a slot of an engine to one for users; None stays None."""
    if slot is None:
        return None
    return UpcomingSlot(
        queue=slot.queue,
        type=slot.type,
        at=to_datetime(slot.since),
        jobs=slot.count,
        at_once=slot.at_once,
        average=slot.average,
    )


def to_commits(durations: Histogram, sizes: Histogram) -> CommitStatistics:
    """Sum up the commits of this process: their durations in microseconds, and their operations."""
    return CommitStatistics(commits=durations.count, seconds=durations.sum / MICROSECONDS, operations=sizes.sum)


def _age(instant: int | None, now: int) -> timedelta | None:
    return None if instant is None else timedelta(microseconds=max(0, now - instant))
