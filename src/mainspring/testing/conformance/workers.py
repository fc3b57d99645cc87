"""Conformance tests of engines: the list of workers, and the backlog of due jobs."""

from __future__ import annotations

from mainspring.jobs.backlog import Backlog
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, OutcomeKind, WorkerInfo
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench


class WorkerTests(EngineSuite):
    """Tests of the engine's `workers` and `backlog`."""

    # -- workers

    def test_workers_are_listed_as_they_presented_themselves(self, bench: Bench, other: Bench) -> None:
        assert bench.engine.workers() == []
        before = bench.now
        first, second = bench.enroll("ping", "pong"), other.enroll("pong")
        found = bench.engine.workers()
        assert [worker.number for worker in found] == [first, second]
        assert [worker.info for worker in found] == [
            WorkerInfo("tester", 1, ("ping", "pong")),
            WorkerInfo("tester", 1, ("pong",)),
        ]
        assert all(bench.is_since(before, worker.heartbeat) and not worker.is_gone for worker in found)

    def test_a_worker_announces_the_handlers_that_it_has_learned(self, bench: Bench, other: Bench) -> None:
        worker, bystander = bench.enroll("ping"), other.enroll("ping")
        assert bench.engine.announce(worker, WorkerInfo("tester", 1, ("ping", "pong"), timeouts={"pong": 9}))
        assert bench.engine.renew(worker)  # the worker keeps the announced handlers
        found = {state.number: (state.info.types, state.info.timeouts) for state in other.engine.workers()}
        assert found == {worker: (("ping", "pong"), {"pong": 9}), bystander: (("ping",), {})}

    def test_a_worker_tells_its_queues_and_the_timeouts_of_its_handlers(self, bench: Bench, other: Bench) -> None:
        some = bench.enroll(queues=("orders", "mail"), timeouts={"ping": 1_500_000})
        all_queues = other.enroll()
        assert bench.engine.renew(some)
        found = {state.number: state.info for state in other.engine.workers()}
        assert (found[some].queues, found[some].timeouts) == (("orders", "mail"), {"ping": 1_500_000})
        assert found[some].serves("mail")
        assert not found[some].serves("default")
        assert (found[all_queues].queues, found[all_queues].timeouts) == (None, {})
        assert found[all_queues].serves("default")

    def test_a_worker_tells_its_slots_and_its_version(self, bench: Bench, other: Bench) -> None:
        info = WorkerInfo("tester", 1, ("ping",), slots={"threads": 8, "coroutines": 100}, version="0.9.1")
        worker, silent = bench.engine.enroll(info), other.enroll()
        assert bench.engine.renew(worker)
        found = {state.number: (state.info.slots, state.info.version) for state in other.engine.workers()}
        assert found == {worker: (info.slots, info.version), silent: ({}, "")}

    def test_a_worker_that_left_announces_nothing(self, bench: Bench) -> None:
        worker = bench.enroll("ping")
        bench.engine.leave(worker)
        assert not bench.engine.announce(worker, WorkerInfo("tester", 1, ("ping", "pong")))
        assert bench.eventually(lambda: bench.engine.workers() == [])

    def test_a_worker_that_left_is_not_listed(self, bench: Bench) -> None:
        leaver, stayer = bench.enroll(), bench.enroll()
        bench.engine.leave(leaver)
        assert bench.eventually(lambda: [worker.number for worker in bench.engine.workers()] == [stayer])

    def test_a_worker_that_left_jobs_behind_is_gone_until_they_are_rescued(self, bench: Bench) -> None:
        worker, _ = bench.begin()
        bench.engine.leave(worker)
        assert [(found.number, found.is_gone) for found in bench.engine.workers()] == [(worker, True)]
        sweeper = bench.enroll()
        assert bench.engine.sweep(sweeper).rescued == ["job"]
        assert bench.eventually(lambda: [found.number for found in bench.engine.workers()] == [sweeper])

    def test_a_heartbeat_is_the_last_one(self, bench: Bench) -> None:
        worker = bench.enroll()
        (before,) = bench.engine.workers()
        bench.pass_time(0.1)
        assert bench.engine.renew(worker)
        (after,) = bench.engine.workers()
        assert after.heartbeat > before.heartbeat

    # -- backlog

    def backlog(self, bench: Bench) -> list[tuple[str, str, int]]:
        """Return the queue, job type and count of each entry of the backlog."""
        return [(waiting.queue, waiting.type, waiting.count) for waiting in bench.engine.backlog()]

    def test_what_is_due_is_counted_by_queue_and_handler(self, bench: Bench) -> None:
        assert bench.engine.backlog() == []
        bench.submit("a", "b", queue="mail", type="send")
        bench.submit("c", queue="mail", type="send", priority=2)
        bench.submit("d", queue="mail", type="fetch")
        bench.submit("later", queue="orders", after=60)
        expected = [("mail", "fetch", 1), ("mail", "send", 3)]
        assert bench.eventually(lambda: self.backlog(bench) == expected)

    def test_the_oldest_of_it_is_known(self, bench: Bench) -> None:
        bench.submit("a", after=-90)
        bench.submit("b", after=-30, priority=2)
        due = bench.record("a").due
        assert bench.eventually(lambda: bench.engine.backlog() == [Backlog("default", "ping", 2, due)])

    def test_what_runs_or_was_called_off_does_not_wait(self, bench: Bench) -> None:
        worker, lease = bench.begin("job")
        bench.submit("canceled")
        bench.cancel("canceled")
        assert bench.eventually(lambda: bench.engine.backlog() == [])
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now, cause=Cause.FAILURE)
        assert bench.eventually(lambda: self.backlog(bench) == [("default", "ping", 1)])

    def test_a_paused_queue_has_a_backlog_all_the_same(self, bench: Bench) -> None:
        bench.pause()
        bench.submit("job")
        assert bench.eventually(lambda: self.backlog(bench) == [("default", "ping", 1)])

    def test_what_waits_for_others_of_its_sequence_or_limit_waits_for_no_worker(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.submit("a", "b", sequence="key")
        bench.submit("c", "d", limits=(bucket_of("all"),), type="limited")
        worker = bench.enroll("ping", "limited")
        assert len(bench.take_when_there(worker, 2, "ping", "limited")) == 2
        assert bench.eventually(lambda: bench.engine.backlog() == [])
