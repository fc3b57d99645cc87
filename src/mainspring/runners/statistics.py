"""Statistics of runners and pools, and the report of a shutdown."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.timing.wheel import WheelStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStatistics:
    """A frozen snapshot of a runner. Exact while the runner is idle, approximate while it runs tasks."""

    name: str
    queued: int
    """Tasks that are due and have not started."""
    active: int
    """Tasks that run now."""
    delayed: int
    """Tasks that are not due yet."""
    workers: int
    """Threads that may run its tasks."""
    completed: int
    failed: int
    rejected: int
    """Tasks refused with `QueueFull` or `RunnerClosed`."""
    cancelled: int
    skipped: int
    """Tasks dropped by a shutdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics(RunnerStatistics):
    """The counts of a pool and all its runners together, and the statistics of their timing wheel."""

    timers: WheelStatistics
    """The timing wheel: delayed and repeated tasks, and the timers of the pool itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownReport:
    """The outcome of a shutdown for the tasks that it found, or that were posted during it.

    Each task is counted once. A task that called `shutdown` itself is not counted: it still runs.
    """

    ran: int
    """Tasks that completed or failed before shutdown returned."""
    skipped: int
    """Tasks that never started: dropped because their behaviour allows it, or because they were not due."""
    abandoned: int
    """Tasks still running when shutdown returned, and BLOCK tasks that did not start before the timeout."""
