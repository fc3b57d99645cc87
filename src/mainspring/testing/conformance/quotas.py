"""Conformance tests of engines: submit quotas of queues, which limit pending jobs and submits within a time."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.errors import LimitExceeded
from mainspring.jobs.commands import DropLimit, PutLimit, Reopen, Replay
from mainspring.jobs.quotas import depth_family, submit_rate_family
from mainspring.jobs.records import Cause, ConflictKind, Outcome, OutcomeKind, UniqueKey
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.schedule_driver import ScheduleDriver

HOUR = 3_600


def set_depth(bench: Bench, most: int, queue: str = "default") -> bool:
    """Store the quota of how many jobs of a queue may be pending; return whether it changed."""
    return bench.arrange(PutLimit(depth_family(queue), most, None))


def set_rate(bench: Bench, most: int, *, per: float, queue: str = "default") -> bool:
    """Store the quota of how many jobs may be submitted to a queue within `per` seconds; return whether it
    changed.
    """
    return bench.arrange(PutLimit(submit_rate_family(queue), most, seconds(per)))


def refusal_of(bench: Bench, *job_ids: str, **options: Any) -> LimitExceeded:
    """Submit jobs that exceed a quota, and return the error `LimitExceeded` that the engine raises."""
    with pytest.raises(LimitExceeded) as refused:
        bench.submit(*job_ids, **options)
    return refused.value


class QuotaTests(EngineSuite):
    """Tests of submits beyond a quota."""

    # -- depth

    def test_a_queue_takes_as_many_pending_jobs_as_its_quota_allows(self, bench: Bench) -> None:
        assert set_depth(bench, 2)
        bench.submit("a")
        bench.submit("b", after=HOUR)
        refusal = refusal_of(bench, "c")
        assert (refusal.size, refusal.limit, refusal.retry_after) == (3, 2, None)
        assert "queue 'default' has 2 pending jobs and takes at most 2" in str(refusal)
        assert bench.find_ids() == ["a", "b"]

    def test_other_queues_are_not_affected(self, bench: Bench) -> None:
        set_depth(bench, 1, "mail")
        bench.submit(*"abc")
        bench.submit("d", queue="mail")
        refusal_of(bench, "e", queue="mail")
        bench.submit("f")

    def test_jobs_that_were_there_before_the_quota_count(self, bench: Bench) -> None:
        bench.submit(*"abc")
        set_depth(bench, 3)
        refusal_of(bench, "d")
        set_depth(bench, 4)
        bench.submit("d")
        set_depth(bench, 1)
        refusal_of(bench, "e")

    def test_a_batch_beyond_the_quota_stores_nothing(self, bench: Bench) -> None:
        set_depth(bench, 4)
        bench.submit(*"abc")
        assert refusal_of(bench, *"de").size == 5
        assert bench.find_ids() == ["a", "b", "c"]
        bench.submit("d")

    def test_jobs_of_all_types_and_priorities_count(self, bench: Bench) -> None:
        set_depth(bench, 3)
        bench.submit("a", type="one")
        bench.submit("b", type="two", priority=2)
        bench.submit("c", type="three", sequence="s")
        refusal_of(bench, "d", type="four")

    def test_a_job_that_starts_makes_room(self, bench: Bench) -> None:
        set_depth(bench, 1)
        worker, lease = bench.begin()
        bench.submit("b", after=HOUR)
        refusal_of(bench, "c")
        bench.complete(worker, lease)
        refusal_of(bench, "c")

    def test_a_held_job_is_still_pending(self, bench: Bench) -> None:
        set_depth(bench, 1)
        worker = bench.enroll()
        for number in count():
            bench.submit(f"a{number}", after=0.9)
            (lease,) = bench.take_when_there(worker, 1)
            if not lease.is_started:
                break
            bench.complete(worker, lease)  # a busy machine took longer than 0.9 s
        refusal_of(bench, "b")

    def test_a_canceled_job_makes_room(self, bench: Bench) -> None:
        set_depth(bench, 1)
        bench.submit("a", after=HOUR)
        assert bench.cancel("a").is_done
        bench.submit("b")

    def test_an_expired_job_makes_room(self, bench: Bench) -> None:
        set_depth(bench, 1)
        worker = bench.enroll()
        bench.submit("a", after=0.2, expires=0.1)
        bench.pass_time(0.4)
        assert bench.gives_up(worker, "a")
        bench.submit("b")

    def test_a_retry_is_not_refused_and_counts(self, bench: Bench) -> None:
        set_depth(bench, 1)
        worker, lease = bench.begin()
        bench.submit("b", after=HOUR)
        due = bench.now + seconds(HOUR)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, error="busy", cause=Cause.FAILURE)
        assert refusal_of(bench, "c").size == 3

    def test_a_follow_up_job_is_not_refused_and_counts(self, bench: Bench) -> None:
        set_depth(bench, 1)
        worker, lease = bench.begin()
        bench.submit("b", after=HOUR)
        outcome = Outcome(lease, OutcomeKind.COMPLETED, follow_up=bench.job("next", after=HOUR))
        assert bench.engine.settle(worker, [outcome]) == [True]
        assert bench.status("next") is JobStatus.PENDING
        assert refusal_of(bench, "c").size == 3

    def test_the_job_of_a_schedule_is_not_refused_and_counts(self, bench: Bench) -> None:
        set_depth(bench, 1)
        bench.submit("a", after=HOUR)
        schedules = ScheduleDriver(bench)
        schedules.put(after=0)
        (fired,) = bench.engine.fire([schedules.firing()])
        assert fired.is_done
        assert refusal_of(bench, "c").size == 3

    def test_replays_and_reopened_dead_letters_are_not_refused_and_count(self, bench: Bench) -> None:
        bench.bury("one")
        bench.bury("two")
        set_depth(bench, 1)
        bench.submit("a", after=HOUR)
        later = bench.now + seconds(HOUR)
        assert bench.change(Replay("one", "copy", later)).is_done
        assert bench.change(Reopen("two", later)).is_done
        assert refusal_of(bench, "c").size == 4

    def test_a_submit_that_stores_nothing_is_not_refused(self, bench: Bench) -> None:
        set_depth(bench, 1)
        unique = UniqueKey("order 42", (JobStatus.PENDING,))
        bench.submit("a", after=HOUR, unique=unique)
        (conflict,) = bench.engine.submit([bench.job("b", unique=unique)])
        assert conflict is not None
        assert (conflict.existing_id, conflict.kind) == ("a", ConflictKind.UNIQUE)
        (replaced,) = bench.engine.submit([bench.job("b", after=HOUR, unique=replace(unique, replaces=True))])
        assert replaced is not None
        assert (replaced.existing_id, replaced.kind) == ("a", ConflictKind.REPLACED)
        (taken,) = bench.engine.submit([bench.job("a")])
        assert taken is not None
        assert taken.kind is ConflictKind.ID

    def test_a_dropped_quota_admits_all_jobs_again(self, bench: Bench) -> None:
        set_depth(bench, 1)
        bench.submit("a")
        assert bench.arrange(DropLimit(depth_family("default")))
        bench.submit(*"bcd")
        set_depth(bench, 4)
        refusal_of(bench, "e")

    def test_a_quota_holds_in_every_process(self, bench: Bench, other: Bench) -> None:
        set_depth(bench, 2)
        bench.submit("a")
        assert other.eventually(lambda: any(limit.most == 2 for limit in other.engine.limits()))
        other.submit("b")
        refusal_of(other, "c")
        refusal_of(bench, "c")
        assert other.cancel("a").is_done
        bench.submit("c")
        refusal_of(other, "d")

    # -- rate

    def test_no_more_are_submitted_in_a_time_than_the_rate_says(self, bench: Bench) -> None:
        assert set_rate(bench, 2, per=HOUR)
        bench.submit("a")
        bench.submit("b")
        refusal = refusal_of(bench, "c")
        assert refusal.retry_after is not None
        assert timedelta(seconds=HOUR / 2 - 60) < refusal.retry_after <= timedelta(seconds=HOUR / 2)
        assert bench.find_ids() == ["a", "b"]

    def test_a_refused_submit_is_admitted_after_its_time(self, bench: Bench) -> None:
        set_rate(bench, 4, per=2)
        bench.submit(*"abcd")
        refusal = refusal_of(bench, *"ef")
        assert refusal.retry_after is not None
        assert timedelta(seconds=0.5) < refusal.retry_after <= timedelta(seconds=1)
        bench.pass_time(refusal.retry_after.total_seconds())
        bench.submit(*"ef")
        refusal_of(bench, *"ghij")

    def test_a_batch_that_the_rate_never_admits_has_no_time(self, bench: Bench) -> None:
        set_rate(bench, 2, per=1)
        refusal = refusal_of(bench, *"abc")
        assert (refusal.retry_after, refusal.limit) == (None, 2)
        assert "submit at most 2 at once" in str(refusal)
        bench.submit(*"ab")

    def test_canceled_jobs_do_not_give_their_tokens_back(self, bench: Bench) -> None:
        set_rate(bench, 1, per=HOUR)
        bench.submit("a", after=HOUR)
        assert bench.cancel("a").is_done
        refusal_of(bench, "b")

    def test_a_submit_that_is_refused_for_its_depth_uses_no_tokens(self, bench: Bench) -> None:
        set_rate(bench, 2, per=HOUR)
        set_depth(bench, 1)
        bench.submit("a", after=HOUR)
        assert refusal_of(bench, "b").retry_after is None
        assert bench.cancel("a").is_done
        bench.submit("b", after=HOUR)

    def test_the_rate_holds_over_all_processes(self, bench: Bench, other: Bench) -> None:
        set_rate(bench, 2, per=HOUR)
        bench.submit("a")
        assert other.eventually(lambda: any(limit.most == 2 for limit in other.engine.limits()))
        other.submit("b")
        refusal_of(other, "c")
        refusal_of(bench, "c")
