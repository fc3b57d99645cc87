"""Conformance tests of engines: workers that live, leave or die, and the rescue or quarantine of their jobs."""

from __future__ import annotations

import pytest

from mainspring.jobs.commands import Reopen
from mainspring.jobs.engine import MAX_CRASHES, Capability, Demand
from mainspring.jobs.records import SUSPECT_CRASHES, Cause, OutcomeKind
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import (
    SOON_SECONDS,
    STALE_SECONDS,
    SWEEP_SECONDS,
    TYPE,
    Bench,
    seconds,
)
from mainspring.testing.conformance.capabilities import needs


class RescueTests(EngineSuite):
    """Tests of the engine's `enroll`, `renew`, `leave` and `sweep`."""

    # -- incarnations

    def test_the_number_of_an_incarnation_is_never_used_again(self, bench: Bench) -> None:
        numbers = []
        for _ in range(3):
            numbers.append(bench.enroll())
            bench.engine.leave(numbers[-1])
        numbers += [bench.enroll(), bench.enroll()]
        assert numbers == sorted(set(numbers))

    def test_a_worker_can_show_that_it_lives_until_it_leaves(self, bench: Bench) -> None:
        worker = bench.enroll()
        assert bench.engine.renew(worker)
        bench.engine.leave(worker)
        assert not bench.engine.renew(worker)

    def test_what_a_worker_that_leaves_gives_back_wakes_the_others(self, bench: Bench) -> None:
        worker, _ = bench.begin("job", after=SOON_SECONDS)
        assert bench.take(bench.enroll()) == []
        before = bench.wakes
        bench.engine.leave(worker)
        assert bench.is_woken(before)

    def test_a_worker_that_leaves_gives_back_what_it_held(self, bench: Bench) -> None:
        worker, _ = bench.begin("job", after=SOON_SECONDS)
        bench.engine.leave(worker)
        record = bench.record()
        assert (record.status, record.owner, record.crashes) == (JobStatus.PENDING, None, 0)
        assert bench.ids_when_there(bench.enroll(), 1) == ["job"]

    def test_what_a_worker_left_behind_running_is_rescued_by_the_next_sweep(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        bench.engine.leave(worker)
        assert bench.engine.sweep(bench.enroll()).rescued == ["job"]
        assert not bench.settle(worker, lease, OutcomeKind.COMPLETED)

    # -- dead workers

    @needs(Capability.VIRTUAL_TIME)
    def test_a_worker_is_not_dead_before_its_time(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        other = bench.enroll()
        assert bench.watch(STALE_SECONDS - SWEEP_SECONDS, other).rescued == []
        assert bench.engine.renew(worker)
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)

    @needs(Capability.VIRTUAL_TIME)
    def test_the_jobs_of_a_silent_worker_run_again_and_a_crash_is_counted(self, bench: Bench) -> None:
        worker, stale = bench.begin()
        started = bench.record().started
        assert bench.crash(worker).rescued == ["job"]
        record = bench.record()
        assert (record.status, record.owner, record.due) == (JobStatus.PENDING, None, stale.due)
        assert (record.starts, record.crashes, record.failures, record.finished) == (1, 1, 0, None)
        (attempt,) = record.history
        assert (attempt.number, attempt.started) == (1, started)
        assert stale.due < attempt.ended <= bench.now
        assert (attempt.cause, bool(attempt.error)) == (Cause.CRASH, True)
        assert attempt.worker in bench.names_of(worker)
        _, lease = bench.take_by_new_worker()
        assert (lease.crashes, lease.token > stale.token) == (1, True)

    @needs(Capability.VIRTUAL_TIME)
    def test_the_outcome_of_a_job_that_was_taken_over_is_refused(self, bench: Bench) -> None:
        worker, stale = bench.begin()
        bench.crash(worker)
        assert not bench.settle(worker, stale, OutcomeKind.COMPLETED)
        other, lease = bench.take_by_new_worker()
        assert not bench.settle(worker, stale, OutcomeKind.COMPLETED)
        assert bench.settle(other, lease, OutcomeKind.COMPLETED)

    @needs(Capability.VIRTUAL_TIME)
    def test_a_worker_that_renews_keeps_its_jobs(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        other = bench.enroll()
        assert bench.outlive(other, worker).rescued == []
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)

    @needs(Capability.VIRTUAL_TIME)
    def test_a_worker_does_not_rescue_from_itself(self, bench: Bench) -> None:
        worker, _ = bench.begin()
        for _ in range(4):
            bench.pass_time(STALE_SECONDS / 3)
            assert bench.engine.sweep(worker).rescued == []
        assert bench.status() is JobStatus.RUNNING

    @needs(Capability.VIRTUAL_TIME)
    def test_a_step_of_the_wall_clock_makes_no_worker_look_dead(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        other = bench.enroll()
        bench.watch(2 * SWEEP_SECONDS, other)
        bench.clock.step_wall(3600)
        assert bench.watch(2 * SWEEP_SECONDS, other).rescued == []
        assert bench.engine.renew(worker)
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)

    @needs(Capability.VIRTUAL_TIME)
    def test_a_worker_that_was_itself_stopped_declares_no_other_dead(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        other = bench.enroll()
        bench.watch(SWEEP_SECONDS, other)
        bench.pass_time(10 * STALE_SECONDS)  # as if a laptop was closed
        assert bench.engine.sweep(other).rescued == []
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)

    @needs(Capability.VIRTUAL_TIME)
    def test_a_job_that_was_only_held_is_released_without_a_crash(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        swept = bench.crash(worker)
        assert swept.quarantined == []
        record = bench.record()
        assert (record.status, record.owner, record.crashes) == (JobStatus.PENDING, None, 0)
        assert record.history == ()
        assert bench.engine.start(worker, [lease]) == [False]
        assert bench.take_ids(bench.enroll()) == ["job"]

    @needs(Capability.VIRTUAL_TIME)
    def test_a_rescue_wakes_workers(self, bench: Bench) -> None:
        bench.begin()
        survivor = bench.enroll()
        before = bench.wakes
        bench.outlive(survivor)
        assert bench.is_woken(before)

    @needs(Capability.VIRTUAL_TIME)
    def test_a_worker_that_was_declared_dead_is_told_so_and_given_nothing(self, bench: Bench) -> None:
        dead, survivor = bench.enroll(), bench.enroll()
        bench.outlive(survivor)
        bench.submit("job")
        taken = bench.look(dead)  # the dead worker does not know yet that it was declared dead
        assert (taken.leases, taken.is_alive) == ([], False)
        assert bench.look(survivor).is_alive
        assert bench.status() is JobStatus.RUNNING

    # -- quarantine

    @needs(Capability.VIRTUAL_TIME)
    def test_a_job_that_kills_its_workers_becomes_a_dead_letter(self, bench: Bench) -> None:
        bench.submit("job")
        for _ in range(MAX_CRASHES - 1):
            assert bench.crash(bench.take_by_new_worker()[0]).rescued == ["job"]
        swept = bench.crash(bench.take_by_new_worker()[0])
        assert (swept.rescued, swept.quarantined) == ([], ["job"])
        record = bench.record()
        assert (record.status, record.crashes) == (JobStatus.FAILED, MAX_CRASHES)
        assert record.finished == record.history[-1].ended
        assert "quarantine" in (record.error or "")
        assert [attempt.cause for attempt in record.history] == [Cause.CRASH] * MAX_CRASHES
        assert bench.take(bench.enroll()) == []

    @needs(Capability.VIRTUAL_TIME)
    def test_a_reopened_letter_is_suspected_no_more(self, bench: Bench) -> None:
        bench.submit("job")
        for _ in range(MAX_CRASHES):
            bench.crash(bench.take_by_new_worker()[0])
        assert bench.change(Reopen("job", bench.now)).is_done
        assert bench.take_ids(bench.enroll(), suspects=False) == ["job"]

    @needs(Capability.VIRTUAL_TIME)
    def test_one_crash_does_not_make_a_suspect(self, bench: Bench) -> None:
        bench.submit("guilty", "bystander", "another")
        worker = bench.enroll()
        assert len(bench.take(worker)) == 3
        bench.crash(worker)
        taken = bench.take_ids(bench.enroll(), suspects=False)
        assert sorted(taken) == ["another", "bystander", "guilty"]

    @needs(Capability.VIRTUAL_TIME, Capability.EXACT_ORDER)
    def test_rescued_jobs_come_in_their_old_order(self, bench: Bench) -> None:
        bench.submit(*"zyx")
        worker = bench.enroll()
        assert len(bench.take(worker)) == 3
        bench.crash(worker)
        bench.submit("a")
        assert bench.take_ids(bench.enroll()) == ["z", "y", "x", "a"]

    @needs(Capability.VIRTUAL_TIME)
    def test_jobs_that_crashed_two_workers_are_suspects(self, bench: Bench) -> None:
        bench.submit("a", "b")
        for _ in range(SUSPECT_CRASHES):
            worker = bench.enroll()
            assert len(bench.take(worker)) == 2
            bench.crash(worker)
        assert bench.take(bench.enroll(), suspects=False) == []
        assert [lease.crashes for lease in bench.take(bench.enroll())] == [SUSPECT_CRASHES]

    def test_suspects_are_taken_one_at_a_time(self, bench: Bench) -> None:
        self.make_suspects(bench, "a", "b", "c")
        bench.submit("innocent")
        worker = bench.enroll()
        assert bench.ids_when_there(worker, 1, suspects=False) == ["innocent"]
        first = bench.take_when_there(worker, 1)
        assert [lease.crashes for lease in first] == [SUSPECT_CRASHES]
        assert bench.take_ids(worker, suspects=False) == []
        assert bench.settle(worker, first[0], OutcomeKind.COMPLETED)
        assert len(bench.take_when_there(worker, 1)) == 1

    def test_a_take_with_several_demands_brings_one_suspect(self, bench: Bench) -> None:
        self.make_suspects(bench, "a", "b", type="ping")
        self.make_suspects(bench, "c", "d", type="pong")
        worker = bench.enroll("ping", "pong")
        demands = [Demand(types=(name,), starts=5, ahead=5) for name in ("ping", "pong")]
        for _ in range(4):
            (lease,) = bench.look_when_there(lambda: bench.look_for(worker, *demands)).leases
            assert lease.crashes == SUSPECT_CRASHES
            assert bench.settle(worker, lease, OutcomeKind.COMPLETED)

    def test_a_suspect_is_not_starved_by_the_innocent(self, bench: Bench) -> None:
        self.make_suspects(bench, "suspect")
        bench.submit("a", "b")
        worker = bench.enroll()
        taken = [job_id for _ in range(2) for job_id in bench.ids_when_there(worker, 1, starts=1)]
        assert "suspect" in taken

    @needs(Capability.FORESIGHT)
    @pytest.mark.parametrize("delay", [0.5, 60.0], ids=["soon", "later"])
    def test_a_suspect_that_waits_is_not_overlooked(self, bench: Bench, delay: float) -> None:
        self.make_suspects(bench, "job")
        worker, lease = bench.take_by_new_worker()
        due = bench.now + seconds(delay)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, cause=Cause.FAILURE)
        taken = bench.look(worker)
        assert taken.leases or taken.next_due == due  # otherwise no worker would fetch again in time

    def make_suspects(self, bench: Bench, *job_ids: str, type: str = TYPE) -> None:
        """Submit jobs and let each crash `SUSPECT_CRASHES` child processes of a worker."""
        bench.submit(*job_ids, type=type)
        worker = bench.enroll(type)
        for _ in range(SUSPECT_CRASHES):
            leases = bench.take_when_there(worker, len(job_ids), type)
            assert len(leases) == len(job_ids)
            for lease in leases:
                assert bench.settle(worker, lease, OutcomeKind.RETRY, error="died", cause=Cause.CRASH)
        bench.engine.leave(worker)

    @needs(Capability.VIRTUAL_TIME)
    def test_a_job_that_was_to_stop_is_canceled_when_its_worker_dies(self, bench: Bench) -> None:
        worker, _ = bench.begin()
        bench.cancel()
        swept = bench.crash(worker)
        assert (swept.rescued, swept.quarantined) == ([], [])
        record = bench.record()
        assert (record.status, record.stop_requested) == (JobStatus.CANCELED, False)
        assert record.finished == record.history[-1].ended

    @needs(Capability.VIRTUAL_TIME)
    def test_a_job_that_was_to_stop_is_not_quarantined(self, bench: Bench) -> None:
        bench.submit("job")
        for _ in range(MAX_CRASHES - 1):
            bench.crash(bench.take_by_new_worker()[0])
        worker, _ = bench.take_by_new_worker()
        bench.cancel()
        assert bench.crash(worker).quarantined == []
        record = bench.record()
        assert record.status is JobStatus.CANCELED
        assert "quarantine" not in (record.error or "")
