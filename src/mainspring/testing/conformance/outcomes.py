"""Conformance tests of engines: the outcomes of attempts, the counters that they increase, and fencing tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mainspring.jobs.records import Attempt, Cause, Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, START_LEAD_SECONDS, Bench, seconds

KINDS = pytest.mark.parametrize("kind", OutcomeKind, ids=lambda kind: kind.value)
CAUSES = pytest.mark.parametrize("cause", [Cause.FAILURE, Cause.TIMEOUT])


class OutcomeTests(EngineSuite):
    """Tests of the engine's `settle`: what each kind of outcome does to a job."""

    def test_a_lease_ends_once_and_frees_its_place_once(self, bench: Bench) -> None:
        bench.limit("l", 2)
        bench.submit(*"abcd", limits=("l\x1f",))
        worker = bench.enroll()
        first, second = bench.take_when_there(worker, 2)
        outcome = Outcome(first, OutcomeKind.COMPLETED)
        again = Outcome(first, OutcomeKind.COMPLETED)
        assert bench.engine.settle(worker, [outcome, outcome, again]) == [True, False, False]
        assert len(bench.take_when_there(worker, 1)) == 1
        assert bench.take(worker) == []
        bench.complete(worker, second)

    # -- kinds of outcomes

    def test_a_completed_job_keeps_its_result(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        before = bench.now
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, result=b'{"paid":true}')
        record = bench.record()
        assert (record.status, record.result, record.error) == (JobStatus.COMPLETED, b'{"paid":true}', None)
        assert (record.owner, record.starts, record.history) == (None, 1, ())
        assert bench.is_since(before, record.finished)

    def test_a_job_may_complete_without_a_result(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        assert (bench.record().status, bench.record().result) == (JobStatus.COMPLETED, None)

    def test_a_completed_job_keeps_the_warning_about_its_result(self, bench: Bench) -> None:
        bench.submit("with", "without")
        worker = bench.enroll()
        outcomes = [
            Outcome(lease, OutcomeKind.COMPLETED, result=b"7", error="odd" if lease.id == "with" else None)
            for lease in bench.take_when_there(worker, 2)
        ]
        assert bench.engine.settle(worker, outcomes) == [True, True]
        assert [(bench.record(one).error, bench.record(one).result) for one in ("with", "without")] == [
            ("odd", b"7"),
            (None, b"7"),
        ]
        assert bench.record("with").history == ()

    @CAUSES
    def test_a_job_that_failed_is_a_dead_letter_with_its_error(self, bench: Bench, cause: Cause) -> None:
        worker, lease = bench.begin()
        before = bench.now
        assert bench.settle(worker, lease, OutcomeKind.FAILED, error="no such order", cause=cause)
        record = bench.record()
        assert (record.status, record.error, record.owner) == (JobStatus.FAILED, "no such order", None)
        assert record.finished is not None
        assert bench.is_since(before, record.finished)
        assert (record.failures, record.timeouts) == (int(cause is Cause.FAILURE), int(cause is Cause.TIMEOUT))
        (attempt,) = record.history
        assert attempt == Attempt(1, record.started, record.finished, cause, "no such order", attempt.worker)
        assert attempt.worker in bench.names_of(worker)

    def test_a_job_that_was_stopped_is_canceled(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        before = bench.now
        assert bench.settle(worker, lease, OutcomeKind.CANCELED, error="the order was paid")
        record = bench.record()
        assert (record.status, record.error, record.owner) == (JobStatus.CANCELED, "the order was paid", None)
        assert (record.failures, record.history) == (0, ())
        assert bench.is_since(before, record.finished)

    @CAUSES
    def test_a_retry_runs_again_at_its_new_time_and_is_charged_to_its_cause(
        self, bench: Bench, cause: Cause
    ) -> None:
        worker, lease = bench.begin()
        before = bench.now
        due = before + seconds(0.5)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, error="busy", cause=cause)
        record = bench.record()
        assert (record.status, record.due, record.owner) == (JobStatus.PENDING, due, None)
        assert (record.error, record.finished) == ("busy", None)
        assert (record.failures, record.timeouts) == (int(cause is Cause.FAILURE), int(cause is Cause.TIMEOUT))
        (attempt,) = record.history
        assert attempt == Attempt(1, record.started, attempt.ended, cause, "busy", attempt.worker)
        assert attempt.worker in bench.names_of(worker)
        assert bench.is_since(before, attempt.ended)
        (again,) = bench.take_not_before(due - seconds(START_LEAD_SECONDS), worker, ahead=0)
        assert (again.due, again.failures, again.timeouts) == (due, record.failures, record.timeouts)

    def test_a_snooze_uses_up_nothing(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        due = bench.now + seconds(60)
        assert bench.settle(worker, lease, OutcomeKind.SNOOZED, due=due)
        record = bench.record()
        assert (record.status, record.due, record.owner, record.starts) == (JobStatus.PENDING, due, None, 1)
        assert (record.failures, record.timeouts, record.interruptions, record.history) == (0, 0, 0, ())

    def test_an_interrupted_attempt_is_charged_to_the_deploy_and_runs_again(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        before = bench.now
        assert bench.settle(worker, lease, OutcomeKind.INTERRUPTED)
        record = bench.record()
        assert (record.status, record.due, record.owner) == (JobStatus.PENDING, lease.due, None)
        assert (record.failures, record.timeouts, record.crashes, record.interruptions) == (0, 0, 0, 1)
        (attempt,) = record.history
        assert (attempt.number, attempt.started) == (1, record.started)
        assert bench.is_since(before, attempt.ended)
        assert (attempt.cause, bool(attempt.error)) == (Cause.DEPLOY, True)
        (again,) = bench.take_when_there(worker, 1)
        assert again.interruptions == 1

    def test_a_started_job_goes_back_as_if_it_had_not_been_taken(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
        record = bench.record()
        assert (record.status, record.due, record.owner) == (JobStatus.PENDING, lease.due, None)
        assert (record.starts, record.started, record.interruptions, record.history) == (0, None, 0, ())
        assert bench.ids_when_there(worker, 1) == ["job"]

    def test_a_held_job_goes_back_as_if_it_had_not_been_taken(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
        record = bench.record()
        assert (record.status, record.owner, record.starts, record.history) == (JobStatus.PENDING, None, 0, ())
        assert bench.ids_when_there(bench.enroll(), 1) == ["job"]

    @pytest.mark.parametrize("kind", [OutcomeKind.COMPLETED, OutcomeKind.RETRY], ids=lambda kind: kind.value)
    def test_an_outcome_may_tell_when_its_handler_really_began(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = bench.begin()
        began = lease.due + seconds(0.25)
        assert bench.settle(worker, lease, kind, began=began, cause=Cause.FAILURE)
        record = bench.record()
        assert record.started == began
        assert all(attempt.started == began for attempt in record.history)

    # -- many attempts

    def test_attempts_that_did_not_end_well_are_remembered_in_order(self, bench: Bench) -> None:
        bench.submit("job")
        worker = bench.enroll()
        ends = [
            (OutcomeKind.RETRY, "one", Cause.FAILURE),
            (OutcomeKind.INTERRUPTED, "two", None),
            (OutcomeKind.RETRY, "three", Cause.TIMEOUT),
            (OutcomeKind.FAILED, "four", Cause.FAILURE),
        ]
        for kind, error, cause in ends:
            bench.pass_time(0.1)
            (lease,) = bench.take_when_there(worker, 1)
            before = bench.now
            assert bench.settle(worker, lease, kind, error=error, cause=cause)
            assert bench.is_since(before, bench.record().history[-1].ended)
        record = bench.record()
        assert [(attempt.number, attempt.error) for attempt in record.history] == [
            (1, "one"),
            (2, "two"),
            (3, "three"),
            (4, "four"),
        ]
        ended = [attempt.ended for attempt in record.history]
        assert all(later - earlier >= seconds(0.1) for earlier, later in pairwise(ended))
        assert (record.starts, record.failures, record.timeouts, record.interruptions) == (4, 2, 1, 1)

    def test_success_clears_the_error_and_keeps_the_history(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, OutcomeKind.RETRY, error="busy", cause=Cause.FAILURE)
        (lease,) = bench.take_when_there(worker, 1)
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        record = bench.record()
        assert (record.error, record.failures, len(record.history)) == (None, 1, 1)

    def test_a_batch_may_hold_outcomes_of_every_kind(self, bench: Bench) -> None:
        bench.submit(*(kind.name for kind in OutcomeKind))
        worker = bench.enroll()
        leases = bench.take_when_there(worker, len(OutcomeKind))
        outcomes = [Outcome(lease, OutcomeKind[lease.id]) for lease in leases]
        assert bench.engine.settle(worker, outcomes) == [True] * len(OutcomeKind)
        statuses = {kind: bench.status(kind.name) for kind in OutcomeKind}
        ended = {OutcomeKind.COMPLETED, OutcomeKind.FAILED, OutcomeKind.CANCELED}
        assert statuses == {
            kind: JobStatus[kind.name] if kind in ended else JobStatus.PENDING for kind in OutcomeKind
        }

    def test_an_empty_settle_is_answered(self, bench: Bench) -> None:
        assert bench.engine.settle(bench.enroll(), []) == []

    def test_a_job_that_can_run_again_wakes_workers(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        before = bench.wakes
        assert bench.settle(worker, lease, OutcomeKind.RETRY, cause=Cause.FAILURE)
        assert bench.is_woken(before)

    # -- fencing

    @KINDS
    def test_nothing_is_kept_of_an_outcome_with_a_stale_token(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, stale = bench.begin()
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        assert len(bench.take_when_there(worker, 1)) == 1
        before = bench.record()
        details = {"due": 1, "result": b"2", "error": "stale", "cause": Cause.FAILURE}
        assert not bench.settle(worker, stale, kind, **details)
        assert bench.record() == before

    @KINDS
    def test_only_the_holder_settles_a_job(self, bench: Bench, kind: OutcomeKind) -> None:
        _, lease = bench.begin()
        before = bench.record()
        assert not bench.settle(bench.enroll(), lease, kind, error="not mine", cause=Cause.FAILURE)
        assert bench.record() == before

    @KINDS
    def test_a_lease_ends_once(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, result=b"1")
        before = bench.record()
        assert not bench.settle(worker, lease, kind, result=b"2", error="again", cause=Cause.FAILURE)
        assert bench.record() == before

    def test_stale_outcomes_are_told_from_current_ones_of_the_same_batch(self, bench: Bench) -> None:
        bench.submit("a", "b", "c")
        worker = bench.enroll()
        a, b, c = bench.sorted_when_there(worker, 3)
        assert bench.settle(worker, b, OutcomeKind.SNOOZED)
        outcomes = [Outcome(lease, OutcomeKind.COMPLETED) for lease in (a, b, c)]
        assert bench.engine.settle(worker, outcomes) == [True, False, True]
        assert bench.status("b") is JobStatus.PENDING

    @KINDS
    def test_an_older_lease_is_refused_beside_the_current_one_of_its_job(
        self, bench: Bench, kind: OutcomeKind
    ) -> None:
        worker, older = bench.begin()
        assert bench.settle(worker, older, OutcomeKind.HANDED_BACK)
        (newer,) = bench.take_when_there(worker, 1)
        outcomes = [Outcome(older, kind, error="old"), Outcome(newer, OutcomeKind.COMPLETED, result=b"1")]
        assert bench.engine.settle(worker, outcomes) == [False, True]
        assert (bench.record().status, bench.record().result) == (JobStatus.COMPLETED, b"1")

    def test_a_job_that_is_only_held_cannot_complete(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        assert not bench.settle(worker, lease, OutcomeKind.COMPLETED)
        assert bench.status() is JobStatus.PENDING
