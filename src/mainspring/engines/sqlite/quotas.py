"""Checks the submit quotas of queues, and counts the pending jobs of queues with a depth quota.

Triggers keep the counts: every statement that changes the status of a job updates them, and a submit reads a few
numbers instead of counting rows. The triggers exist only while a queue of the store has a depth quota, so that
they cost nothing otherwise. A lane of a counted queue has a row in `pending_counts`.

A submit is checked after its jobs are inserted, in the same transaction, because then it is known which of them
were stored. If it exceeds a quota, the transaction is rolled back. SQLite has one writer at a time, so that no
submit exceeds a quota.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.limits import BucketCounts, LimitCache
from mainspring.jobs.limits import Limit
from mainspring.jobs.quotas import (
    DEPTH_OF,
    Quota,
    depth_exceeded,
    quotas_of,
    rate_exceeded,
    submit_rate_bucket,
)
from mainspring.jobs.records import Conflict, NewJob

COUNT_QUEUE = "INSERT OR IGNORE INTO counted_queues (queue) VALUES (?1)"
COUNT_LANES = """
INSERT OR REPLACE INTO pending_counts (lane, pending)
SELECT id, (SELECT count(*) FROM jobs WHERE lane = lanes.id AND status = 0) FROM lanes WHERE queue = ?1
"""
STOP_COUNTING_QUEUE = "DELETE FROM counted_queues WHERE queue = ?1"
STOP_COUNTING_LANES = "DELETE FROM pending_counts WHERE lane IN (SELECT id FROM lanes WHERE queue = ?1)"
COUNTS_ANY = "SELECT EXISTS (SELECT 1 FROM counted_queues)"
DEPTH = """
SELECT coalesce(sum(pending), 0) FROM lanes CROSS JOIN pending_counts ON lane = lanes.id WHERE queue = ?1
"""

TRIGGERS = {
    "count_submitted_jobs": """
    AFTER INSERT ON jobs WHEN new.status = 0 BEGIN
        UPDATE pending_counts SET pending = pending + 1 WHERE lane = new.lane;
    END""",
    "count_changed_jobs": """
    AFTER UPDATE OF status, lane ON jobs
    WHEN (old.status = 0) IS NOT (new.status = 0) OR old.lane IS NOT new.lane BEGIN
        UPDATE pending_counts SET pending = pending - (old.status = 0) WHERE lane = old.lane;
        UPDATE pending_counts SET pending = pending + (new.status = 0) WHERE lane = new.lane;
    END""",
    "count_deleted_jobs": """
    AFTER DELETE ON jobs WHEN old.status = 0 BEGIN
        UPDATE pending_counts SET pending = pending - 1 WHERE lane = old.lane;
    END""",
    "count_new_lanes": """
    AFTER INSERT ON lanes WHEN new.queue IN (SELECT queue FROM counted_queues) BEGIN
        INSERT OR IGNORE INTO pending_counts (lane, pending) VALUES (new.id, 0);
    END""",
}


class SubmitQuotas:
    """Checks submits against the quotas of their queues, and counts the pending jobs of queues with a depth quota.

    Methods must be called inside a unit (one transaction).
    """

    def __init__(
        self, database: Database, limits: LimitCache, bucket_counts: BucketCounts, now: Callable[[], int]
    ) -> None:
        self._database = database
        self._limits = limits
        self._bucket_counts = bucket_counts
        self._now = now
        self._version: int | None = None  # `Database.version` at the last check,
        self._source: dict[str, Limit] = {}  # and the limits from which the quotas were selected then
        self._quotas: dict[str, Quota] = {}

    def check(self, jobs: Sequence[NewJob], answers: Sequence[Conflict | None]) -> None:
        """Raise `LimitExceeded` if the jobs that were just inserted exceed a quota of their queues.

        Jobs with a conflict in `answers` were not inserted. The caller rolls the unit back if this raises. If it
        does not, the inserted jobs have used up tokens of the submit rates.
        """
        if self._version != self._database.version:
            limits = self._limits.all()
            if limits is not self._source:
                self._quotas, self._source = quotas_of(limits), limits
            self._version = self._database.version
        if not self._quotas:  # nearly always
            return
        stored = Counter(
            job.queue
            for job, conflict in zip(jobs, answers, strict=True)
            if conflict is None and job.queue in self._quotas
        )
        for queue, new in stored.items():
            quota = self._quotas[queue]
            if quota.max_depth is not None:
                self._require_depth(queue, new, quota.max_depth)
            if quota.submit_rate is not None:
                self._require_tokens(queue, new, quota.submit_rate)

    def _require_depth(self, queue: str, new: int, max_depth: int) -> None:
        depth: int = self._database.write(DEPTH, (queue,))
        if depth > max_depth:
            raise depth_exceeded(queue, pending=depth - new, new=new, max_depth=max_depth)

    def _require_tokens(self, queue: str, new: int, rate: Limit) -> None:
        admission = self._bucket_counts.admission_of(buckets := (submit_rate_bucket(queue),))
        if admission.room(buckets, new) < new:
            instant = admission.room_at(buckets[0], new)
            wait = None if instant is None else max(0, instant - self._now())
            raise rate_exceeded(queue, rate=rate, new=new, wait=wait)
        admission.admit_many(buckets, new)

    def forget(self) -> None:
        """Clear the cache, because limits were changed, or a rollback may have undone a change."""
        self._version = None

    def apply_change(self, family: str, *, is_dropped: bool) -> None:
        """Begin or stop counting the pending jobs of a queue, because its depth quota was put or dropped.

        Changes of other limits are ignored.
        """
        if not family.startswith(DEPTH_OF):
            return
        write, queue = self._database.write, family.removeprefix(DEPTH_OF)
        if is_dropped:
            write(STOP_COUNTING_QUEUE, (queue,))
            write(STOP_COUNTING_LANES, (queue,))
            if not write(COUNTS_ANY):
                for name in TRIGGERS:
                    write(f"DROP TRIGGER IF EXISTS {name}")
            return
        write(COUNT_QUEUE, (queue,))
        if self._database.changes():
            for name, definition in TRIGGERS.items():
                write(f"CREATE TRIGGER IF NOT EXISTS {name} {definition}")
            write(COUNT_LANES, (queue,))
