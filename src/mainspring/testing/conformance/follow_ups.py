"""Conformance tests of engines: progress, follow-up jobs, crashed child processes, retention of results."""

from __future__ import annotations

import pytest

from mainspring.jobs.commands import Replay
from mainspring.jobs.engine import Capability, Pruned, Retention
from mainspring.jobs.records import (
    SUSPECT_CRASHES,
    Attempt,
    Cause,
    FollowUp,
    Outcome,
    OutcomeKind,
    Progress,
    ProgressReport,
    UniqueKey,
)
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

FOR_EVER = Retention(None, None, None)
OTHER_ENDS = [kind for kind in OutcomeKind if kind is not OutcomeKind.COMPLETED]


class FollowUpTests(EngineSuite):
    """Tests of `report`, `follow_up`, `keep_result_until`, and crashes of child processes."""

    # -- progress

    def test_a_running_job_tells_how_far_it_has_come(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert bench.record().progress is None
        for progress in (Progress(1, 3, "größe", bench.now), Progress(2.5, None, None, bench.now + 1)):
            assert bench.engine.report(worker, [ProgressReport(lease, progress)]) == [True]
            assert bench.record().progress == progress

    def test_progress_stays_until_it_is_told_anew(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert bench.report(worker, lease, 1)
        progress = bench.record().progress
        assert bench.settle(worker, lease, OutcomeKind.RETRY, cause=Cause.FAILURE)
        assert bench.record().progress == progress
        (lease,) = bench.take_when_there(worker, 1)
        assert bench.record().progress == progress
        bench.complete(worker, lease)
        assert bench.record().progress == progress

    def test_only_the_holder_tells_how_far_a_job_has_come(self, bench: Bench) -> None:
        worker, stale = bench.begin()
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        (lease,) = bench.take_when_there(worker, 1)
        assert not bench.report(worker, stale, 1)
        assert not bench.report(bench.enroll(), lease, 1)
        assert bench.record().progress is None

    def test_a_held_job_has_not_come_anywhere(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        assert not bench.report(worker, lease, 1)
        assert bench.record().progress is None

    def test_reports_of_a_batch_are_answered_one_by_one(self, bench: Bench) -> None:
        bench.submit("a", "b")
        worker = bench.enroll()
        a, b = bench.sorted_when_there(worker, 2)
        bench.complete(worker, a)
        reports = [ProgressReport(lease, Progress(1, None, None, bench.now)) for lease in (a, b)]
        assert bench.engine.report(worker, reports) == [False, True]
        assert (bench.record("a").progress, bench.record("b").progress) == (None, reports[1].progress)
        assert bench.engine.report(worker, []) == []

    # -- crashes of child processes

    @pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.FAILED], ids=lambda kind: kind.value)
    def test_a_child_process_that_died_is_a_crash_of_its_job(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = bench.begin()
        before = bench.now
        assert bench.settle(worker, lease, kind, error="killed by signal 9", cause=Cause.CRASH)
        record = bench.record()
        assert (record.crashes, record.failures, record.timeouts) == (1, 0, 0)
        (attempt,) = record.history
        assert attempt == Attempt(
            1, record.started, attempt.ended, Cause.CRASH, "killed by signal 9", attempt.worker
        )
        assert bench.is_since(before, attempt.ended)

    def test_a_job_whose_children_die_becomes_a_suspect(self, bench: Bench) -> None:
        bench.submit("job")
        worker = bench.enroll()
        for crashes in range(SUSPECT_CRASHES):
            (lease,) = bench.take_when_there(worker, 1, suspects=False)
            assert lease.crashes == crashes
            assert bench.settle(worker, lease, OutcomeKind.RETRY, error="died", cause=Cause.CRASH)
        assert bench.take(worker, suspects=False) == []
        assert bench.ids_when_there(worker, 1) == ["job"]

    # -- follow-ups

    def test_what_follows_is_stored_with_the_end_of_a_job(self, bench: Bench) -> None:
        worker, lease = bench.begin("first")
        follow_up = bench.job("second", payload=b"[1]", headers={"trace": "1"}, sequence="key")
        wakes, before = bench.wakes, bench.now
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, follow_up=follow_up)
        assert bench.is_woken(wakes)
        record = bench.record("second")
        assert (record.status, record.payload) == (JobStatus.PENDING, b"[1]")
        assert bench.is_since(before, record.created)
        assert (record.headers, record.sequence) == ({"trace": "1"}, "key")
        assert bench.ids_when_there(worker, 1) == ["second"]

    @pytest.mark.parametrize("kind", OTHER_ENDS, ids=lambda kind: kind.value)
    def test_nothing_follows_on_a_job_that_did_not_complete(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = bench.begin("first")
        assert bench.settle(worker, lease, kind, follow_up=bench.job("second"))
        assert bench.find_ids() == ["first"]

    def test_nothing_follows_on_an_outcome_that_is_refused(self, bench: Bench) -> None:
        worker, stale = bench.begin("first")
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        (lease,) = bench.take_when_there(worker, 1)
        assert not bench.settle(worker, stale, OutcomeKind.COMPLETED, follow_up=bench.job("stale"))
        bench.complete(worker, lease)
        assert not bench.settle(worker, lease, OutcomeKind.COMPLETED, follow_up=bench.job("again"))
        assert bench.find_ids() == ["first"]

    def test_a_job_that_conflicts_with_a_follow_up_stays_as_it_is(self, bench: Bench) -> None:
        unique = UniqueKey("key", (JobStatus.PENDING,))
        bench.submit("holder", unique=unique, after=60)
        bench.submit("second", payload=b"1", after=60)
        for number, follow_up in enumerate([bench.job("second", payload=b"2"), bench.job("third", unique=unique)]):
            worker, lease = bench.begin(f"first {number}")
            assert bench.settle(worker, lease, OutcomeKind.COMPLETED, follow_up=follow_up)
            assert bench.status(f"first {number}") is JobStatus.COMPLETED
        assert bench.record("second").payload == b"1"
        assert "third" not in bench.find_ids()

    @needs(Capability.ATOMIC_UNIT)
    def test_jobs_that_end_together_do_not_conflict_with_their_follow_ups(self, bench: Bench) -> None:
        unique = UniqueKey("key", (JobStatus.PENDING, JobStatus.RUNNING))
        bench.submit("first")
        bench.submit("holder", unique=unique)
        worker = bench.enroll()
        first, holder = bench.sorted_when_there(worker, 2)
        follow_up = bench.job("second", unique=unique)
        outcomes = [
            Outcome(first, OutcomeKind.COMPLETED, follow_up=follow_up),
            Outcome(holder, OutcomeKind.COMPLETED),
        ]
        assert bench.engine.settle(worker, outcomes) == [True, True]
        assert bench.status("second") is JobStatus.PENDING

    def test_a_replay_is_followed_by_the_same(self, bench: Bench) -> None:
        follow_up = FollowUp("next", "orders", 2, argument="result")
        bench.bury("job", follow_up=follow_up, headers={"trace": "1"})
        assert bench.change(Replay("job", "copy", bench.now)).is_done
        assert (bench.record("copy").follow_up, bench.record("copy").headers) == (follow_up, {"trace": "1"})

    # -- results

    def test_a_result_is_kept_for_its_time(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        until = bench.now + seconds(1.5)
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, result=b"1", keep_result_until=until)
        assert bench.engine.prune(FOR_EVER) == Pruned(0, is_more=False)
        assert bench.record().result == b"1" or bench.now >= until
        bench.pass_time(1.5)
        assert bench.eventually(
            lambda: bench.engine.prune(FOR_EVER).deleted == 0 and bench.record().result is None
        )
        assert bench.status() is JobStatus.COMPLETED
        assert bench.engine.prune(FOR_EVER) == Pruned(0, is_more=False)

    @needs(Capability.VIRTUAL_TIME)
    def test_a_result_goes_as_soon_as_its_time_is_over(self, bench: Bench) -> None:
        until = bench.now + seconds(10)
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, result=b"1", keep_result_until=until)
        bench.pass_time(9.999)
        assert bench.engine.prune(FOR_EVER) == Pruned(0, is_more=False)
        assert bench.record().result == b"1"
        bench.pass_time(0.001)
        assert bench.engine.prune(FOR_EVER).deleted == 0
        assert bench.record().result is None

    @needs(Capability.VIRTUAL_TIME)
    def test_a_result_without_a_time_is_kept_with_its_job(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, result=b"1")
        bench.pass_time(86_400)
        bench.engine.prune(FOR_EVER)
        assert bench.record().result == b"1"

    def test_a_result_that_is_not_to_be_kept_goes_with_the_next_prune(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, result=b"1", keep_result_until=bench.now)
        assert bench.eventually(lambda: bool(bench.engine.prune(FOR_EVER)) and bench.record().result is None)
