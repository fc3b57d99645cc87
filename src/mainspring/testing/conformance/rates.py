"""Conformance tests of engines: rate limits, and fairness between the keys of a limit."""

from __future__ import annotations

import pytest

from mainspring.jobs.engine import Capability
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import OutcomeKind
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.capabilities import needs

ALL = (bucket_of("all"),)
A = (bucket_of("by tenant", "a"),)
B = (bucket_of("by tenant", "b"),)


class RateTests(EngineSuite):
    """Tests of rates (limits with `per`), and of the order in which jobs with different keys start: in turn."""

    # -- rate

    def test_no_more_start_in_a_time_than_the_limit_says(self, bench: Bench) -> None:
        bench.limit("all", 2, per=1)
        bench.submit(*"abcde", limits=ALL)
        worker = bench.enroll()
        began = bench.now
        assert len(bench.take_when_there(worker, 2)) == 2
        assert len(bench.take_not_before(began + seconds(0.5), worker)) == 1
        assert len(bench.take_not_before(began + seconds(1), worker)) == 1

    @needs(Capability.VIRTUAL_TIME, Capability.EXACT_ORDER)
    def test_the_next_one_starts_as_soon_as_the_rate_admits_it(self, bench: Bench) -> None:
        bench.limit("all", 2, per=10)
        bench.submit(*"abcde", limits=ALL)
        worker = bench.enroll()
        assert bench.take_ids(worker) == ["a", "b"]
        bench.pass_time(4.999)
        assert bench.take_ids(worker) == []
        bench.pass_time(0.001)
        assert bench.take_ids(worker) == ["c"]
        assert bench.take_ids(worker) == []

    @needs(Capability.FORESIGHT)
    def test_a_worker_is_told_when_to_look_again(self, bench: Bench) -> None:
        bench.limit("all", 2, per=1)
        bench.submit(*"abcd", limits=ALL)
        worker = bench.enroll()
        taken = bench.look(worker)
        assert len(taken.leases) == 2
        for _ in range(2):
            assert taken.next_look is not None
            assert bench.now < taken.next_look <= bench.now + seconds(0.5)
            bench.pass_time(0.5)
            taken = bench.look(worker)
            assert len(taken.leases) == 1
        assert taken.next_look is None

    @needs(Capability.FORESIGHT, Capability.VIRTUAL_TIME)
    def test_a_look_that_comes_late_does_not_put_off_the_next_one(self, bench: Bench) -> None:
        bench.limit("all", 2, per=20)
        worker = bench.enroll()
        bench.submit("a", "b", limits=ALL)
        assert len(bench.take(worker)) == 2
        bench.submit("c", limits=ALL)
        bench.submit("of another line", type="pong", limits=ALL)
        assert bench.take(worker, "ping", "pong") == []
        bench.pass_time(10.5)
        taken = bench.look(worker, "ping", "pong")
        assert len(taken.leases) == 1
        assert taken.next_look is not None
        assert bench.now < taken.next_look <= bench.now + seconds(9.5)

    @needs(Capability.FORESIGHT)
    def test_every_worker_that_has_room_is_told_each_time(self, bench: Bench, other: Bench) -> None:
        bench.limit("by tenant", 1, per=10)
        bench.submit("a", "b", limits=A)
        assert len(bench.take(bench.enroll(), starts=1)) == 1
        for place in (bench, other, bench):
            worker = place.enroll()
            for room in (1, 10, 1):
                next_look = place.look(worker, starts=room).next_look
                assert next_look is not None
                assert bench.now < next_look <= bench.now + seconds(10)

    @needs(Capability.FORESIGHT)
    def test_a_worker_is_told_as_well_when_another_job_is_the_next_to_wait(self, bench: Bench) -> None:
        bench.limit("all", 1, per=10)
        worker, lease = bench.begin("a", limits=ALL)
        bench.submit(*"bcd", limits=ALL)
        for act in (lambda: bench.cancel("b"), lambda: bench.complete(worker, lease), lambda: bench.cancel("c")):
            act()
            next_look = bench.look(worker).next_look
            assert next_look is not None
            assert bench.now < next_look <= bench.now + seconds(10)

    def test_a_worker_is_told_nothing_that_makes_it_spin(self, bench: Bench) -> None:
        bench.limit("all", 1, per=10)
        bench.submit("a", "b", limits=ALL)
        worker = bench.enroll()
        assert len(bench.take_when_there(worker, 1)) == 1
        for _ in range(2):
            taken = bench.look(worker)
            assert (taken.leases, taken.is_more) == ([], False)
            for next_look in (taken.next_look, bench.look(worker, starts=0).next_look):
                assert next_look is None or next_look > bench.now

    @pytest.mark.parametrize("kind", OutcomeKind, ids=lambda kind: kind.value)
    def test_a_start_is_used_up_however_it_ends(self, bench: Bench, kind: OutcomeKind) -> None:
        bench.limit("all", 1, per=0.5)
        bench.submit("a", "b", limits=ALL)
        worker = bench.enroll()
        began = bench.now
        (lease,) = bench.take_when_there(worker, 1)
        assert bench.settle(worker, lease, kind)
        assert len(bench.take_not_before(began + seconds(0.5), worker)) == 1

    def test_what_is_not_used_is_not_saved_up_beyond_the_limit(self, bench: Bench) -> None:
        bench.limit("all", 3, per=0.2)
        bench.submit(*"abcdefgh", limits=ALL)
        worker = bench.enroll()
        for _ in range(2):
            bench.pass_time(0.5)
            assert len(bench.take_when_there(worker, 3)) == 3

    @needs(Capability.VIRTUAL_TIME)
    def test_over_a_long_time_the_rate_is_kept_and_used(self, bench: Bench) -> None:
        bench.limit("all", 3, per=1)
        bench.engine.submit([bench.job(str(number), limits=ALL) for number in range(60)])
        worker = bench.enroll()
        started = 0
        for tenth in range(101):
            started += len(bench.take(worker))
            # the interval between two starts, 1/3 s, is rounded up
            assert 3 * tenth // 10 - 1 <= started - 3 <= 3 * tenth // 10
            bench.pass_time(0.1)
        assert started == 32

    def test_the_rate_holds_across_processes(self, bench: Bench, other: Bench) -> None:
        bench.limit("all", 2, per=10)
        bench.submit("a", "b", "c", limits=ALL)
        here, there = bench.enroll(), other.enroll()
        assert len(bench.take_when_there(here, 1, starts=1)) == 1
        assert len(other.take_when_there(there, 1)) == 1
        assert bench.take(here) == []

    def test_each_key_has_a_rate_of_its_own(self, bench: Bench) -> None:
        bench.limit("by tenant", 1, per=0.6)
        bench.submit("a1", "a2", limits=A)
        bench.submit("b1", "b2", limits=B)
        worker = bench.enroll()
        began = bench.now
        assert sorted(lease.limits for lease in bench.take_when_there(worker, 2)) == [A, B]
        later = bench.take_not_before(began + seconds(0.6), worker, 2)
        assert sorted(lease.limits for lease in later) == [A, B]

    def test_a_job_may_have_a_rate_and_a_number_at_once(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.limit("by tenant", 2, per=1)
        bench.submit("a1", "a2", "a3", limits=ALL + A)
        worker = bench.enroll()
        began = bench.now
        for _ in range(2):
            (lease,) = bench.take_when_there(worker, 1)
            bench.complete(worker, lease)
        assert len(bench.take_not_before(began + seconds(0.5), worker)) == 1

    def test_a_raised_rate_does_not_wait_for_the_old_one(self, bench: Bench) -> None:
        bench.limit("all", 1, per=3600)
        worker, _ = bench.begin("a", limits=ALL)
        bench.submit("b", limits=ALL)
        before = bench.wakes
        assert bench.limit("all", 1, per=0.5)
        assert bench.is_woken(before)
        bench.pass_time(0.5)
        assert bench.ids_when_there(worker, 1) == ["b"]

    def test_a_rate_may_become_a_number_at_once(self, bench: Bench) -> None:
        bench.limit("all", 1, per=3600)
        worker, lease = bench.begin("a", limits=ALL)
        bench.submit("b", limits=ALL)
        assert bench.limit("all", 1)
        assert bench.take(worker) == []  # job a still runs
        bench.complete(worker, lease)
        assert bench.ids_when_there(worker, 1) == ["b"]

    # -- fairness

    def test_a_tenant_with_few_jobs_is_not_starved_by_one_with_many(self, bench: Bench) -> None:
        bench.limit("by tenant", 100)
        bench.engine.submit([bench.job(f"a{number}", limits=A, after=-1) for number in range(200)])
        bench.submit("b0", "b1", limits=B, after=-0.5)
        assert {"b0", "b1"} <= set(self.run(bench, 6))

    @needs(Capability.EXACT_ORDER)
    def test_tenants_that_are_limited_to_one_at_once_take_turns(self, bench: Bench) -> None:
        bench.limit("by tenant", 1)
        bench.engine.submit([bench.job(f"a{number}", limits=A, after=-1) for number in range(20)])
        bench.engine.submit([bench.job(f"b{number}", limits=B, after=-0.5) for number in range(20)])
        order = self.run(bench, 10)
        assert [job_id for job_id in order if job_id[0] == "a"] == [f"a{number}" for number in range(5)]
        assert [job_id for job_id in order if job_id[0] == "b"] == [f"b{number}" for number in range(5)]

    @needs(Capability.EXACT_ORDER)
    def test_jobs_under_a_limit_without_a_key_come_in_the_usual_order(self, bench: Bench) -> None:
        bench.limit("all", 100)
        bench.submit("a0", "a1", "a2", limits=ALL, after=-2)
        bench.submit("plain", after=-1)
        assert self.run(bench, 4) == ["a0", "a1", "a2", "plain"]

    def test_a_tenant_gets_every_start_while_no_other_waits(self, bench: Bench) -> None:
        bench.limit("by tenant", 100)
        bench.submit(*(f"a{number}" for number in range(8)), limits=A)
        bench.submit("later", limits=B, after=3600)
        assert sorted(bench.ids_when_there(bench.enroll(), 8, starts=8)) == [f"a{number}" for number in range(8)]

    def run(self, bench: Bench, starts: int) -> list[str]:
        """Claim and complete jobs one at a time, each in a millisecond; return their ids in that order."""
        worker = bench.enroll()
        order = []
        for _ in range(starts):
            (lease,) = bench.take_when_there(worker, 1, starts=1)
            order.append(lease.id)
            bench.pass_time(0.001)
            bench.complete(worker, lease)
        return order
