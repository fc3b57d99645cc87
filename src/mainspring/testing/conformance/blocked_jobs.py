"""Conformance tests of engines: due jobs that a sequence or a limit blocks are found, with their blockers."""

from __future__ import annotations

from mainspring.jobs.blocked_jobs import find_blocked
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, OutcomeKind
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench, seconds

ALL = bucket_of("all")
OTHER = bucket_of("other")


class BlockedJobTests(EngineSuite):
    """Tests of the engine's `find` and `situation`, as `find_blocked` uses them."""

    def test_jobs_under_limits_and_in_sequences_can_be_listed(self, bench: Bench) -> None:
        bench.limit("all", 5)
        bench.submit("plain", after=60)
        bench.submit("limited", limits=(ALL,), after=60)
        bench.submit("sequenced", sequence="s", after=60)
        bench.submit("both", sequence="s", limits=(ALL,), after=60)
        assert bench.find_ids(is_bound=True) == ["limited", "sequenced", "both"]
        assert bench.find_ids(is_bound=False) == ["plain"]
        assert bench.find_ids(is_bound=True, ids=("plain", "both")) == ["both"]

    def test_nothing_is_blocked_that_only_needs_a_worker(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("plain")
        bench.submit("a", "b", sequence="s")
        bench.submit("c", "d", limits=(ALL,))
        bench.submit("later", sequence="t", after=60)
        assert find_blocked(bench.engine) == []

    def test_jobs_wait_behind_the_one_of_their_sequence_that_runs(self, bench: Bench) -> None:
        worker, lease = bench.begin("head", sequence="s")
        bench.submit("a", "b", "c", sequence="s")
        bench.submit("later", sequence="s", after=60)
        bench.submit("elsewhere", sequence="t")
        (blocked,) = find_blocked(bench.engine)
        assert (blocked.sequence, blocked.bucket, blocked.count, blocked.by) == ("s", None, 3, ("head",))
        assert (blocked.oldest, blocked.since) == ("a", bench.record("a").due)
        bench.complete(worker, lease)
        assert find_blocked(bench.engine) == []

    def test_jobs_wait_behind_the_one_of_their_sequence_that_is_to_run_again(self, bench: Bench) -> None:
        worker, lease = bench.begin("head", sequence="s")
        bench.submit("a", sequence="s")
        due = bench.now + seconds(60)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, cause=Cause.FAILURE)
        (blocked,) = find_blocked(bench.engine)
        assert (blocked.sequence, blocked.count, blocked.by) == ("s", 1, ("head",))

    def test_jobs_wait_for_those_that_occupy_their_limit(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.limit("other", 9)
        bench.submit("x", "y", limits=(ALL,))
        worker = bench.enroll()
        leases = bench.sorted_when_there(worker, 2)
        bench.submit("a", "b", limits=(ALL,))
        bench.submit("c", limits=(ALL, OTHER))
        bench.submit("free", limits=(OTHER,))
        (blocked,) = find_blocked(bench.engine)
        assert (blocked.sequence, blocked.bucket, blocked.count) == (None, ALL, 3)
        assert (blocked.oldest, sorted(blocked.by)) == ("a", ["x", "y"])
        bench.complete(worker, leases[0])
        assert find_blocked(bench.engine) == []

    def test_jobs_behind_one_that_waits_for_a_limit_wait_for_it_too(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.begin("head", limits=(ALL,))
        bench.submit("a", "b", sequence="s", limits=(ALL,))
        (blocked,) = find_blocked(bench.engine)
        assert (blocked.sequence, blocked.bucket, blocked.count, blocked.by) == (None, ALL, 2, ("head",))

    def test_a_rate_and_a_pause_are_no_jobs_to_wait_for(self, bench: Bench) -> None:
        bench.limit("all", 1, per=60)
        bench.begin("first", limits=(ALL,))
        bench.submit("a", limits=(ALL,))
        bench.begin("head", sequence="s")
        bench.pause("quiet")
        bench.submit("b", sequence="s", queue="quiet")
        assert find_blocked(bench.engine) == []
