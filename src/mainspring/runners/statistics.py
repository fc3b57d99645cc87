"""Statistics of runners and pools, and the report of a shutdown."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.timing.wheel import WheelStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStatistics:
    """The counts of a runner at one moment. They are exact while the runner is idle, otherwise approximate."""

    name: str
    queued: int
    """The number of tasks that are due and have not started."""
    active: int
    """The number of tasks that run now."""
    delayed: int
    """The number of tasks that are not due yet."""
    workers: int
    """The number of threads that may run tasks of this runner."""
    completed: int
    failed: int
    rejected: int
    """The number of tasks that were refused with `QueueFull` or `RunnerClosed`."""
    cancelled: int
    skipped: int
    """The number of tasks that a shutdown dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics(RunnerStatistics):
    """The counts of a pool and all its runners together, and the statistics of their timing wheel."""

    timers: WheelStatistics
    """The statistics of the timing wheel: delayed and repeated tasks, and timers of the pool itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownReport:
    """How many tasks a shutdown ran, skipped and abandoned, of those that were there or were posted during it.

    Each task is counted once. A task that called `shutdown` itself is not counted: it still runs.
    """

    ran: int
    """The number of tasks that completed or failed before shutdown returned."""
    skipped: int
    """The number of tasks that never started: their traits allow it, or they were not due."""
    abandoned: int
    """The number of tasks that still ran when shutdown returned, and of BLOCK tasks that did not start in time."""
