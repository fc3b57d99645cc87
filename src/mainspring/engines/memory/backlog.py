"""The backlog: jobs that wait, and which of them can be claimed.

A plain job can be claimed as it is. One with a sequence can when it is the next of it; one with limits when it is
the first of its group; one with both goes through the two gates in this order.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.engines.memory.buckets import Buckets
from mainspring.engines.memory.claims import Claims, lane_of
from mainspring.engines.memory.groups import Groups
from mainspring.engines.memory.parking import Parking
from mainspring.engines.memory.sequences import Sequences
from mainspring.jobs.engine import JobRecord
from mainspring.jobs.status import JobStatus


class Backlog:
    """Keeps the claims in step with the jobs."""

    def __init__(self, records: Mapping[str, JobRecord], places: Mapping[str, int], buckets: Buckets) -> None:
        self._records = records
        self._places = places
        self.claims = Claims()
        self.sequences = Sequences()
        self.parking = Parking(buckets)
        self.groups = Groups(self.claims, self.parking)
        self._let_through: dict[str, JobRecord] = {}  # of each sequence the next, as it went through the gate

    def update(self, before: JobRecord | None, job: JobRecord, *, is_placed_anew: bool) -> None:
        """Take note of a job that is new or has changed."""
        if job.sequence is not None:
            self._update_sequence(job.sequence, job, is_placed_anew=is_placed_anew)
            return
        if before is not None and before.owner is None and before.status is JobStatus.PENDING:
            self._withdraw(before)
        if job.owner is None and job.status is JobStatus.PENDING:
            self._offer(job)

    def _update_sequence(self, key: str, job: JobRecord, *, is_placed_anew: bool) -> None:
        if job.status.is_final:
            self.sequences.end(key, job.id)
        else:
            turn = self.sequences.place(job.id, job.due, anew=is_placed_anew)
            if job.owner is None:
                self.sequences.wait(key, turn, self._places[job.id], job.id)
            else:
                self.sequences.hold(key, job.id)
        through, next_id = self._let_through.get(key), self.sequences.next(key)
        if through is not None:
            if through.id == next_id != job.id:
                return
            self._withdraw(through)
            del self._let_through[key]
        if next_id is not None:
            self._let_through[key] = self._records[next_id]
            self._offer(self._records[next_id])

    def _offer(self, job: JobRecord) -> None:
        place = self._places[job.id]
        if job.limits:
            self.groups.add(job, place)
        else:
            self.claims.add(lane_of(job), job.due, 0, place, job.id)

    def _withdraw(self, job: JobRecord) -> None:
        if job.limits:
            self.groups.remove(job)
        else:
            self.claims.withdraw(job.id)
