"""Conformance tests of engines: concurrency limits hold across workers, and block no job longer than needed."""

from __future__ import annotations

import pytest

from mainspring.jobs.commands import Changed, ChangeLimits, Delete, DropLimit, PutLimit, Reopen, Replay, Reschedule
from mainspring.jobs.engine import Capability
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import SUSPECT_CRASHES, Cause, Lease, OutcomeKind
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, START_LEAD_SECONDS, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

ALL = (bucket_of("all"),)
A = (bucket_of("by tenant", "a"),)
B = (bucket_of("by tenant", "b"),)


class LimitTests(EngineSuite):
    """Tests of the engine's `limits`, and of `PutLimit`, `DropLimit` and `ChangeLimits`."""

    # -- concurrency

    def test_no_more_run_at_once_than_the_limit_says(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit(*"abcd", limits=ALL)
        worker = bench.enroll()
        first, _ = bench.take_when_there(worker, 2)
        taken = bench.look(worker)
        assert (taken.leases, taken.is_more) == ([], False)
        bench.complete(worker, first)
        assert len(bench.take_when_there(worker, 1)) == 1
        assert bench.take(worker) == []

    @needs(Capability.EXACT_ORDER)
    def test_room_is_for_the_first_one_that_waits(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit(*"dabc", limits=ALL)
        worker = bench.enroll()
        first, second = bench.take(worker)
        assert (first.id, second.id) == ("d", "a")
        for lease, job_id in ((second, "b"), (first, "c")):
            bench.complete(worker, lease)
            assert bench.take_ids(worker) == [job_id]

    @needs(Capability.FORESIGHT)
    def test_those_that_wait_for_room_are_not_worth_a_look(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", limits=ALL)
        worker, _ = self.take_first(bench)
        assert bench.look(worker).next_due is None

    def test_the_limit_holds_across_workers_and_processes(self, bench: Bench, other: Bench) -> None:
        bench.limit("all", 2)
        bench.submit(*"abcd", limits=ALL)
        here, there = bench.enroll(), other.enroll()
        (lease,) = bench.take_when_there(here, 1, starts=1)
        assert len(other.take_when_there(there, 1)) == 1
        assert bench.take(here) == []
        bench.complete(here, lease)
        assert len(other.take_when_there(there, 1)) == 1
        assert bench.take(here) == []

    @pytest.mark.parametrize("kind", OutcomeKind, ids=lambda kind: kind.value)
    def test_every_end_of_an_attempt_makes_room_and_wakes_workers(self, bench: Bench, kind: OutcomeKind) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", limits=ALL)
        worker, lease = self.take_first(bench)
        before = bench.wakes
        assert bench.settle(worker, lease, kind, due=bench.now + seconds(60))
        assert bench.is_woken(before)
        assert len(bench.take_when_there(worker, 1)) == 1
        assert bench.take(worker) == []

    def take_first(self, bench: Bench) -> tuple[int, Lease]:
        """Let a new worker claim and start the first available job; return the worker and the lease."""
        worker = bench.enroll()
        (lease,) = bench.take_when_there(worker, 1, starts=1)
        return worker, lease

    def test_a_job_that_is_asked_to_stop_occupies_its_place_until_it_has(self, bench: Bench) -> None:
        bench.limit("all", 1)
        worker, lease = bench.begin("a", limits=ALL)
        bench.submit("b", limits=ALL)
        bench.cancel("a")
        assert bench.take(worker) == []
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now)
        assert bench.ids_when_there(worker, 1) == ["b"]

    @needs(Capability.VIRTUAL_TIME)
    def test_the_places_of_a_dead_worker_are_free_again(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit("a", "b", "c", limits=ALL)
        worker = bench.enroll()
        assert len(bench.take(worker)) == 2
        bench.crash(worker)
        assert len(bench.take(bench.enroll())) == 2

    @needs(Capability.VIRTUAL_TIME, Capability.EXACT_ORDER)
    def test_what_was_rescued_comes_before_those_that_waited_for_its_place(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit("b", "a", "c", limits=ALL)
        worker = bench.enroll()
        assert bench.take_ids(worker) == ["b", "a"]
        bench.crash(worker)
        assert bench.take_ids(bench.enroll()) == ["b", "a"]

    def test_the_places_of_a_worker_that_left_are_free_after_the_sweep(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", limits=ALL)
        worker, _ = bench.take_by_new_worker()
        bench.engine.leave(worker)
        heir = bench.enroll()
        bench.engine.sweep(heir)
        assert bench.ids_when_there(heir, 1) == ["a"]

    def test_a_stale_outcome_makes_no_room(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", limits=ALL)
        worker, stale = self.take_first(bench)
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        assert len(bench.take_when_there(worker, 1)) == 1
        assert not bench.settle(worker, stale, OutcomeKind.COMPLETED)
        assert bench.take(worker) == []

    def test_every_bucket_must_admit_a_job(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.limit("by tenant", 1)
        bench.submit("a1", "a2", limits=ALL + A)
        bench.submit("b1", "b2", limits=ALL + B)
        bench.submit("free", limits=(bucket_of("unknown", "x"),))
        worker = bench.enroll()
        leases = bench.take_when_there(worker, 3)
        assert sorted(lease.id.rstrip("12") for lease in leases) == ["a", "b", "free"]
        bench.complete(worker, *leases)
        assert sorted(job_id[0] for job_id in bench.ids_when_there(worker, 2)) == ["a", "b"]

    @needs(Capability.EXACT_ORDER)
    def test_the_jobs_of_each_bucket_come_in_order(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.limit("by tenant", 1)
        bench.submit("a2", "a1", "a0", limits=ALL + A)
        bench.submit("b2", "b1", "b0", limits=ALL + B)
        worker = bench.enroll()
        for number in (2, 1, 0):
            leases = bench.take(worker)
            assert [lease.id for lease in leases] == [f"a{number}", f"b{number}"]
            bench.complete(worker, *leases)

    def test_a_refused_job_uses_up_nothing(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.limit("by tenant", 1)
        bench.submit("a1", "a2", "a3", limits=ALL + A)
        bench.submit("plain", limits=ALL)
        worker = bench.enroll()
        taken = [*bench.ids_when_there(worker, 2), *bench.take_ids(worker)]
        assert sorted(job_id.rstrip("123") for job_id in taken) == ["a", "plain"]

    # -- a full limit blocks no other jobs

    def test_a_full_bucket_holds_up_no_other_job(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        jobs = [bench.job(f"a{number}", limits=A, after=-60) for number in range(1_000)]
        assert bench.engine.submit(jobs) == [None] * len(jobs)
        bench.submit("b", limits=B, after=-2)
        bench.submit("plain", after=-1)
        taken = bench.ids_when_there(bench.enroll(), 3)
        assert sorted(job_id.rstrip("0123456789") for job_id in taken) == ["a", "b", "plain"]

    def test_many_full_buckets_hold_up_no_other_job(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        keys = [(bucket_of("by tenant", str(number)),) for number in range(200)]
        jobs = [bench.job(f"{key} {turn}", limits=key, after=-60) for turn in range(2) for key in keys]
        assert bench.engine.submit(jobs) == [None] * len(jobs)
        worker = bench.enroll()
        taken = bench.take_when_there(worker, len(keys), starts=300)
        assert {lease.limits for lease in taken} == set(keys)
        assert len(taken) == len(keys)
        bench.submit("plain")
        bench.submit("tenant", limits=(bucket_of("by tenant", "another"),))
        assert sorted(bench.ids_when_there(worker, 2, starts=2)) == ["plain", "tenant"]

    def test_a_suspect_holds_up_no_other_job_of_its_limit(self, bench: Bench) -> None:
        bench.limit("by tenant", 9)
        bench.submit("suspect", limits=A)
        worker = bench.enroll()
        for _ in range(SUSPECT_CRASHES):
            (lease,) = bench.take_when_there(worker, 1)
            assert bench.settle(worker, lease, OutcomeKind.RETRY, cause=Cause.CRASH)
        bench.submit("innocent", limits=A)
        assert bench.ids_when_there(worker, 1, suspects=False) == ["innocent"]
        assert bench.ids_when_there(worker, 1) == ["suspect"]

    def test_more_jobs_than_room_for_them_are_told(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit("a", "b", "c", limits=ALL)
        worker = bench.enroll()
        assert bench.look_when_there(lambda: bench.look(worker, starts=1)).is_more
        assert len(bench.take_when_there(worker, 1, starts=1)) == 1
        assert not bench.look(worker, starts=1).is_more

    def test_a_job_under_a_limit_is_not_taken_ahead(self, bench: Bench) -> None:
        bench.limit("all", 1)
        worker = bench.enroll()
        bench.submit("job", limits=ALL, after=0.5)
        startable = bench.record().due - seconds(START_LEAD_SECONDS)
        assert [lease.is_started for lease in bench.take_not_before(startable, worker)] == [True]

    @needs(Capability.FORESIGHT)
    def test_a_job_under_a_limit_that_is_not_taken_ahead_is_worth_a_look(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("job", limits=ALL, after=0.5)
        assert bench.look(bench.enroll()).next_due == bench.record().due

    @needs(Capability.FORESIGHT, Capability.VIRTUAL_TIME)
    def test_a_worker_without_room_hears_of_a_place_for_which_others_do_not_come(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        worker, lease = bench.begin("first", limits=A)
        for job_id, job_type in [("unclaimed", "pong"), ("mine", "ping")]:
            bench.submit(job_id, type=job_type, limits=A)
            assert bench.take(worker, "ping", "pong") == []
            bench.pass_time(1)
        bench.complete(worker, lease)
        bench.submit("plain", after=-60)
        taken = bench.look(worker, starts=1)
        assert ([lease.id for lease in taken.leases], taken.is_more) == (["plain"], True)
        assert bench.take_ids(worker) == ["mine"]

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
        assert bench.is_woken(before)
        assert len(bench.take_when_there(worker, 2)) == 2
        assert bench.take(worker) == []

    def test_a_dropped_limit_lets_all_jobs_go(self, bench: Bench) -> None:
        bench.limit("all", 1)
        worker, _ = bench.begin("a", limits=ALL)
        bench.submit(*"bcd", limits=ALL)
        assert bench.take(worker) == []
        before = bench.wakes
        assert bench.arrange(DropLimit("all"))
        assert bench.is_woken(before)
        assert sorted(bench.ids_when_there(worker, 3)) == ["b", "c", "d"]

    @needs(Capability.EXACT_ORDER)
    def test_what_a_raised_and_a_dropped_limit_let_go_comes_in_order(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit(*"dbca", limits=ALL)
        worker, _ = self.take_first(bench)
        bench.limit("all", 3)
        assert bench.take_ids(worker) == ["b", "c"]
        bench.submit("e", limits=ALL)
        assert bench.arrange(DropLimit("all"))
        assert bench.take_ids(worker) == ["a", "e"]

    def test_below_a_lowered_limit_nothing_starts_until_there_is_room(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.submit(*"abc", limits=ALL)
        worker = bench.enroll()
        first, second = bench.take_when_there(worker, 2)
        bench.limit("all", 1)
        bench.complete(worker, first)
        assert bench.take(worker) == []
        bench.complete(worker, second)
        assert len(bench.take_when_there(worker, 1)) == 1

    def test_a_new_limit_counts_the_jobs_that_run_already(self, bench: Bench) -> None:
        bench.submit("a", limits=ALL)
        worker, lease = bench.take_by_new_worker()
        bench.limit("all", 1)
        bench.submit("b", "c", limits=ALL)
        assert bench.take(worker) == []
        bench.complete(worker, lease)
        assert len(bench.take_when_there(worker, 1)) == 1
        assert bench.take(worker) == []

    def test_limits_outlive_the_engine(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", limits=ALL)
        self.take_first(bench)
        bench.engine.close()
        again = Bench(bench.engine, bench.clock)
        assert not again.limit("all", 1)
        assert again.take(again.enroll()) == []

    # -- changed limits

    def test_a_pending_job_can_be_put_under_other_limits(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        worker, lease = bench.begin("a1", limits=A)
        bench.submit("a2", limits=A)
        before = bench.wakes
        assert bench.change(ChangeLimits("a2", B)) == Changed(True, JobStatus.PENDING)
        assert bench.is_woken(before)
        assert bench.record("a2").limits == B
        bench.complete(worker, lease)
        assert [taken.limits for taken in bench.take_when_there(worker, 1)] == [B]
        bench.submit("b", limits=B)
        assert bench.take(worker) == []

    def test_a_job_can_be_put_under_no_limits(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        worker, _ = bench.begin("a1", limits=A)
        bench.submit("a2", limits=A)
        assert bench.change(ChangeLimits("a2", ())).is_done
        assert bench.ids_when_there(worker, 1) == ["a2"]

    def test_a_held_job_that_is_put_under_limits_is_taken_from_its_worker(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        assert bench.change(ChangeLimits("job", A)).is_done
        assert bench.engine.start(worker, [lease]) == [False]
        assert (bench.record().owner, bench.record().token) == (None, lease.token + 1)

    def test_the_limits_of_a_started_job_do_not_change(self, bench: Bench) -> None:
        assert bench.change(ChangeLimits("job", B)) == Changed(False, None)
        worker, lease = bench.begin("job", limits=A)
        assert bench.change(ChangeLimits("job", B)) == Changed(False, JobStatus.RUNNING)
        bench.complete(worker, lease)
        assert bench.change(ChangeLimits("job", B)) == Changed(False, JobStatus.COMPLETED)
        assert bench.record().limits == A

    def test_a_dead_letter_comes_back_under_its_limits(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.bury("letter", limits=ALL)
        bench.bury("reopened", limits=ALL)
        assert bench.change(Replay("letter", "copy", bench.now)).is_done
        assert bench.change(Reopen("reopened", bench.now)).is_done
        assert bench.record("copy").limits == ALL
        worker = bench.enroll()
        assert len(bench.take_when_there(worker, 1)) == 1
        assert bench.take(worker) == []

    def test_what_waits_can_be_called_off_put_off_and_forgotten(self, bench: Bench) -> None:
        bench.limit("all", 1)
        worker, lease = bench.begin("a", limits=ALL)
        bench.submit(*"bcd", limits=ALL)
        assert bench.cancel("b").is_done
        assert bench.change(Delete("b")).is_done
        assert bench.change(Reschedule("c", bench.now + seconds(60))).is_done
        bench.complete(worker, lease)
        assert bench.ids_when_there(worker, 1) == ["d"]
