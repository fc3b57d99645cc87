"""Plans a move: counts what it would copy and what it would leave behind, without changing anything."""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.sqlite.export import SqliteExport
from mainspring.jobs.status import JobStatus


class MigrationPlan(Struct, frozen=True):
    """The counts of a planned move."""

    pending: int
    running: int
    """Jobs of dead workers, or of live ones: they become PENDING before the move."""
    dead_letters: int
    schedules: int
    paused_queues: int
    limits: int
    left_behind: int
    """COMPLETED and CANCELED jobs."""
    workers: tuple[str, ...]
    """The live workers of the source, which have to be stopped."""

    @property
    def jobs(self) -> int:
        """How many jobs are copied."""
        return self.pending + self.dead_letters


def plan_migration(source: SqliteExport) -> MigrationPlan:
    """Count what a move would copy and leave behind."""
    counts = source.counts()
    settings = source.settings()
    return MigrationPlan(
        pending=counts[JobStatus.PENDING],
        running=counts[JobStatus.RUNNING],
        dead_letters=counts[JobStatus.FAILED],
        schedules=source.count_schedules(),
        paused_queues=len(settings.paused),
        limits=len(settings.limits),
        left_behind=counts[JobStatus.COMPLETED] + counts[JobStatus.CANCELED],
        workers=tuple(source.live_workers()),
    )
