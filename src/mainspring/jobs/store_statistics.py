"""The statistics that engines return: counts of jobs by queue and type, with instants in microseconds.

`jobs.statistics` defines the terms, and has the classes that users get.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from msgspec import Struct

from mainspring.timing.wheel import DEFAULT_TICK

MAX_COUNTED = 10_000
"""An engine counts the jobs of a queue and job type up to this number exactly. It may stop there."""
SLOT_MICROSECONDS = DEFAULT_TICK // 1_000
"""The width of an upcoming slot, in microseconds: that of the finest slots of a timing wheel, 268 ms."""

MAX_IN_PERIOD = 1_000
"""An engine counts the upcoming jobs of a queue and type in one period exactly up to this number.

It may stop there.
"""
LOOKAHEAD = 10_000
"""How many scheduled jobs an engine examines by default to find the fullest slot."""
HOT_JOBS = 1_000


class JobGroup(Struct, frozen=True, gc=False):
    """The numbers of jobs of one queue and job type, as an engine counts them."""

    queue: str
    type: str
    due: int
    blocked: int
    scheduled: int
    running: int
    dead_letters: int
    oldest_due: int | None
    """The earliest due time of the due jobs; None if there are none."""
    oldest_blocked: int | None
    """The earliest due time of the blocked jobs; None if there are none."""
    is_exact: bool
    """Whether all counts are exact. If not, those above `MAX_COUNTED` may be too small."""


class JobsInSlot(Struct, frozen=True, gc=False):
    """How many scheduled jobs of one queue and job type become due within one slot of time."""

    queue: str
    type: str
    since: int
    """The instant at which the slot begins. It is `SLOT_MICROSECONDS` wide."""
    count: int
    at_once: int
    """How many of these jobs are due at the same instant: the instant that most of them have."""
    average: float
    """How many jobs the other slots have on average, up to the last job that the engine has examined."""


class UpcomingJobs(Struct, frozen=True, gc=False):
    """The scheduled jobs of one queue and job type, by periods of time."""

    queue: str
    type: str
    counts: tuple[int, ...]
    """How many jobs become due in each period; `MAX_IN_PERIOD` may mean more."""


class StoreStatistics(Struct, frozen=True):
    """The answer of an engine to `statistics`."""

    at: int
    """The time of the snapshot, by the engine's clock."""
    paused: tuple[str, ...]
    """The paused queues, sorted by name."""
    groups: tuple[JobGroup, ...]
    """The queues and job types that have jobs which have not ended, or dead letters; sorted by queue and type."""
    fullest_slot: JobsInSlot | None
    """The fullest slot of the next scheduled jobs; None if no jobs are scheduled."""


FindFull: TypeAlias = Callable[[Collection[tuple[str, ...]]], Collection[tuple[str, ...]]]
"""A function that gets the buckets of several groups of jobs, and returns those that admit no job now."""
