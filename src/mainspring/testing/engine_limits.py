"""Conformance of engines: limits hold across workers, and never longer than they must."""

from __future__ import annotations

import pytest

from mainspring.jobs.engine import (
    SUSPECT_CRASHES,
    Cause,
    Changed,
    Delete,
    DropLimit,
    Lease,
    OutcomeKind,
    PutLimit,
    Regroup,
    Reopen,
    Replay,
    Reschedule,
)
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.status import JobStatus
from mainspring.testing.engine_base import EngineSuite
from mainspring.testing.engine_bench import Bench, seconds

ALL = (bucket_of("all"),)
A = (bucket_of("by tenant", "a"),)
B = (bucket_of("by tenant", "b"),)


class Limits(EngineSuite):
    """`limits`, `PutLimit`, `DropLimit` and `Regroup`."""

    # -- so many at once

    def test_no_more_run_at_once_than_the_limit_says(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit(*"abcd", limits=ALL)
        worker = bench.enroll()
        first, _ = bench.take(worker)
        taken = bench.look(worker)
        assert (taken.leases, taken.is_more, taken.next_due) == ([], False, None)
        bench.complete(worker, first)
        assert bench.take_ids(worker) == ["c"]

    def test_the_limit_holds_across_workers_and_processes(self, bench: Bench, other: Bench) -> None:
        bench.limit("all", 2)
        bench.submit(*"abcd", limits=ALL)
        here, there = bench.enroll(), other.enroll()
        (lease,) = bench.take(here, starts=1)
        assert other.take_ids(there) == ["b"]
        assert bench.take(here) == []
        bench.complete(here, lease)
        assert other.take_ids(there) == ["c"]
        assert bench.take(here) == []

    @pytest.mark.parametrize("kind", OutcomeKind, ids=lambda kind: kind.value)
    def test_every_end_of_an_attempt_makes_room_and_wakes_workers(self, bench: Bench, kind: OutcomeKind) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", limits=ALL)
        worker, lease = self.take_first(bench)
        before = bench.wakes
        assert bench.settle(worker, lease, kind, due=bench.now + seconds(60))
        assert bench.wakes > before
        assert len(bench.take(worker)) == 1
        assert bench.take(worker) == []

    def take_first(self, bench: Bench) -> tuple[int, Lease]:
        """Let a new worker start one job."""
        worker = bench.enroll()
        (lease,) = bench.take(worker, starts=1)
        return worker, lease

    def test_a_job_that_is_asked_to_stop_occupies_its_place_until_it_has(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", limits=ALL)
        worker, lease = self.take_first(bench)
        bench.cancel("a")
        assert bench.take(worker) == []
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now)
        assert bench.take_ids(worker) == ["b"]

    def test_the_places_of_a_dead_worker_are_free_again(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit("a", "b", "c", limits=ALL)
        worker = bench.enroll()
        assert bench.take_ids(worker) == ["a", "b"]
        bench.crash(worker)
        assert bench.take_ids(bench.enroll()) == ["a", "b"]

    def test_the_places_of_a_worker_that_left_are_free_after_the_sweep(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", limits=ALL)
        worker, _ = bench.take_by_new_worker()
        bench.engine.leave(worker)
        heir = bench.enroll()
        bench.engine.sweep(heir)
        assert bench.take_ids(heir) == ["a"]

    def test_a_stale_outcome_makes_no_room(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", limits=ALL)
        worker, stale = self.take_first(bench)
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        assert len(bench.take(worker)) == 1
        assert not bench.settle(worker, stale, OutcomeKind.COMPLETED)
        assert bench.take(worker) == []

    def test_every_bucket_must_admit_a_job(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.limit("by tenant", 1)
        bench.submit("a1", "a2", limits=ALL + A)
        bench.submit("b1", "b2", limits=ALL + B)
        bench.submit("free", limits=(bucket_of("unknown", "x"),))
        worker = bench.enroll()
        leases = bench.take(worker)
        assert sorted(lease.id for lease in leases) == ["a1", "b1", "free"]
        bench.complete(worker, *leases)
        assert bench.take_ids(worker) == ["a2", "b2"]

    def test_a_refused_job_uses_up_nothing(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.limit("by tenant", 1)
        bench.submit("a1", "a2", "a3", limits=ALL + A)
        bench.submit("plain", limits=ALL)
        worker = bench.enroll()
        assert sorted([*bench.take_ids(worker), *bench.take_ids(worker)]) == ["a1", "plain"]

    # -- nobody waits for others

    def test_a_full_bucket_holds_up_no_other_job(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        jobs = [bench.job(f"a{number}", limits=A, after=-60) for number in range(1_000)]
        assert bench.engine.submit(jobs) == [None] * len(jobs)
        bench.submit("b", limits=B, after=-2)
        bench.submit("plain", after=-1)
        assert sorted(bench.take_ids(bench.enroll())) == ["a0", "b", "plain"]

    def test_many_full_buckets_hold_up_no_other_job(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        keys = [(bucket_of("by tenant", str(number)),) for number in range(200)]
        jobs = [bench.job(f"{key} {turn}", limits=key, after=-60) for turn in range(2) for key in keys]
        assert bench.engine.submit(jobs) == [None] * len(jobs)
        worker = bench.enroll()
        assert len({lease.limits for lease in bench.take(worker, starts=300)}) == len(keys)
        bench.submit("plain")
        bench.submit("tenant", limits=(bucket_of("by tenant", "another"),))
        assert sorted(bench.take_ids(worker, starts=2)) == ["plain", "tenant"]

    def test_a_suspect_holds_up_no_other_job_of_its_limit(self, bench: Bench) -> None:
        bench.limit("by tenant", 9)
        bench.submit("suspect", limits=A)
        worker = bench.enroll()
        for _ in range(SUSPECT_CRASHES):
            (lease,) = bench.take(worker)
            assert bench.settle(worker, lease, OutcomeKind.RETRY, cause=Cause.CRASH)
        bench.submit("innocent", limits=A)
        assert bench.take_ids(worker, suspects=False) == ["innocent"]
        assert bench.take_ids(worker) == ["suspect"]

    def test_more_jobs_than_room_for_them_are_told(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit("a", "b", "c", limits=ALL)
        worker = bench.enroll()
        assert bench.look(worker, starts=1).is_more
        assert bench.take_ids(worker, starts=1) == ["b"]
        assert not bench.look(worker, starts=1).is_more

    def test_a_job_under_a_limit_is_not_taken_ahead(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("job", limits=ALL, after=0.5)
        taken = bench.look(bench.enroll())
        assert (taken.leases, taken.next_due) == ([], bench.record().due)

    # -- changes

    def test_the_limits_that_hold_are_listed(self, bench: Bench) -> None:
        assert bench.engine.limits() == []
        limits = [PutLimit("all", 3, seconds(1), ("tenant",)), PutLimit("mail", 2, None)]
        bench.engine.arrange(limits)
        assert sorted(bench.engine.limits(), key=lambda limit: limit.family) == limits
        bench.engine.arrange([DropLimit("all")])
        assert bench.engine.limits() == limits[1:]

    def test_a_limit_says_whether_it_is_new(self, bench: Bench) -> None:
        assert bench.limit("all", 2)
        assert not bench.limit("all", 2)
        assert bench.limit("all", 3)
        assert bench.limit("all", 3, per=1)
        assert bench.arrange(PutLimit("all", 3, seconds(1), ("tenant",)))
        assert not bench.arrange(PutLimit("all", 3, seconds(1), ("tenant",)))
        assert bench.arrange(DropLimit("all"))
        assert not bench.arrange(DropLimit("all"))

    def test_a_raised_limit_lets_jobs_go_at_once(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit(*"abcd", limits=ALL)
        worker, _ = self.take_first(bench)
        before = bench.wakes
        bench.limit("all", 3)
        assert bench.wakes > before
        assert bench.take_ids(worker) == ["b", "c"]

    def test_a_dropped_limit_lets_all_jobs_go(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit(*"abcd", limits=ALL)
        worker, _ = self.take_first(bench)
        before = bench.wakes
        assert bench.arrange(DropLimit("all"))
        assert bench.wakes > before
        assert bench.take_ids(worker) == ["b", "c", "d"]

    def test_below_a_lowered_limit_nothing_starts_until_there_is_room(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit(*"abc", limits=ALL)
        worker = bench.enroll()
        first, second = bench.take(worker)
        bench.limit("all", 1)
        bench.complete(worker, first)
        assert bench.take(worker) == []
        bench.complete(worker, second)
        assert bench.take_ids(worker) == ["c"]

    def test_a_new_limit_counts_the_jobs_that_run_already(self, bench: Bench) -> None:
        bench.submit("a", limits=ALL)
        worker, lease = bench.take_by_new_worker()
        bench.limit("all", 1)
        bench.submit("b", "c", limits=ALL)
        assert bench.take(worker) == []
        bench.complete(worker, lease)
        assert bench.take_ids(worker) == ["b"]
        assert bench.take(worker) == []

    def test_limits_outlive_the_engine(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", limits=ALL)
        self.take_first(bench)
        bench.engine.close()
        again = Bench(bench.engine, bench.clock)
        assert not again.limit("all", 1)
        assert again.take(again.enroll()) == []

    # -- regrouping

    def test_a_pending_job_can_be_put_under_other_limits(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        bench.submit("a1", "a2", limits=A)
        worker, lease = self.take_first(bench)
        before = bench.wakes
        assert bench.change(Regroup("a2", B)) == Changed(True, JobStatus.PENDING)
        assert bench.wakes > before
        assert bench.record("a2").limits == B
        bench.complete(worker, lease)
        assert [taken.limits for taken in bench.take(worker)] == [B]
        bench.submit("b", limits=B)
        assert bench.take(worker) == []

    def test_a_job_can_be_put_under_no_limits(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        bench.submit("a1", "a2", limits=A)
        worker, _ = self.take_first(bench)
        assert bench.change(Regroup("a2", ())).is_done
        assert bench.take_ids(worker) == ["a2"]

    def test_a_held_job_that_is_put_under_limits_is_taken_from_its_worker(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=0.5)
        assert bench.change(Regroup("job", A)).is_done
        assert bench.engine.start(worker, [lease]) == [False]
        assert (bench.record().owner, bench.record().token) == (None, lease.token + 1)

    def test_a_job_that_has_started_is_not_regrouped(self, bench: Bench) -> None:
        assert bench.change(Regroup("job", B)) == Changed(False, None)
        worker, lease = bench.begin("job", limits=A)
        assert bench.change(Regroup("job", B)) == Changed(False, JobStatus.RUNNING)
        bench.complete(worker, lease)
        assert bench.change(Regroup("job", B)) == Changed(False, JobStatus.COMPLETED)
        assert bench.record().limits == A

    def test_a_dead_letter_comes_back_under_its_limits(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.bury("letter", limits=ALL)
        bench.bury("reopened", limits=ALL)
        assert bench.change(Replay("letter", "copy", bench.now)).is_done
        assert bench.change(Reopen("reopened", bench.now)).is_done
        assert bench.record("copy").limits == ALL
        assert len(bench.take(bench.enroll())) == 1

    def test_what_waits_can_be_called_off_put_off_and_forgotten(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit(*"abcd", limits=ALL)
        worker, lease = self.take_first(bench)
        assert bench.cancel("b").is_done
        assert bench.change(Delete("b")).is_done
        assert bench.change(Reschedule("c", bench.now + seconds(60))).is_done
        bench.complete(worker, lease)
        assert bench.take_ids(worker) == ["d"]
