"""Conformance tests of engines: remote workers, for which any process may call the engine."""

from __future__ import annotations

from typing import Any

from mainspring.jobs.audit import AuditQuery
from mainspring.jobs.commands import CancelJob, DirectWorker, PutToken, RemoveWorker, RevokeToken
from mainspring.jobs.engine import MAX_CRASHES, Capability, Demand
from mainspring.jobs.events import EventKind
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, Direction, Lease, OutcomeKind, RemoteTerms, WorkerInfo
from mainspring.jobs.status import JobStatus
from mainspring.security.permissions import Permissions, Scope
from mainspring.security.tokens import make_token
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import TYPE, Bench, seconds
from mainspring.testing.conformance.capabilities import needs
from mainspring.testing.conformance.events import EventReader

LEASE_SECONDS = 1.0
LONG_SECONDS = 3_600.0
WORK = Permissions(scopes=frozenset({Scope.WORK}))


def enroll_remote(bench: Bench, lease: float = LONG_SECONDS, *, caller: str = "token 1") -> int:
    """Enroll a remote worker of a caller, with a lease of so many seconds, and return its number."""
    return bench.engine.enroll(WorkerInfo("remote", 0, (TYPE,), remote=RemoteTerms(caller, seconds(lease))))


def claim(bench: Bench, worker: int, number: int = 1, **options: Any) -> list[Lease]:
    """Claim `number` due jobs for a remote worker, as the engine delivers them; return the leases."""
    demand = Demand((TYPE,), number, 0, **options)
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
        asked = {each.lease.id: each.stop_asked for each in other.engine.leased(worker)}
        assert asked["a"] is None
        assert asked["b"] is not None
        assert bench.record("b").created <= asked["b"] <= bench.engine.now()
        bench.change(CancelJob("b"))
        found = {each.lease.id: (each.is_asked_to_stop, each.stop_asked) for each in bench.engine.leased(worker)}
        assert found == {"a": (False, None), "b": (True, asked["b"])}, "the first request counts"

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
    def test_one_that_is_removed_loses_its_leases(self, bench: Bench, other: Bench) -> None:
        worker, rival = enroll_remote(bench), enroll_remote(bench)
        bench.submit("again", "stopped")
        lease, _ = sorted(claim(bench, worker, 2), key=lambda each: each.id)
        other.change(CancelJob("stopped"))
        reader = EventReader(bench)
        assert other.arrange(RemoveWorker(worker, "was removed by a test"))
        assert not bench.arrange(RemoveWorker(worker, "was removed by a test")), "nothing has changed"
        assert not bench.engine.renew(worker)
        assert not bench.engine.take(worker, [Demand((TYPE,), 1, 0)], lead=0, start_lead=0).is_alive
        assert bench.engine.sweep(0).rescued == ["again"]
        assert not bench.settle(worker, lease, OutcomeKind.COMPLETED)
        again, stopped = bench.record("again"), bench.record("stopped")
        assert (again.status, again.crashes, again.interruptions) == (JobStatus.PENDING, 0, 1)
        assert (stopped.status, stopped.crashes, stopped.owner) == (JobStatus.CANCELED, 0, None)
        (attempt,) = again.history
        assert (attempt.cause, attempt.error) == (Cause.DEPLOY, f"its worker {worker} was removed by a test")
        told: list[tuple[EventKind, str]] = []

        def is_told() -> bool:
            told.extend(reader.read_kinds())
            return {(EventKind.RESCUED, "again"), (EventKind.CANCELED, "stopped")} <= set(told)

        assert bench.eventually_in_time(is_told)
        assert [each.number for each in bench.engine.workers()] == [rival]
        assert [each.id for each in claim(other, rival)] == ["again"]

    @needs(Capability.REMOTE_WORKERS)
    def test_removals_never_make_a_dead_letter_unless_a_job_runs_at_most_once(self, bench: Bench) -> None:
        bench.submit("job")
        for _ in range(MAX_CRASHES + 1):
            worker = enroll_remote(bench)
            claim(bench, worker)
            assert bench.arrange(RemoveWorker(worker, "was removed by a test"))
            assert bench.engine.sweep(0).rescued == ["job"]
        worker = enroll_remote(bench)
        claim(bench, worker, at_most_once=(TYPE,), at_most_once_starts=1)
        assert bench.arrange(RemoveWorker(worker, "was removed by a test"))
        assert bench.engine.sweep(0).quarantined == ["job"]
        record = bench.record("job")
        assert (record.status, record.crashes, record.interruptions) == (JobStatus.FAILED, 0, MAX_CRASHES + 2)
        assert record.error == f"at most once: it had started, and its worker {worker} was removed by a test"

    @needs(Capability.REMOTE_WORKERS)
    def test_a_local_worker_that_is_removed_counts_as_dead(self, bench: Bench, other: Bench) -> None:
        worker, _ = bench.begin("job")
        assert other.arrange(RemoveWorker(worker, "was removed by a test"))
        assert other.engine.sweep(0).rescued == ["job"]
        record = other.record()
        assert (record.status, record.crashes, record.interruptions) == (JobStatus.PENDING, 1, 0)
        assert not bench.engine.renew(worker)
        assert not other.arrange(RemoveWorker(worker + 1_000, "was removed by a test"))

    @needs(Capability.REMOTE_WORKERS)
    def test_a_sweep_removes_those_whose_token_was_revoked_or_has_expired(
        self, bench: Bench, other: Bench
    ) -> None:
        now = bench.engine.now()
        revoked, expired = (
            make_token("revoked", WORK, created=1)[1],
            make_token("b", WORK, created=1, expires=now)[1],
        )
        active = make_token("active", WORK, created=1, expires=now + seconds(LONG_SECONDS))[1]
        for token in (revoked, expired, active):
            assert bench.arrange(PutToken(token))
        callers = [*(f"token {token.id}" for token in (revoked, expired, active)), "token unknown", "caller a"]
        workers = [enroll_remote(bench, caller=caller) for caller in callers]
        local = bench.enroll()
        bench.submit("job")
        claim(bench, workers[0])
        assert other.arrange(RevokeToken(revoked.id, now))
        swept = other.engine.sweep(0)
        assert swept.rescued == ["job"]
        assert bench.engine.sweep(0).rescued == []
        assert [each.number for each in bench.engine.workers()] == [*workers[2:], local]
        texts = ("was removed because its token was revoked", "was removed because its token has expired")
        entries = bench.engine.audit_entries(AuditQuery(limit=10))
        assert {(each.actor, each.action, each.target, each.details["reason"]) for each in entries} == {
            ("mainspring", "worker.remove", str(number), text)
            for number, text in zip(workers, texts, strict=False)
        }
        assert len(entries) == len(texts)

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
