"""Conformance tests of engines: ended jobs are deleted when their retention is over, a few at a time."""

from __future__ import annotations

import pytest

from mainspring.jobs.commands import CancelJob, Reopen, Replay
from mainspring.jobs.engine import Capability, Pruned, Retention
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench
from mainspring.testing.conformance.capabilities import needs

FOR_EVER = Retention(None, None, None)
NO_TIME = Retention(0, 0, 0)
MOST_AT_ONCE = 500
AN_HOUR = 3600 * MICROSECONDS
A_WHILE = 6 * MICROSECONDS // 10


class PruningTests(EngineSuite):
    """Tests of the engine's `prune`."""

    def prune(self, bench: Bench, retention: Retention) -> int:
        """Prune until no more jobs can be deleted; return how many were deleted."""
        deleted = 0
        for _ in range(10):
            pruned = bench.engine.prune(retention)
            deleted += pruned.deleted
            if not pruned.is_more:
                return deleted
        raise AssertionError("after ten prunes, the engine still reports more jobs to delete")

    def end_all(self, bench: Bench) -> None:
        """Submit and settle one job for each final status. The id of a job is the name of its status."""
        for ended in sorted(FINAL):
            bench.end(ended, ended)

    def retention_of(self, status: JobStatus, duration: int) -> Retention:
        """Return a retention that keeps jobs with this status for a time, and all others for ever."""
        times = {
            name: duration if name == status.lower() else None for name in ("completed", "canceled", "failed")
        }
        return Retention(**times)

    @pytest.mark.parametrize("status", sorted(FINAL))
    def test_a_job_is_kept_for_the_time_that_its_state_has(self, bench: Bench, status: JobStatus) -> None:
        self.end_all(bench)
        ended = bench.record(status).finished
        assert ended is not None
        retention = self.retention_of(status, A_WHILE)
        deleted = self.prune(bench, retention)
        assert deleted == 0 or bench.now >= ended + A_WHILE
        bench.pass_time(0.6)
        assert deleted + self.prune(bench, retention) == 1
        assert bench.find_ids() == [ended for ended in sorted(FINAL) if ended is not status]

    @needs(Capability.VIRTUAL_TIME)
    @pytest.mark.parametrize("status", sorted(FINAL))
    def test_a_job_goes_as_soon_as_its_time_is_over(self, bench: Bench, status: JobStatus) -> None:
        self.end_all(bench)
        retention = self.retention_of(status, AN_HOUR)
        bench.pass_time(3599.999)
        assert bench.engine.prune(retention) == Pruned(0, is_more=False)
        bench.pass_time(0.001)
        assert self.prune(bench, retention) == 1
        assert bench.find_ids() == [ended for ended in sorted(FINAL) if ended is not status]
        assert bench.engine.counts()[status] == 0

    def test_the_time_counts_from_the_end_of_a_job(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        bench.pass_time(0.7)
        bench.complete(worker, lease)
        ended = bench.record().finished
        assert ended is not None
        deleted = self.prune(bench, Retention(A_WHILE, A_WHILE, A_WHILE))
        assert deleted == 0 or bench.now >= ended + A_WHILE
        bench.pass_time(0.6)
        assert deleted + self.prune(bench, Retention(A_WHILE, A_WHILE, A_WHILE)) == 1

    @needs(Capability.VIRTUAL_TIME)
    def test_jobs_may_be_kept_for_ever(self, bench: Bench) -> None:
        self.end_all(bench)
        bench.pass_time(1e8)
        assert bench.engine.prune(FOR_EVER) == Pruned(0, is_more=False)
        assert len(bench.find_ids()) == len(FINAL)

    def test_what_has_not_ended_is_never_forgotten(self, bench: Bench) -> None:
        bench.bury("reopened")
        worker, _ = bench.begin("running")
        bench.submit("held", after=SOON_SECONDS)
        assert bench.ids_when_there(worker, 1) == ["held"]
        bench.submit("pending", after=60)
        bench.change(Reopen("reopened", bench.now))
        bench.pass_time(0.1)
        assert self.prune(bench, Retention(0, 0, 0, most=0)) == 0
        assert len(bench.find_ids()) == 4

    def test_beyond_a_number_the_oldest_are_forgotten(self, bench: Bench) -> None:
        bench.submit("pending", after=60)
        statuses = [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELED]
        for number in range(9):
            bench.end(f"{number}", statuses[number % 3])
        letters = ["1", "4", "7"]
        assert self.prune(bench, Retention(None, None, None, most=6)) == 0
        assert self.prune(bench, Retention(None, None, None, most=2)) == 4
        assert bench.find_ids() == ["pending", *sorted([*letters, "6", "8"])]
        assert self.prune(bench, Retention(None, None, None, most=0)) == 2
        assert bench.find_ids() == ["pending", *letters]

    def test_a_few_are_forgotten_at_a_time(self, bench: Bench) -> None:
        ids = [str(number) for number in range(MOST_AT_ONCE + 100)]
        bench.engine.submit([bench.job(job_id) for job_id in ids])
        bench.engine.change([CancelJob(job_id) for job_id in ids])
        pruned = bench.engine.prune(NO_TIME)
        assert 0 < pruned.deleted <= MOST_AT_ONCE
        assert pruned.is_more
        assert bench.engine.counts()[JobStatus.CANCELED] == len(ids) - pruned.deleted
        assert self.prune(bench, NO_TIME) == len(ids) - pruned.deleted
        assert bench.find_ids() == []

    def test_beyond_a_number_a_few_are_forgotten_at_a_time(self, bench: Bench) -> None:
        ids = [str(number) for number in range(MOST_AT_ONCE + 100)]
        bench.engine.submit([bench.job(job_id) for job_id in ids])
        bench.engine.change([CancelJob(job_id) for job_id in ids])
        retention = Retention(None, None, None, most=3)
        pruned = bench.engine.prune(retention)
        assert 0 < pruned.deleted <= MOST_AT_ONCE
        assert pruned.is_more
        self.prune(bench, retention)
        assert bench.find_ids() == ids[-3:]

    def test_the_id_of_a_job_that_was_forgotten_is_free(self, bench: Bench) -> None:
        bench.end("job", JobStatus.COMPLETED)
        assert self.prune(bench, NO_TIME) == 1
        bench.submit("job")
        assert bench.ids_when_there(bench.enroll(), 1) == ["job"]

    def test_a_replay_outlives_its_letter(self, bench: Bench) -> None:
        bench.bury("letter")
        bench.change(Replay("letter", "copy", bench.now))
        assert self.prune(bench, NO_TIME) == 1
        assert (bench.find_ids(), bench.record("copy").origin) == (["copy"], "letter")
