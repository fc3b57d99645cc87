"""Snapshots of what a runner holds and has done."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.timing.wheel import WheelStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStatistics:
    """One frozen look at a runner. Exact while the runner is at rest, close to it while it works."""

    name: str
    queued: int
    """Posted, due, and not started."""
    active: int
    """Running now."""
    delayed: int
    """Posted for later, and not yet due."""
    workers: int
    """Threads that may run its tasks."""
    completed: int
    failed: int
    rejected: int
    """Refused with `QueueFull` or `RunnerClosed`."""
    cancelled: int
    skipped: int
    """Dropped by a shutdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics(RunnerStatistics):
    """The counts of a pool and of all its runners together, and the timing wheel that they share."""

    timers: WheelStatistics
    """What the wheel holds: delayed and repeated tasks, and the timers of the pool itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownReport:
    """What became of the tasks that a shutdown found, or that were posted while it went on.

    Every one of them is counted once. A task that called `shutdown` itself is not counted: it still runs.
    """

    ran: int
    """Finished, well or badly, before shutdown returned."""
    skipped: int
    """Never started: dropped because their behaviour allows it, or because they were not due."""
    abandoned: int
    """Still running when shutdown returned, or BLOCK tasks for which the timeout left no time."""
