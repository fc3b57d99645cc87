"""Conformance tests of engines: jobs that must not start a second time, whatever happens to their worker."""

from __future__ import annotations

import pytest

from mainspring.jobs.commands import Reopen
from mainspring.jobs.engine import Capability, Demand
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, Lease, OutcomeKind
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, TYPE, Bench
from mainspring.testing.conformance.capabilities import needs

OTHER = "pong"


def demand(*, starts: int = 10, ahead: int = 10, single: int = 10, types: tuple[str, ...] = (TYPE,)) -> Demand:
    """Return a demand whose jobs of the type `ping` must not start a second time."""
    return Demand(types, starts, ahead, at_most_once=(TYPE,), at_most_once_starts=single)


def begin(bench: Bench, job_id: str = "job", **options: object) -> tuple[int, Lease]:
    """Submit a job that must not start a second time, and let a new worker claim it; return worker and lease."""
    worker = bench.enroll()
    bench.submit(job_id, **options)
    (lease,) = bench.look_when_there(lambda: bench.look_for(worker, demand())).leases
    return worker, lease


class SingleAttemptTests(EngineSuite):
    """Tests of `Demand.at_most_once`."""

    def test_a_lease_says_that_its_job_must_not_start_again(self, bench: Bench) -> None:
        _, lease = begin(bench)
        assert (lease.at_most_once, lease.is_started) == (True, True)
        _, other = bench.begin("other")
        assert not other.at_most_once

    def test_a_started_job_is_a_dead_letter_when_its_worker_is_gone(self, bench: Bench) -> None:
        worker, lease = begin(bench)
        bench.engine.leave(worker)
        swept = bench.engine.sweep(bench.enroll())
        assert (swept.rescued, swept.quarantined) == ([], ["job"])
        record = bench.record()
        assert (record.status, record.crashes, record.starts) == (JobStatus.FAILED, 1, 1)
        assert (record.error or "").startswith("at most once: its worker")
        assert [attempt.cause for attempt in record.history] == [Cause.CRASH]
        assert record.finished == record.history[-1].ended
        assert bench.take(bench.enroll()) == []
        assert not bench.settle(worker, lease, OutcomeKind.COMPLETED)

    @needs(Capability.VIRTUAL_TIME)
    def test_a_started_job_of_a_silent_worker_is_a_dead_letter(self, bench: Bench) -> None:
        worker, _ = begin(bench)
        assert bench.crash(worker).quarantined == ["job"]
        assert bench.status() is JobStatus.FAILED

    def test_a_held_job_that_was_started_is_a_dead_letter_as_well(self, bench: Bench) -> None:
        worker, lease = begin(bench, after=SOON_SECONDS)
        assert (lease.is_started, lease.at_most_once) == (False, True)
        assert bench.engine.start(worker, [lease]) == [True]
        bench.engine.leave(worker)
        assert bench.engine.sweep(bench.enroll()).quarantined == ["job"]
        assert bench.status() is JobStatus.FAILED

    def test_a_job_that_was_only_held_has_not_started(self, bench: Bench) -> None:
        worker, _ = begin(bench, after=SOON_SECONDS)
        bench.engine.leave(worker)
        other = bench.enroll()
        assert bench.engine.sweep(other).quarantined == []
        assert bench.status() is JobStatus.PENDING
        (lease,) = bench.look_when_there(lambda: bench.look_for(other, demand())).leases
        assert lease.id == "job"

    def test_a_job_that_was_handed_back_has_not_started(self, bench: Bench) -> None:
        worker, lease = begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
        assert (bench.status(), bench.record().starts) == (JobStatus.PENDING, 0)
        (again,) = bench.look_when_there(lambda: bench.look_for(worker, demand())).leases
        assert bench.settle(worker, again, OutcomeKind.COMPLETED)

    def test_the_worker_that_starts_a_job_decides_whether_it_may_start_again(self, bench: Bench) -> None:
        worker, lease = begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
        other, _ = bench.take_by_new_worker()  # with a handler that may be retried
        bench.engine.leave(other)
        assert bench.is_rescued(bench.enroll())

    def test_the_jobs_of_other_types_run_again(self, bench: Bench) -> None:
        bench.submit("single")
        bench.submit("other", type=OTHER)
        worker = bench.enroll(TYPE, OTHER)
        leases: list[Lease] = []

        def has_both() -> bool:
            leases.extend(bench.look_for(worker, demand(types=(TYPE, OTHER))).leases)
            return len(leases) == 2

        assert bench.eventually(has_both)
        assert {lease.id: lease.at_most_once for lease in leases} == {"single": True, "other": False}
        bench.engine.leave(worker)
        swept = bench.engine.sweep(bench.enroll())
        assert (swept.rescued, swept.quarantined) == (["other"], ["single"])

    def test_a_job_that_was_to_stop_is_canceled(self, bench: Bench) -> None:
        worker, _ = begin(bench)
        bench.cancel()
        bench.engine.leave(worker)
        assert bench.engine.sweep(bench.enroll()).quarantined == []
        assert bench.status() is JobStatus.CANCELED

    def test_a_dead_letter_runs_again_if_an_operator_says_so(self, bench: Bench) -> None:
        worker, _ = begin(bench)
        bench.engine.leave(worker)
        survivor = bench.enroll()
        bench.engine.sweep(survivor)
        assert bench.change(Reopen("job", bench.now)).is_done
        assert bench.ids_when_there(survivor, 1) == ["job"]

    # -- how many are claimed

    def test_no_more_of_them_start_than_the_worker_can_run_now(self, bench: Bench) -> None:
        bench.submit("a", "b", "c", "d")
        worker = bench.enroll()
        leases: list[Lease] = []
        looks = []

        def has_two() -> bool:
            looks.append(bench.look_for(worker, demand(single=2 - len(leases))))
            leases.extend(looks[-1].leases)
            return len(leases) == 2

        assert bench.eventually(has_two)
        taken = bench.look_for(worker, demand(single=0))
        assert taken.leases == []
        assert taken.is_more
        bench.complete(worker, *leases)
        assert len(bench.look_when_there(lambda: bench.look_for(worker, demand(single=1))).leases) == 1

    def test_other_jobs_start_behind_those_that_are_left(self, bench: Bench) -> None:
        bench.submit("a", "b", "c")
        bench.submit("other", type=OTHER)
        worker = bench.enroll(TYPE, OTHER)
        wanted = demand(starts=3, single=0, types=(TYPE, OTHER))
        taken = bench.look_when_there(lambda: bench.look_for(worker, wanted))
        assert [lease.id for lease in taken.leases] == ["other"]
        assert taken.is_more

    @pytest.mark.parametrize("policy", ["sequence", "limit"])
    def test_jobs_in_order_and_under_limits_are_claimed_alike(self, bench: Bench, policy: str) -> None:
        bench.limit("few", 10)
        options = {"sequence": "key"} if policy == "sequence" else {"limits": (bucket_of("few"),)}
        bench.submit("a", "b", "c", "d", **options)
        bench.submit("other", type=OTHER, **({} if policy == "sequence" else options))
        worker = bench.enroll(TYPE, OTHER)
        ids: set[str] = set()
        singles = 1 if policy == "sequence" else 2

        def has_all() -> bool:
            single = singles - len(ids - {"other"})
            taken = bench.look_for(worker, demand(single=single, types=(TYPE, OTHER)))
            ids.update(lease.id for lease in taken.leases)
            return len(ids) == singles + 1

        assert bench.eventually(has_all)
        assert "other" in ids
        bench.engine.leave(worker)
        swept = bench.engine.sweep(bench.enroll())
        assert (swept.rescued, sorted(swept.quarantined)) == (["other"], sorted(ids - {"other"}))
        left = [job_id for job_id in "abcd" if job_id not in ids]
        assert all(bench.status(job_id) is JobStatus.PENDING for job_id in left)
        assert len(bench.look_when_there(lambda: bench.look_for(bench.enroll(), demand(single=1))).leases) == 1

    # -- outcomes

    def test_a_dead_letter_of_a_shutdown_counts_as_interrupted(self, bench: Bench) -> None:
        worker, lease = begin(bench)
        assert bench.settle(worker, lease, OutcomeKind.FAILED, error="interrupted", cause=Cause.DEPLOY)
        record = bench.record()
        assert (record.status, record.interruptions, record.failures) == (JobStatus.FAILED, 1, 0)
        (attempt,) = record.history
        assert (attempt.cause, attempt.error) == (Cause.DEPLOY, "interrupted")
