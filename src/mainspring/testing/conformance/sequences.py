"""Conformance tests of engines: jobs of one sequence run one after another, in order."""

from __future__ import annotations

import pytest

from mainspring.jobs.commands import ChangeLimits, Reopen, Replay, Reschedule
from mainspring.jobs.engine import MAX_CRASHES, Capability
from mainspring.jobs.records import SUSPECT_CRASHES, Cause, Lease, OutcomeKind
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import START_LEAD_SECONDS, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

ENDS = [OutcomeKind.COMPLETED, OutcomeKind.FAILED, OutcomeKind.CANCELED]
RUNS_LATER = [OutcomeKind.RETRY, OutcomeKind.SNOOZED]
RUNS_NOW = [OutcomeKind.INTERRUPTED, OutcomeKind.HANDED_BACK]


def name_of(kind: OutcomeKind) -> str:
    """Return the name of an outcome kind, which pytest shows in the name of the test."""
    return kind.value


class SequenceTests(EngineSuite):
    """Tests of jobs with `sequence` and `steps_aside`."""

    def begin(self, bench: Bench, job_ids: str = "abc", **options: bool) -> tuple[int, Lease]:
        """Submit due jobs of one sequence, and let a new worker start the first one; return worker and lease.

        The due times of the jobs are a millisecond apart.
        """
        for number, job_id in enumerate(job_ids):
            bench.submit(job_id, sequence="key", after=(number - len(job_ids)) / 1_000, **options)
        worker, lease = bench.take_by_new_worker()
        assert lease.id == job_ids[0]
        return worker, lease

    def run_all(self, bench: Bench, number: int) -> list[str]:
        """Claim and complete `number` available jobs, one at a time; return their ids in that order.

        Require that no further job is available then.
        """
        worker = bench.enroll()
        order = []
        for _ in range(number):
            (lease,) = bench.take_when_there(worker, 1)
            bench.complete(worker, lease)
            order.append(lease.id)
        assert bench.take(worker) == []
        return order

    # -- one at a time

    def test_jobs_of_one_sequence_run_one_at_a_time(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        assert bench.take(worker) == []
        assert bench.take(bench.enroll()) == []
        bench.complete(worker, lease)
        assert self.run_all(bench, 2) == ["b", "c"]

    def test_workers_of_other_processes_wait_as_well(self, bench: Bench, other: Bench) -> None:
        worker, lease = self.begin(bench)
        elsewhere = other.enroll()
        assert other.take(elsewhere) == []
        bench.complete(worker, lease)
        assert other.ids_when_there(elsewhere, 1) == ["b"]
        assert bench.take(worker) == []

    def test_sequences_run_beside_each_other_and_beside_other_jobs(self, bench: Bench) -> None:
        bench.submit("a1", "a2", sequence="a")
        bench.submit("b1", "b2", sequence="b")
        bench.submit("free", "another")
        assert sorted(bench.ids_when_there(bench.enroll(), 4)) == ["a1", "another", "b1", "free"]

    def test_a_sequence_reaches_over_types_and_queues(self, bench: Bench) -> None:
        bench.submit("a", sequence="key", type="x", queue="one")
        bench.submit("b", sequence="key", type="y", queue="two")
        worker = bench.enroll("x", "y")
        assert bench.take(worker, "y") == []
        (lease,) = bench.take_when_there(worker, 1, "x", "y")
        assert (lease.id, lease.sequence) == ("a", "key")
        assert bench.take(worker, "y") == []
        bench.complete(worker, lease)
        assert bench.ids_when_there(worker, 1, "y") == ["b"]

    def test_many_sequences_each_keep_their_order(self, bench: Bench) -> None:
        keys = [f"key {number}" for number in range(100)]
        jobs = [bench.job(f"{key} {turn}", sequence=key) for turn in range(3) for key in keys]
        assert bench.engine.submit(jobs) == [None] * len(jobs)
        worker = bench.enroll()
        for turn in range(3):
            leases = bench.take_when_there(worker, len(keys), starts=200)
            assert sorted(lease.id for lease in leases) == sorted(f"{key} {turn}" for key in keys)
            bench.complete(worker, *leases)
        assert bench.take(worker) == []

    def test_one_unit_may_end_a_job_and_take_the_next(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        with bench.engine.unit(durable=True):
            bench.complete(worker, lease)
            assert bench.ids_when_there(worker, 1) == ["b"]
            assert bench.take(worker) == []

    def test_the_order_outlives_the_engine(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        due = bench.now + seconds(1.5)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, cause=Cause.FAILURE)
        bench.engine.close()
        again = Bench(bench.engine, bench.clock)
        assert again.take(again.enroll()) == []
        again.pass_time(1.5)
        assert self.run_all(again, 3) == ["a", "b", "c"]

    # -- order

    def test_they_run_in_the_order_of_due_time_and_submission(self, bench: Bench) -> None:
        for job_id, age in (("third", 10), ("first", 30), ("second", 20), ("fourth", 10)):
            bench.submit(job_id, sequence="key", after=-age)
        assert self.run_all(bench, 4) == ["first", "second", "third", "fourth"]

    def test_priority_does_not_change_their_order(self, bench: Bench) -> None:
        bench.submit("a", sequence="key", priority=0, after=-1)
        bench.submit("b", sequence="key", priority=2)
        assert self.run_all(bench, 2) == ["a", "b"]

    def test_a_job_that_is_due_later_does_not_hold_up_the_earlier_one(self, bench: Bench) -> None:
        bench.submit("later", sequence="key", after=3_600)  # longer than a busy machine needs for the next lines
        bench.submit("now", sequence="key")
        assert self.run_all(bench, 1) == ["now"]
        assert bench.change(Reschedule("later", bench.now)).is_done
        assert self.run_all(bench, 1) == ["later"]

    # -- time

    def test_a_job_of_a_sequence_is_not_taken_ahead(self, bench: Bench) -> None:
        worker = bench.enroll()
        bench.submit("job", sequence="key", after=0.5)
        startable = bench.record().due - seconds(START_LEAD_SECONDS)
        assert [lease.is_started for lease in bench.take_not_before(startable, worker)] == [True]

    @needs(Capability.FORESIGHT)
    def test_a_job_of_a_sequence_that_is_not_taken_ahead_is_worth_a_look(self, bench: Bench) -> None:
        bench.submit("job", sequence="key", after=0.5)
        assert bench.look(bench.enroll()).next_due == bench.record().due

    @needs(Capability.FORESIGHT)
    def test_those_behind_are_not_worth_a_look(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        bench.submit("d", sequence="key", after=60)
        taken = bench.look(worker, starts=1)
        assert (taken.leases, taken.is_more, taken.next_due) == ([], False, None)
        bench.complete(worker, lease)
        assert bench.ids_when_there(worker, 1) == ["b"]

    @needs(Capability.FORESIGHT)
    def test_the_head_that_is_not_due_is_worth_a_look(self, bench: Bench) -> None:
        bench.submit("b", sequence="key", after=70)
        bench.submit("a", sequence="key", after=60)
        assert bench.look(bench.enroll()).next_due == bench.record("a").due

    def test_a_sweep_tells_only_of_jobs_whose_turn_it_is(self, bench: Bench) -> None:
        bench.submit("a", sequence="key")
        bench.submit("b", sequence="key", type="other")
        worker, lease = bench.take_by_new_worker()
        assert bench.waiting(worker) == {}
        bench.complete(worker, lease)
        assert bench.eventually(lambda: set(bench.waiting(worker)) == {"other"})

    # -- how a job makes room for the next

    @pytest.mark.parametrize("kind", ENDS, ids=name_of)
    def test_the_end_of_a_job_lets_the_next_one_go_and_wakes_workers(
        self, bench: Bench, kind: OutcomeKind
    ) -> None:
        worker, lease = self.begin(bench)
        before = bench.wakes
        assert bench.settle(worker, lease, kind)
        assert bench.is_woken(before)
        assert self.run_all(bench, 2) == ["b", "c"]

    @pytest.mark.parametrize("kind", RUNS_LATER, ids=name_of)
    def test_a_job_that_runs_later_holds_its_place(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = self.begin(bench)
        assert bench.settle(worker, lease, kind, due=bench.now + seconds(1.5))
        taken = bench.look(worker)
        assert (taken.leases, taken.is_more) == ([], False)
        bench.pass_time(1.5)
        assert self.run_all(bench, 3) == ["a", "b", "c"]

    @needs(Capability.FORESIGHT)
    @pytest.mark.parametrize("kind", RUNS_LATER, ids=name_of)
    def test_a_job_that_runs_later_is_worth_a_look(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = self.begin(bench)
        due = bench.now + seconds(60)
        assert bench.settle(worker, lease, kind, due=due)
        assert bench.look(worker).next_due == due

    @pytest.mark.parametrize("kind", RUNS_LATER, ids=name_of)
    def test_a_job_may_step_aside_when_it_runs_later(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = self.begin(bench, steps_aside=True)
        bench.submit("d", sequence="key", after=1.5)
        before = bench.wakes
        assert bench.settle(worker, lease, kind, due=bench.now + seconds(0.5))
        assert bench.is_woken(before)
        assert self.run_all(bench, 2) == ["b", "c"]
        bench.pass_time(1.5)
        assert self.run_all(bench, 2) == ["a", "d"]

    @pytest.mark.parametrize("steps_aside", [False, True], ids=["holds", "steps aside"])
    @pytest.mark.parametrize("kind", RUNS_NOW, ids=name_of)
    def test_a_job_that_could_not_run_is_first_again(
        self, bench: Bench, kind: OutcomeKind, *, steps_aside: bool
    ) -> None:
        worker, lease = self.begin(bench, steps_aside=steps_aside)
        assert bench.settle(worker, lease, kind)
        assert self.run_all(bench, 3) == ["a", "b", "c"]

    def test_the_next_one_does_not_wait_for_a_head_that_is_called_off(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.SNOOZED, due=bench.now + seconds(60))
        before = bench.wakes
        assert bench.cancel("a").is_done
        assert bench.is_woken(before)
        assert self.run_all(bench, 2) == ["b", "c"]

    def test_one_that_is_called_off_while_it_waits_is_passed_over(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        assert bench.cancel("b").is_done
        assert bench.take(worker) == []
        bench.complete(worker, lease)
        assert self.run_all(bench, 1) == ["c"]

    def test_one_that_is_asked_to_stop_holds_its_turn_until_it_has(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        bench.cancel("a")
        assert bench.take(worker) == []
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now + seconds(60))
        assert bench.status("a") is JobStatus.CANCELED
        assert self.run_all(bench, 2) == ["b", "c"]

    def test_an_outcome_that_is_refused_lets_no_job_go(self, bench: Bench) -> None:
        worker, stale = self.begin(bench)
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        assert bench.ids_when_there(worker, 1) == ["a"]
        assert not bench.settle(worker, stale, OutcomeKind.COMPLETED)
        assert bench.take(worker) == []

    def test_an_expired_head_holds_up_no_job(self, bench: Bench) -> None:
        bench.submit("a", sequence="key", after=-1, expires=0.5)
        bench.submit("b", sequence="key", type="other")
        bench.pass_time(0.5)
        before = bench.wakes
        assert bench.take(bench.enroll()) == []
        assert bench.is_woken(before)
        assert bench.ids_when_there(bench.enroll("other"), 1, "other") == ["b"]

    # -- crashes

    @needs(Capability.VIRTUAL_TIME)
    def test_a_rescued_job_holds_its_place(self, bench: Bench) -> None:
        worker, _ = self.begin(bench, steps_aside=True)
        assert bench.crash(worker).rescued == ["a"]
        assert self.run_all(bench, 3) == ["a", "b", "c"]

    @needs(Capability.VIRTUAL_TIME)
    def test_a_quarantined_job_holds_up_no_other(self, bench: Bench) -> None:
        worker, _ = self.begin(bench)
        for _ in range(MAX_CRASHES - 1):
            bench.crash(worker)
            worker, lease = bench.take_by_new_worker()
            assert lease.id == "a"
        survivor = bench.enroll()
        before = bench.wakes
        assert bench.outlive(survivor).quarantined == ["a"]
        assert bench.is_woken(before)
        assert self.run_all(bench, 2) == ["b", "c"]

    @needs(Capability.VIRTUAL_TIME)
    def test_a_suspected_head_holds_up_those_behind(self, bench: Bench) -> None:
        worker, _ = self.begin(bench)
        for _ in range(SUSPECT_CRASHES - 1):
            bench.crash(worker)
            worker, _ = bench.take_by_new_worker()
        bench.crash(worker)
        assert bench.take(bench.enroll(), suspects=False) == []
        assert self.run_all(bench, 3) == ["a", "b", "c"]

    # -- commands

    def test_a_head_that_is_put_off_goes_behind(self, bench: Bench) -> None:
        bench.submit("a", sequence="key", after=-2)
        bench.submit("b", sequence="key", after=-1)
        before = bench.wakes
        assert bench.change(Reschedule("a", bench.now)).is_done
        assert bench.is_woken(before)
        assert self.run_all(bench, 2) == ["b", "a"]

    def test_one_that_is_put_forward_comes_first(self, bench: Bench) -> None:
        bench.submit("a", "b", sequence="key", after=-1)
        assert bench.change(Reschedule("b", bench.now - seconds(2))).is_done
        assert self.run_all(bench, 2) == ["b", "a"]

    @pytest.mark.parametrize("kind", RUNS_LATER, ids=name_of)
    def test_a_job_that_has_started_keeps_its_place_when_it_is_woken(
        self, bench: Bench, kind: OutcomeKind
    ) -> None:
        worker, lease = self.begin(bench)
        assert bench.settle(worker, lease, kind, due=bench.now + seconds(3_600))
        assert bench.change(Reschedule("a", bench.now)).is_done
        assert self.run_all(bench, 3) == ["a", "b", "c"]

    def test_a_job_that_has_started_keeps_its_place_when_it_is_put_off(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now + seconds(3_600), cause=Cause.FAILURE)
        due = bench.now + seconds(0.6)
        assert bench.change(Reschedule("a", due)).is_done
        assert [lease.id for lease in bench.take_not_before(due, worker)] == ["a"]

    def test_a_rescued_job_keeps_its_place_when_it_is_rescheduled(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.INTERRUPTED)
        assert bench.change(Reschedule("a", bench.now)).is_done
        assert self.run_all(bench, 3) == ["a", "b", "c"]

    def test_a_job_that_has_started_keeps_its_place_under_other_limits(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.SNOOZED, due=bench.now + seconds(3_600))
        assert bench.change(ChangeLimits("a", ("l\x1f",))).is_done
        assert bench.take(worker) == []
        assert bench.change(Reschedule("a", bench.now)).is_done
        assert self.run_all(bench, 3) == ["a", "b", "c"]

    def test_a_job_that_has_stepped_aside_is_woken_by_its_new_due_time(self, bench: Bench) -> None:
        worker, lease = self.begin(bench, steps_aside=True)
        assert bench.settle(worker, lease, OutcomeKind.SNOOZED, due=bench.now + seconds(3_600))
        assert bench.change(Reschedule("a", bench.now + seconds(0.6))).is_done
        assert self.run_all(bench, 2) == ["b", "c"]
        bench.pass_time(0.6)
        assert self.run_all(bench, 1) == ["a"]

    def test_a_reopened_letter_queues_up_again_by_its_due_time(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.FAILED)
        bench.submit("d", sequence="key", after=60)
        assert bench.change(Reopen("a", bench.now)).is_done
        assert self.run_all(bench, 3) == ["b", "c", "a"]

    def test_a_reopened_letter_waits_for_the_one_that_runs(self, bench: Bench) -> None:
        worker, lease = self.begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.FAILED)
        assert bench.ids_when_there(worker, 1) == ["b"]
        assert bench.change(Reopen("a", bench.now - seconds(60))).is_done
        assert bench.take(worker) == []

    def test_a_replay_is_of_the_same_sequence(self, bench: Bench) -> None:
        worker, lease = self.begin(bench, steps_aside=True)
        assert bench.settle(worker, lease, OutcomeKind.FAILED)
        assert bench.change(Replay("a", "copy", bench.now)).is_done
        assert (bench.record("copy").sequence, bench.record("copy").steps_aside) == ("key", True)
        assert self.run_all(bench, 3) == ["b", "c", "copy"]

    # -- with other policies

    def test_a_head_in_a_paused_queue_holds_up_those_behind(self, bench: Bench) -> None:
        bench.submit("a", sequence="key", queue="paused", after=-1)
        bench.submit("b", sequence="key")
        bench.pause("paused")
        taken = bench.look(bench.enroll())
        assert (taken.leases, taken.is_more) == ([], False)
        bench.resume("paused")
        assert self.run_all(bench, 2) == ["a", "b"]

    @needs(Capability.FORESIGHT)
    def test_those_behind_a_head_in_a_paused_queue_are_not_worth_a_look(self, bench: Bench) -> None:
        bench.submit("a", sequence="key", queue="paused", after=-1)
        bench.submit("b", sequence="key", after=60)
        bench.pause("paused")
        assert bench.look(bench.enroll()).next_due is None

    def test_a_head_without_room_in_its_limit_holds_up_those_behind(self, bench: Bench) -> None:
        bench.limit("limit", 1)
        worker, lease = bench.begin("busy", limits=("limit\x1f",))
        bench.submit("a", sequence="key", limits=("limit\x1f",), after=-1)
        bench.submit("b", sequence="key")
        assert bench.take(worker) == []
        bench.complete(worker, lease)
        assert self.run_all(bench, 2) == ["a", "b"]
