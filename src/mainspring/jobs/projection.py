"""The protocol of projections: local copies of job records, for engines whose store cannot list and count jobs.

The engine writes every change of a job record to the projection. The projection stores the number of the last
change, and continues there after a restart. It can be deleted and built again, because the store has all records.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Protocol

from msgspec import Struct

from mainspring.jobs.activity import MINUTE
from mainspring.jobs.activity_rows import ActivityBatch, ActivityCount
from mainspring.jobs.records import JobRecord, Page, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import FindFull, StoreStatistics, UpcomingJobs


class Wait(IntEnum):
    """What a PENDING job waits for, as its record says: its sequence, its limits, or neither.

    No value says that the queue of the job is paused.
    """

    NOTHING = 0
    SEQUENCE = 1
    """Another job of the same sequence must end first."""
    LIMITS = 2
    """The limits of the job have not admitted it yet, although they may have room by now."""


class ProjectedJob(Struct, frozen=True, gc=False):
    """A change of a job: its current record, which is None if the job was deleted."""

    id: str
    place: int
    """The place of the job in the order of submission of all jobs; 0 if the job was deleted."""
    record: JobRecord | None
    search: tuple[str, ...] = ()
    """The search keys of the job: see `NewJob.search`."""
    wait: Wait = Wait.NOTHING


class Projection(Protocol):
    """A local copy of job records. Any thread may read it; one thread calls the other methods."""

    @property
    def description(self) -> str:
        """A description for users: where the projection is stored."""

    def open(self, source: str) -> int:
        """Open the projection; return the number of the last change that it contains.

        `source` names the stream and the time of its creation. A projection of another source is emptied, and
        starts at 0.
        """

    def apply(self, changes: Sequence[ProjectedJob], upto: int) -> None:
        """Store changes of jobs in order, and in the same transaction `upto`, the number of the last one."""

    def activity_position(self) -> int:
        """Return the number of the last activity message whose counts the projection contains; 0 if it has
        none.
        """

    def apply_activity(self, batches: Sequence[ActivityBatch], upto: int, now: int) -> None:
        """Add batches of counts, and store `upto`, the number of the last one, in the same transaction.

        If `upto` is 0, delete all stored counts first. At the end, add up the counts of old minutes by the hour,
        and delete those of old hours; `now` decides which are old.
        """

    def activity(self, since: int, until: int, *, step: int = MINUTE) -> list[ActivityCount]:
        """Return the stored counts of a period, as `Engine.activity` does."""

    def reset(self) -> None:
        """Delete everything in the projection, so that the engine builds it again from the beginning."""

    def close(self) -> None:
        """Close the projection and release its resources."""

    def find(self, query: Query) -> Page:
        """Return a page of the jobs that match a query, as `Engine.find` does."""

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        """Count jobs by status, as `Engine.counts` does."""

    def count_up_to(self, query: Query, most: int) -> int:
        """Count the jobs that match a query, as `Engine.count_up_to` does."""

    def count_pending(self, queue: str) -> int:
        """Count the PENDING jobs of a queue. This is faster than `counts` if the queue has many ended jobs."""

    def queues(self) -> tuple[str, ...]:
        """List the queues that have jobs, sorted by name."""

    def upcoming(self, edges: Sequence[int]) -> list[UpcomingJobs]:
        """Count scheduled jobs by time, as `Engine.upcoming` does."""

    def statistics(
        self, now: int, *, paused: Collection[str], find_full: FindFull, lookahead: int
    ) -> StoreStatistics:
        """Count due, blocked and scheduled jobs, as `Engine.statistics` does; `find_full` evaluates limits."""
