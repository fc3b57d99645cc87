"""Plans a migration: counts the jobs that it would copy and leave behind, without changing anything."""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.sqlite.export import SqliteExport
from mainspring.jobs.status import JobStatus


class MigrationPlan(Struct, frozen=True):
    """The numbers of jobs, schedules and settings that a migration would move, and the workers that prevent it."""

    pending: int
    running: int
    """The number of RUNNING jobs. Before the migration they must end, or are rescued if their workers died."""
    dead_letters: int
    schedules: int
    paused_queues: int
    limits: int
    left_behind: int
    """The number of COMPLETED and CANCELED jobs, which are not copied."""
    workers: tuple[str, ...]
    """The names of the live workers of the source, which must be stopped."""

    @property
    def jobs(self) -> int:
        """How many jobs would be copied, not counting the RUNNING jobs."""
        return self.pending + self.dead_letters


def plan_migration(source: SqliteExport) -> MigrationPlan:
    """Count what a migration would copy, and the jobs that it would leave behind; name the workers to stop."""
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
