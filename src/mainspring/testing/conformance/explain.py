"""Conformance tests of engines: the reasons why a job has its status."""

from __future__ import annotations

from mainspring.jobs.commands import Reschedule
from mainspring.jobs.engine import Capability, Situation
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, OutcomeKind, UniqueKey
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.capabilities import needs

ALL = bucket_of("all")
TENANT = bucket_of("by tenant", "a")


class ExplainTests(EngineSuite):
    """Tests of the engine's `situation`, which returns the facts that explain the state of a job."""

    def test_nothing_keeps_most_jobs_from_starting(self, bench: Bench) -> None:
        bench.submit("job")
        assert bench.situation() == Situation(
            record=bench.record(),
            is_queue_paused=False,
            behind=None,
            full_bucket=None,
            limited_until=None,
            bucket_holders=(),
            unique_holder=None,
        )

    def test_there_may_be_no_such_job_to_explain(self, bench: Bench) -> None:
        assert bench.engine.situation("nowhere") is None

    def test_its_queue_may_be_paused(self, bench: Bench) -> None:
        bench.submit("job", queue="a")
        bench.pause("b")
        assert not bench.situation().is_queue_paused
        bench.pause("a")
        assert bench.situation().is_queue_paused

    # -- sequences

    def test_it_may_be_behind_the_running_one_of_its_sequence(self, bench: Bench) -> None:
        bench.submit("a", "b", "c", sequence="key")
        bench.submit("other", sequence="other key")
        worker = bench.enroll()
        lease, _ = bench.sorted_when_there(worker, 2)
        behind = {job_id: bench.situation(job_id).behind for job_id in ("a", "b", "c", "other")}
        assert behind == {"a": None, "b": "a", "c": "a", "other": None}
        bench.complete(worker, lease)
        behind = {job_id: bench.situation(job_id).behind for job_id in "abc"}
        assert behind == {"a": None, "b": None, "c": "b"}

    def test_it_may_be_behind_a_retry_that_holds_its_place(self, bench: Bench) -> None:
        worker, lease = bench.begin("a", sequence="key")
        bench.submit("b", sequence="key")
        due = bench.now + seconds(60)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, cause=Cause.FAILURE)
        assert (bench.situation("a").behind, bench.situation("b").behind) == (None, "a")
        assert bench.change(Reschedule("a", due)).is_done
        assert (bench.situation("a").behind, bench.situation("b").behind) == (None, "a")

    # -- limits

    def test_it_may_wait_for_room_in_a_limit(self, bench: Bench) -> None:
        bench.limit("all", 2)
        bench.limit("by tenant", 9)
        bench.submit("a", "b", limits=(TENANT, ALL))
        worker = bench.enroll()
        lease, _ = bench.sorted_when_there(worker, 2)
        bench.submit("c", "d", limits=(TENANT, ALL))
        situation = bench.situation("c")
        assert (situation.full_bucket, situation.limited_until) == (ALL, None)
        assert sorted(situation.bucket_holders) == ["a", "b"]
        assert bench.situation("a").full_bucket is None
        bench.complete(worker, lease)
        situation = bench.situation("c")
        assert (situation.full_bucket, situation.bucket_holders) == (None, ())

    def test_it_may_wait_for_its_rate(self, bench: Bench) -> None:
        bench.limit("all", 2, per=3)
        bench.submit("a", "b", limits=(ALL,))
        before = bench.now
        assert len(bench.take_when_there(bench.enroll(), 2)) == 2
        bench.submit("c", limits=(ALL,))
        situation = bench.situation("c")
        assert situation.full_bucket == ALL
        assert situation.limited_until is not None
        assert bench.is_since(before, situation.limited_until - seconds(1.5))
        bench.pass_time(1.5)
        situation = bench.situation("c")
        assert (situation.full_bucket, situation.limited_until) == (None, None)

    @needs(Capability.VIRTUAL_TIME)
    def test_it_waits_for_its_rate_no_longer_than_it_was_told(self, bench: Bench) -> None:
        bench.limit("all", 2, per=10)
        bench.submit("a", "b", limits=(ALL,))
        assert len(bench.take(bench.enroll())) == 2
        bench.submit("c", limits=(ALL,))
        until = bench.now + seconds(5)
        situation = bench.situation("c")
        assert (situation.full_bucket, situation.limited_until) == (ALL, until)
        bench.pass_time(4.999)
        assert bench.situation("c").limited_until == until
        bench.pass_time(0.001)
        situation = bench.situation("c")
        assert (situation.full_bucket, situation.limited_until) == (None, None)

    def test_asking_uses_up_no_room(self, bench: Bench) -> None:
        bench.limit("all", 1, per=10)
        bench.submit("a", limits=(ALL,))
        for _ in range(3):
            assert bench.situation("a").full_bucket is None
        assert bench.ids_when_there(bench.enroll(), 1) == ["a"]

    # -- unique keys

    def test_another_job_may_have_its_unique_key(self, bench: Bench) -> None:
        bench.submit("a", unique=UniqueKey("key", (JobStatus.PENDING,)))
        worker, lease = bench.take_by_new_worker()
        assert bench.situation("a").unique_holder is None
        bench.submit("b", unique=UniqueKey("key", (JobStatus.PENDING,)))
        assert (bench.situation("a").unique_holder, bench.situation("b").unique_holder) == ("b", "a")
        assert bench.settle(worker, lease, OutcomeKind.FAILED)
        assert (bench.situation("a").unique_holder, bench.situation("b").unique_holder) == ("b", None)
