"""Conformance tests of engines: remote workers, for which any process may call the engine."""

from __future__ import annotations

from mainspring.jobs.commands import CancelJob, DirectWorker
from mainspring.jobs.engine import Capability, Demand
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Direction, Lease, OutcomeKind, RemoteTerms, WorkerInfo
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import TYPE, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

LEASE_SECONDS = 1.0
LONG_SECONDS = 3_600.0


def enroll_remote(bench: Bench, lease: float = LONG_SECONDS) -> int:
    """Enroll a remote worker with a lease of so many seconds, and return its number."""
    return bench.engine.enroll(WorkerInfo("remote", 0, (TYPE,), remote=RemoteTerms("token 1", seconds(lease))))


def claim(bench: Bench, worker: int, number: int = 1) -> list[Lease]:
    """Claim `number` due jobs for a remote worker, as the engine delivers them; return the leases."""
    demand = Demand((TYPE,), number, 0)
    found: list[Lease] = []

    def is_enough() -> bool:
        found.extend(bench.engine.take(worker, [demand], lead=0, start_lead=0).leases)
        return len(found) >= number

    assert bench.eventually(is_enough)
    return found


class RemoteWorkerTests(EngineSuite):
    """Tests of workers with `WorkerInfo.remote`."""

    @needs(Capability.REMOTE_WORKERS)
    def test_a_remote_worker_is_listed_with_its_terms(self, bench: Bench, other: Bench) -> None:
        worker = enroll_remote(bench)
        (listed,) = other.engine.workers()
        assert (listed.number, listed.is_gone) == (worker, False)
        assert listed.info.remote == RemoteTerms("token 1", seconds(LONG_SECONDS), Direction.RUN)

    @needs(Capability.REMOTE_WORKERS)
    def test_any_process_claims_renews_and_settles_for_it(self, bench: Bench, other: Bench) -> None:
        worker = enroll_remote(bench)
        bench.submit("a", "b", sequence="s")
        (first,) = claim(bench, worker)
        assert other.engine.renew(worker)
        (running,) = other.engine.leased(worker)
        assert running.lease == first
        assert not running.is_asked_to_stop
        assert other.settle(worker, running.lease, OutcomeKind.COMPLETED)
        assert bench.record("a").status is JobStatus.COMPLETED
        assert not bench.settle(worker, first, OutcomeKind.COMPLETED), "the lease has ended"
        assert other.engine.leased(worker) == []
        (second,) = claim(other, worker)
        assert second.id == "b"
        assert bench.settle(worker, second, OutcomeKind.RETRY)
        (again,) = claim(bench, worker)
        assert (again.id, again.token > second.token) == ("b", True)
        assert not other.settle(worker, second, OutcomeKind.COMPLETED), "the fencing token is old"
        assert other.settle(worker, again, OutcomeKind.COMPLETED)

    @needs(Capability.REMOTE_WORKERS)
    def test_its_leases_tell_which_jobs_are_asked_to_stop(self, bench: Bench, other: Bench) -> None:
        worker = enroll_remote(bench)
        bench.submit("a", "b")
        claim(bench, worker, 2)
        other.change(CancelJob("b"))
        found = {each.lease.id: each.is_asked_to_stop for each in other.engine.leased(worker)}
        assert found == {"a": False, "b": True}

    @needs(Capability.REMOTE_WORKERS)
    def test_limits_hold_and_are_freed_by_any_process(self, bench: Bench, other: Bench) -> None:
        assert bench.limit("pool", 1)
        bench.submit("a", "b", limits=(bucket_of("pool"),))
        worker = enroll_remote(bench)
        (first,) = claim(bench, worker)
        assert other.engine.take(worker, [Demand((TYPE,), 5, 0)], lead=0, start_lead=0).leases == []
        assert other.settle(worker, first, OutcomeKind.COMPLETED)
        (second,) = claim(other, worker)
        assert {first.id, second.id} == {"a", "b"}

    @needs(Capability.REMOTE_WORKERS)
    def test_the_jobs_of_a_silent_one_are_rescued_after_its_lease(self, bench: Bench, other: Bench) -> None:
        silent, lasting = enroll_remote(bench, LEASE_SECONDS), enroll_remote(bench)
        bench.submit("a")
        (lease,) = claim(bench, silent)
        rescued: list[str] = []

        def is_rescued() -> bool:
            rescued.extend(other.engine.sweep(0).rescued)
            return bool(rescued)

        for _ in range(6):
            bench.pass_time(LEASE_SECONDS / 4)
            is_rescued()
        assert rescued or other.eventually(is_rescued)
        record = bench.record("a")
        assert (record.status, record.crashes, record.owner) == (JobStatus.PENDING, 1, None)
        assert not bench.settle(silent, lease, OutcomeKind.COMPLETED)
        assert not bench.engine.renew(silent)
        assert not bench.engine.take(silent, [Demand((TYPE,), 1, 0)], lead=0, start_lead=0).is_alive
        assert [each.number for each in bench.engine.workers()] == [lasting]
        assert [each.id for each in claim(other, lasting)] == ["a"]

    @needs(Capability.REMOTE_WORKERS, Capability.VIRTUAL_TIME)
    def test_heartbeats_through_any_process_keep_it_alive(self, bench: Bench, other: Bench) -> None:
        worker = enroll_remote(bench, LEASE_SECONDS)
        bench.submit("a")
        claim(bench, worker)
        for round_ in range(40):
            bench.pass_time(LEASE_SECONDS / 4)
            assert (bench if round_ % 2 else other).engine.renew(worker)
            assert other.engine.sweep(0).rescued == []
        assert bench.record("a").owner == worker

    @needs(Capability.REMOTE_WORKERS)
    def test_a_heartbeat_shortens_a_lease_that_is_too_long(self, bench: Bench, other: Bench) -> None:
        worker, local = enroll_remote(bench, LONG_SECONDS), bench.enroll()
        found = {LONG_SECONDS * 2: LONG_SECONDS, LEASE_SECONDS: LEASE_SECONDS, LONG_SECONDS: LEASE_SECONDS}
        for longest, expected in found.items():
            assert other.engine.renew(worker, longest_lease=seconds(longest))
            terms = {each.number: each.info.remote for each in bench.engine.workers()}
            assert terms == {worker: RemoteTerms("token 1", seconds(expected)), local: None}
        assert bench.engine.renew(local, longest_lease=seconds(LEASE_SECONDS))

    @needs(Capability.REMOTE_WORKERS)
    def test_what_one_that_leaves_has_not_settled_is_rescued(self, bench: Bench, other: Bench) -> None:
        worker = enroll_remote(bench)
        bench.submit("a")
        claim(bench, worker)
        other.engine.leave(worker)
        assert not bench.engine.renew(worker)
        assert not bench.engine.take(worker, [Demand((TYPE,), 1, 0)], lead=0, start_lead=0).is_alive
        assert bench.engine.sweep(bench.enroll()).rescued == ["a"]

    @needs(Capability.REMOTE_WORKERS)
    def test_an_operator_directs_it(self, bench: Bench, other: Bench) -> None:
        worker, local = enroll_remote(bench), bench.enroll()
        assert other.arrange(DirectWorker(worker, Direction.QUIET))
        assert not other.arrange(DirectWorker(worker, Direction.QUIET)), "nothing has changed"
        assert bench.engine.renew(worker)
        found = {each.number: each.info.remote for each in bench.engine.workers()}
        assert found == {worker: RemoteTerms("token 1", seconds(LONG_SECONDS), Direction.QUIET), local: None}
        assert not other.arrange(DirectWorker(local, Direction.QUIET)), "it is no remote worker"
        assert not other.arrange(DirectWorker(worker + 1_000, Direction.QUIET))
