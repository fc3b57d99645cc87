"""What a move would carry over, and what would stay behind: counted, with nothing changed."""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.sqlite.departing import Departure
from mainspring.jobs.status import JobStatus


class Plan(Struct, frozen=True):
    """How many of what."""

    pending: int
    running: int
    """Of workers that died, or that still live: they become PENDING before the move."""
    dead_letters: int
    schedules: int
    paused_queues: int
    limits: int
    left_behind: int
    """COMPLETED and CANCELED."""
    workers: tuple[str, ...]
    """Who lives on the source, and has to be stopped."""

    @property
    def jobs(self) -> int:
        """How many jobs are carried over."""
        return self.pending + self.dead_letters


def plan(source: Departure) -> Plan:
    """Count."""
    counts = source.counts()
    settings = source.settings()
    return Plan(
        pending=counts[JobStatus.PENDING],
        running=counts[JobStatus.RUNNING],
        dead_letters=counts[JobStatus.FAILED],
        schedules=source.count_schedules(),
        paused_queues=len(settings.paused),
        limits=len(settings.limits),
        left_behind=counts[JobStatus.COMPLETED] + counts[JobStatus.CANCELED],
        workers=tuple(source.living_workers()),
    )
