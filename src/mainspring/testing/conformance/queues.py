"""Conformance tests of engines: paused queues, expired jobs, and rescheduled jobs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mainspring.jobs.commands import Changed, Reopen, Replay, Reschedule
from mainspring.jobs.engine import Capability
from mainspring.jobs.records import Cause, OutcomeKind
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, START_LEAD_SECONDS, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

EXPIRED = "expired: it did not start within its time"


class QueueTests(EngineSuite):
    """Tests of `PauseQueue`, `expires` and `Reschedule`."""

    # -- pauses

    def test_a_pause_says_whether_it_is_new(self, bench: Bench) -> None:
        assert bench.engine.paused_queues() == ()
        assert not bench.resume("b")
        assert [bench.pause("b"), bench.pause("b"), bench.pause("a")] == [True, False, True]
        assert sorted(bench.engine.paused_queues()) == ["a", "b"]
        assert [bench.resume("b"), bench.resume("b")] == [True, False]
        assert bench.engine.paused_queues() == ("a",)

    def test_jobs_of_a_paused_queue_wait_and_others_go_on(self, bench: Bench) -> None:
        bench.submit("before", queue="paused")
        bench.pause("paused")
        bench.submit("during", queue="paused")
        bench.submit("other")
        worker = bench.enroll()
        assert bench.ids_when_there(worker, 1) == ["other"]
        before = bench.wakes
        bench.resume("paused")
        assert bench.is_woken(before)
        assert sorted(bench.ids_when_there(worker, 2)) == ["before", "during"]

    @needs(Capability.EXACT_ORDER)
    def test_what_a_pause_held_up_comes_in_order(self, bench: Bench) -> None:
        bench.submit("z", "y", queue="paused")
        bench.pause("paused")
        bench.submit("x", queue="paused")
        bench.resume("paused")
        assert bench.take_ids(bench.enroll()) == ["z", "y", "x"]

    def test_other_processes_heed_a_pause(self, bench: Bench, other: Bench) -> None:
        bench.submit("job")
        worker = other.enroll()
        bench.pause()
        assert other.take(worker) == []
        bench.resume()
        assert other.ids_when_there(worker, 1) == ["job"]

    def test_no_worker_is_woken_for_jobs_of_a_paused_queue(self, bench: Bench) -> None:
        bench.submit("due", "due too", queue="paused")
        bench.pause("paused")
        worker = bench.enroll()
        taken = bench.look(worker, starts=1)
        assert (taken.leases, taken.is_more) == ([], False)
        assert bench.waiting(worker) == {}

    @needs(Capability.FORESIGHT)
    def test_later_jobs_of_a_paused_queue_are_not_worth_a_look(self, bench: Bench) -> None:
        bench.submit("due", queue="paused")
        bench.submit("later", queue="paused", after=60)
        bench.pause("paused")
        assert bench.look(bench.enroll()).next_due is None

    def test_a_held_job_is_taken_from_its_worker_by_a_pause(self, bench: Bench) -> None:
        worker, stale = bench.begin("job", after=SOON_SECONDS)
        bench.pause()
        record = bench.record()
        assert (record.status, record.owner, record.token) == (JobStatus.PENDING, None, stale.token + 1)
        assert bench.engine.start(worker, [stale]) == [False]
        assert not bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        assert bench.take(worker) == []
        bench.resume()
        assert [lease.token > stale.token for lease in bench.take_when_there(worker, 1)] == [True]

    def test_a_held_job_of_another_queue_can_be_started_during_a_pause(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        bench.pause("other")
        assert bench.engine.start(worker, [lease]) == [True]

    def test_a_running_job_goes_on_during_a_pause(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        bench.pause()
        assert (bench.status(), bench.record().token) == (JobStatus.RUNNING, lease.token)
        bench.complete(worker, lease)
        assert bench.status() is JobStatus.COMPLETED

    def test_a_job_that_runs_again_waits_for_the_end_of_the_pause(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        bench.pause()
        assert bench.settle(worker, lease, OutcomeKind.RETRY, cause=Cause.FAILURE)
        assert bench.take(worker) == []
        bench.resume()
        assert bench.ids_when_there(worker, 1) == ["job"]

    def test_a_job_of_a_paused_queue_can_be_called_off(self, bench: Bench) -> None:
        bench.submit("job")
        bench.pause()
        assert bench.cancel().is_done

    def test_a_pause_outlives_the_engine(self, bench: Bench) -> None:
        bench.submit("job")
        bench.pause()
        bench.engine.close()
        again = Bench(bench.engine, bench.clock)
        assert again.engine.paused_queues() == ("default",)
        assert again.take(again.enroll()) == []

    # -- expiry

    @pytest.mark.parametrize("looks_for", ["ping", "other"])
    def test_a_job_that_did_not_start_within_its_time_is_a_dead_letter(self, bench: Bench, looks_for: str) -> None:
        bench.submit("job", expires=0.3)
        before = bench.record()
        bench.pass_time(0.3)
        expired = bench.now
        worker = bench.enroll(looks_for)
        assert bench.eventually(lambda: bench.take(worker, looks_for) == [] and bench.status() is JobStatus.FAILED)
        record = bench.record()
        assert record == replace(before, status=JobStatus.FAILED, error=EXPIRED, finished=record.finished)
        assert bench.is_since(expired, record.finished)

    def test_a_job_that_has_started_does_not_expire(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", expires=1.5)
        bench.pass_time(1.6)
        assert bench.take(worker) == []
        bench.complete(worker, lease)
        assert bench.status() is JobStatus.COMPLETED

    def test_a_job_that_has_started_and_runs_again_does_not_expire(self, bench: Bench) -> None:
        later = {"snoozed": OutcomeKind.SNOOZED, "retried": OutcomeKind.RETRY}
        ends = {**later, "interrupted": OutcomeKind.INTERRUPTED, "handed back": OutcomeKind.HANDED_BACK}
        worker = bench.enroll()
        bench.submit(*ends, expires=1.5)
        leases = bench.take_when_there(worker, len(ends))
        for lease in leases:
            due = bench.now + seconds(1.6) if lease.id in later else None
            assert bench.settle(worker, lease, ends[lease.id], due=due)
        assert [job_id for job_id in ends if bench.record(job_id).expires is not None] == ["handed back"]
        bench.pause()
        bench.pass_time(1.6)
        assert bench.gives_up(worker, "handed back")  # it counts as not started
        bench.resume()
        assert sorted(bench.ids_when_there(worker, 3)) == ["interrupted", "retried", "snoozed"]

    @needs(Capability.VIRTUAL_TIME)
    def test_a_job_starts_until_its_time_is_over(self, bench: Bench) -> None:
        bench.submit("job", expires=10)
        bench.pass_time(9.999)
        worker, lease = bench.take_by_new_worker()
        bench.pass_time(60)
        assert bench.take(worker) == []
        bench.complete(worker, lease)
        assert bench.status() is JobStatus.COMPLETED

    @needs(Capability.FORESIGHT, Capability.VIRTUAL_TIME)
    def test_a_worker_is_told_when_a_job_expires(self, bench: Bench) -> None:
        worker = bench.enroll()
        assert bench.look(worker).next_look is None
        bench.submit("sooner", after=60, expires=70)
        bench.submit("later", after=60, expires=80, type="other")
        expiries = [bench.record(job_id).expires for job_id in ("sooner", "later")]
        for expires in expiries:
            next_look = bench.look(worker, "ping").next_look
            assert next_look is not None
            assert expires is not None
            assert bench.now < next_look <= expires
            bench.pass_time((expires - bench.now) / seconds(1))
        assert bench.look(worker).next_look is None
        assert bench.engine.counts()[JobStatus.FAILED] == 2

    def test_a_job_of_a_paused_queue_expires(self, bench: Bench) -> None:
        bench.submit("job", expires=0.3)
        bench.pause()
        bench.pass_time(0.3)
        worker = bench.enroll()
        assert bench.eventually(lambda: bench.take(worker) == [] and bench.status() is JobStatus.FAILED)
        assert bench.record().error == EXPIRED

    def test_a_held_job_does_not_expire_in_the_hands_of_its_worker(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS, expires=SOON_SECONDS + 0.1)
        bench.pass_time(SOON_SECONDS + 0.2)
        bench.take(bench.enroll())
        assert (bench.record().status, bench.record().owner) == (JobStatus.PENDING, worker)
        assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
        assert bench.gives_up(worker, "job")

    def test_many_jobs_expire_and_none_of_them_starts(self, bench: Bench) -> None:
        late = [bench.job(str(number), expires=1) for number in range(700)]
        assert bench.engine.submit(late) == [None] * len(late)
        bench.pass_time(1)
        bench.submit("in time")
        worker = bench.enroll()
        taken = [job_id for _ in range(3) for job_id in bench.take_ids(worker, starts=1_000)]

        def is_over() -> bool:
            taken.extend(bench.take_ids(worker, starts=1_000))
            return bench.engine.counts()[JobStatus.FAILED] == len(late)

        assert bench.eventually(is_over)
        assert taken == ["in time"]

    def test_a_letter_that_expired_runs_when_it_is_reopened_or_replayed(self, bench: Bench) -> None:
        bench.submit("a", "b", expires=0.3)
        bench.pass_time(0.3)
        worker = bench.enroll()
        assert bench.gives_up(worker, "a", "b")
        assert bench.change(Reopen("a", bench.now)).is_done
        assert bench.change(Replay("b", "copy", bench.now)).is_done
        assert sorted(bench.ids_when_there(worker, 2)) == ["a", "copy"]

    # -- rescheduling

    def test_a_job_can_be_put_forward(self, bench: Bench) -> None:
        bench.submit("job", after=3600)
        before = bench.record()
        wakes, due = bench.wakes, bench.now
        assert bench.change(Reschedule("job", due)) == Changed(True, JobStatus.PENDING)
        assert bench.is_woken(wakes)
        assert bench.record() == replace(before, due=due)
        assert bench.ids_when_there(bench.enroll(), 1) == ["job"]

    def test_a_job_can_be_put_off(self, bench: Bench) -> None:
        bench.submit("job")
        due = bench.now + seconds(0.6)
        assert bench.change(Reschedule("job", due)).is_done
        assert bench.record().due == due
        (lease,) = bench.take_not_before(due - seconds(START_LEAD_SECONDS), bench.enroll(), ahead=0)
        assert lease.id == "job"

    @needs(Capability.FORESIGHT)
    def test_the_due_time_of_a_job_that_is_put_off_is_told(self, bench: Bench) -> None:
        bench.submit("job")
        due = bench.now + seconds(60)
        assert bench.change(Reschedule("job", due)).is_done
        assert bench.look(bench.enroll()).next_due == due

    def test_a_held_job_that_is_put_off_is_taken_from_its_worker(self, bench: Bench) -> None:
        worker, stale = bench.begin("job", after=SOON_SECONDS)
        assert bench.change(Reschedule("job", bench.now + seconds(60))) == Changed(True, JobStatus.PENDING)
        assert (bench.record().owner, bench.record().token) == (None, stale.token + 1)
        assert bench.engine.start(worker, [stale]) == [False]
        assert not bench.settle(worker, stale, OutcomeKind.HANDED_BACK)

    def test_a_job_that_has_started_or_does_not_exist_gets_no_other_time(self, bench: Bench) -> None:
        assert bench.change(Reschedule("job", 0)) == Changed(False, None)
        bench.begin()
        before = bench.record()
        assert bench.change(Reschedule("job", 0)) == Changed(False, JobStatus.RUNNING)
        assert bench.record() == before

    @pytest.mark.parametrize("status", sorted(FINAL))
    def test_a_job_that_has_ended_gets_no_other_time(self, bench: Bench, status: JobStatus) -> None:
        bench.end("job", status)
        before = bench.record()
        assert bench.change(Reschedule("job", 0)) == Changed(False, status)
        assert bench.record() == before
