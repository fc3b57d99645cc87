"""Conformance tests of engines: a sweep reports the due jobs that could start. The stall detector needs this."""

from __future__ import annotations

from mainspring.jobs.backlog import MAX_COUNTED, WaitingJobs
from mainspring.jobs.engine import Capability
from mainspring.jobs.records import SUSPECT_CRASHES
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import TYPE, Bench
from mainspring.testing.conformance.capabilities import needs


def one_that_waits(bench: Bench, worker: int) -> WaitingJobs:
    """Return the report of waiting jobs of type `ping`, as soon as a sweep has it."""
    found: list[WaitingJobs] = []

    def is_told() -> bool:
        found.extend(waiting for name, waiting in bench.waiting(worker).items() if name == TYPE)
        return bool(found)

    assert bench.eventually(is_told)
    return found[-1]


class WaitingJobTests(EngineSuite):
    """Tests of the part of a sweep that reports due jobs which only need a worker with a free slot."""

    def full_worker(self, bench: Bench, *types: str) -> int:
        """Enroll a worker that asks for jobs but has no free slot, and return its number."""
        worker = bench.enroll(*types)
        bench.look(worker, *types, starts=0, ahead=0)
        return worker

    def test_a_sweep_tells_for_which_handlers_due_jobs_wait(self, bench: Bench) -> None:
        bench.submit("a", "b", type="waits")
        bench.submit("c", type="comes later", after=60)
        bench.submit("d", type="also waits")
        bench.submit("e")
        worker = bench.enroll()
        assert bench.ids_when_there(worker, 1) == ["e"]
        assert bench.eventually(lambda: sorted(bench.waiting(worker)) == ["also waits", "waits"])

    def test_it_tells_of_each_queue(self, bench: Bench) -> None:
        bench.submit("a", queue="orders")
        bench.submit("b", queue="mail")
        worker = self.full_worker(bench)
        assert bench.eventually(
            lambda: {waiting.queue for waiting in bench.engine.sweep(worker).waiting} == {"orders", "mail"}
        )

    def test_it_tells_of_a_queue_that_no_worker_has_served(self, bench: Bench) -> None:
        worker = bench.enroll(queues=("mail",))
        bench.look(worker, queues=("mail",))
        bench.submit("old", "young", queue="orders")
        assert bench.eventually(lambda: [each.queue for each in bench.engine.sweep(worker).waiting] == ["orders"])
        (waiting,) = bench.engine.sweep(worker).waiting
        assert (waiting.type, waiting.count, waiting.oldest) == (TYPE, 2, "old")
        other = bench.enroll()
        assert bench.ids_when_there(other, 2) == ["old", "young"]
        assert bench.eventually(lambda: bench.engine.sweep(worker).waiting == ())

    def test_it_tells_how_many_and_which_is_the_oldest(self, bench: Bench) -> None:
        bench.submit("old")
        bench.pass_time(0.1)
        bench.submit("young", "younger")
        worker = self.full_worker(bench)
        waiting = one_that_waits(bench, worker)
        assert (waiting.count, waiting.oldest, waiting.since) == (3, "old", bench.record("old").due)

    def test_it_does_not_count_for_ever(self, bench: Bench) -> None:
        bench.submit(*(f"job-{number}" for number in range(MAX_COUNTED + 50)))
        assert one_that_waits(bench, self.full_worker(bench)).count == MAX_COUNTED

    def test_the_mark_stays_while_no_worker_takes_any(self, bench: Bench) -> None:
        bench.submit("a", "b")
        worker = self.full_worker(bench)
        before = one_that_waits(bench, worker)
        bench.pass_time(0.2)
        bench.submit("c")
        assert one_that_waits(bench, worker).mark == before.mark

    def test_the_mark_changes_when_any_worker_takes_one(self, bench: Bench, other: Bench) -> None:
        bench.submit("a", "b")
        worker = self.full_worker(bench)
        before = one_that_waits(bench, worker)
        other.take_when_there(other.enroll(), 1, starts=1, ahead=0)
        assert one_that_waits(bench, worker).mark != before.mark

    def test_the_mark_changes_when_a_job_was_taken_and_came_back(self, bench: Bench) -> None:
        bench.submit("a")
        worker = self.full_worker(bench)
        before = one_that_waits(bench, worker)
        bench.engine.leave(bench.take_by_new_worker()[0])
        assert one_that_waits(bench, worker).mark != before.mark

    def test_what_runs_does_not_wait(self, bench: Bench) -> None:
        worker, _ = bench.begin()
        assert bench.waiting(worker) == {}

    def test_what_was_called_off_does_not_wait(self, bench: Bench) -> None:
        bench.submit("job")
        worker = self.full_worker(bench)
        one_that_waits(bench, worker)
        bench.cancel()
        assert bench.eventually(lambda: bench.waiting(worker) == {})

    def test_what_is_behind_in_its_sequence_does_not_wait(self, bench: Bench) -> None:
        bench.submit("first", "second", sequence="key")
        worker, _ = bench.take_by_new_worker()
        bench.look(worker, starts=0, ahead=0)
        assert bench.waiting(worker) == {}

    def test_what_a_full_limit_holds_up_does_not_wait(self, bench: Bench) -> None:
        bench.limit("l", 1)
        bench.submit("runs", limits=("l\x1f",))
        worker, lease = bench.take_by_new_worker()
        bench.submit("held up", limits=("l\x1f",))
        bench.look(worker, starts=0, ahead=0)
        assert bench.waiting(worker) == {}
        bench.complete(worker, lease)
        assert one_that_waits(bench, worker).oldest == "held up"

    def test_a_full_limit_holds_up_no_jobs_of_others(self, bench: Bench) -> None:
        bench.limit("l", 1)
        bench.submit("runs", limits=("l\x1fann",))
        worker, _ = bench.take_by_new_worker()
        bench.submit("held up", limits=("l\x1fann",))
        bench.submit("free", limits=("l\x1fbob",))
        bench.look(worker, starts=0, ahead=0)
        assert one_that_waits(bench, worker).oldest == "free"

    def test_what_waits_for_a_token_does_not_wait_for_a_worker(self, bench: Bench) -> None:
        bench.limit("l", 1, per=3600)
        bench.submit("runs", limits=("l\x1f",))
        worker, lease = bench.take_by_new_worker()
        bench.complete(worker, lease)
        bench.submit("held up", limits=("l\x1f",))
        bench.look(worker, starts=0, ahead=0)
        assert bench.waiting(worker) == {}

    def test_jobs_of_a_paused_queue_wait_for_no_worker(self, bench: Bench) -> None:
        bench.submit("job", queue="paused")
        worker = self.full_worker(bench)
        one_that_waits(bench, worker)
        bench.pause("paused")
        bench.look(worker, starts=0, ahead=0)
        assert bench.eventually(lambda: bench.waiting(worker) == {})

    @needs(Capability.VIRTUAL_TIME)
    def test_a_suspect_that_waits_for_another_one_waits_for_no_worker(self, bench: Bench) -> None:
        bench.submit("a", "b")
        for _ in range(SUSPECT_CRASHES):
            worker = bench.enroll()
            assert len(bench.take(worker)) == 2
            bench.crash(worker)
        worker = bench.enroll()
        assert one_that_waits(bench, worker).count == 2
        (lease,) = bench.take(worker)
        assert bench.waiting(worker) == {}
        bench.complete(worker, lease)
        assert one_that_waits(bench, worker).count == 1

    @needs(Capability.EXACT_ORDER)
    def test_ranks_stand_in_the_order_in_which_jobs_start(self, bench: Bench) -> None:
        bench.submit("old", type="old")
        bench.pass_time(1)
        bench.submit("urgent", type="urgent", priority=2)
        bench.submit("young", type="young")
        waiting = bench.waiting(self.full_worker(bench, "old", "urgent", "young"))
        ranks = {name: found.rank or 0 for name, found in waiting.items()}
        assert sorted(ranks, key=ranks.__getitem__) == ["urgent", "old", "young"]
