"""Orphan repair: jobs whose message an operator or a disk has lost are queued again, once; no others are."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mainspring.engines.nats.write_batch import StoredMessage
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.fault_bench import FaultBench
from tests.support import at_once

LIMIT = bucket_of("all")


def assert_runs_once(bench: FaultBench, *job_ids: str) -> None:
    worker = bench.enroll()
    for job_id in job_ids:
        (lease,) = bench.take_when_there(worker, 1)
        assert lease.id == job_id
        assert lease.is_started or bench.nats.start(worker, [lease]) == [True]
        bench.complete(worker, lease)
    assert bench.take(worker) == []
    assert [(bench.record(job_id).starts, bench.record(job_id).crashes) for job_id in job_ids] == [(1, 0)] * len(
        job_ids
    )


# -- what was lost


@pytest.mark.parametrize("options", [{}, {"sequence": "key"}, {"limits": (LIMIT,)}])
def test_a_job_whose_message_was_purged_is_queued_again_once(bench: FaultBench, options: dict[str, str]) -> None:
    bench.submit("job", **options)
    bench.purge(bench.ready())
    assert bench.take(bench.enroll()) == []
    assert bench.nats.repair_orphans(0) == ["job"]
    assert bench.nats.repair_orphans(0) == []
    assert_runs_once(bench, "job")


@pytest.mark.parametrize("options", [{}, {"sequence": "key"}, {"limits": (LIMIT,)}])
def test_a_job_whose_schedule_was_purged_is_queued_again_when_it_is_due(
    bench: FaultBench, options: dict[str, str]
) -> None:
    bench.submit("job", after=1.5, **options)
    bench.purge(bench.names.scheduled("job", "job"))
    assert bench.nats.repair_orphans(0) == [], "it is not missed yet"
    reaped: list[str] = []

    def reap() -> bool:
        reaped.extend(bench.nats.repair_orphans(0))
        return bool(reaped)

    assert bench.eventually(reap)
    assert reaped == ["job"]
    assert_runs_once(bench, "job")


def test_a_retry_whose_schedule_was_purged_is_queued_again(bench: FaultBench) -> None:
    worker, lease = bench.begin()
    assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now + 1_500_000)
    bench.purge(bench.names.scheduled("job", "job"))
    assert bench.eventually(lambda: bench.nats.repair_orphans(0) == ["job"])
    (again,) = bench.take_when_there(worker, 1)
    bench.complete(worker, again)


def test_a_job_that_lost_its_message_and_its_worker_is_rescued(bench: FaultBench, other: FaultBench) -> None:
    other.begin()
    bench.purge(bench.ready())
    assert bench.nats.repair_orphans(0) == [], "its worker lives"
    other.fall_silent()
    assert bench.nats.repair_orphans(0) == ["job"]
    _, lease = bench.take_by_new_worker()
    assert lease.crashes == 1


def test_of_many_jobs_those_that_lost_their_message_are_found(bench: FaultBench) -> None:
    ids = [f"job {number}" for number in range(40)]
    bench.submit(*ids)
    lost = ids[::7]
    bench.purge(*(bench.ready(job_id) for job_id in lost))
    assert bench.nats.repair_orphans(0) == lost
    assert sorted(bench.ids_when_there(bench.enroll(), 40, starts=60)) == sorted(ids)


# -- what was not


def test_jobs_that_wait_in_lines_are_left_alone(bench: FaultBench) -> None:
    bench.limit("all", 1)
    bench.submit("a", "b", "c", sequence="key")
    assert bench.nats.repair_orphans(0) == []
    assert_runs_once(bench, "a", "b", "c")
    bench.submit("d", "e", limits=(LIMIT,))
    assert bench.nats.repair_orphans(0) == []
    assert_runs_once(bench, "d", "e")


def test_jobs_that_have_what_they_need_are_left_alone(bench: FaultBench, other: FaultBench) -> None:
    bench.submit("running", "over")
    worker = bench.enroll()
    leases = {lease.id: lease for lease in bench.take_when_there(worker, 2)}
    bench.complete(worker, leases["over"])
    bench.submit("ready")
    bench.submit("later", after=3_600)
    before = {job_id: bench.record(job_id) for job_id in ("running", "over", "ready", "later")}
    assert other.nats.repair_orphans(0) == []
    assert {job_id: bench.record(job_id) for job_id in before} == before


def test_two_who_reap_at_once_queue_a_job_again_once(bench: FaultBench, other: FaultBench) -> None:
    bench.submit("job")
    bench.purge(bench.ready())
    at_once(lambda: bench.nats.repair_orphans(0), lambda: other.nats.repair_orphans(0))
    assert_runs_once(bench, "job")


def test_a_job_that_another_has_queued_again_and_started_meanwhile_stays_where_it_is(
    bench: FaultBench, other: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit("job")
    bench.purge(bench.ready())
    read = bench.jetstream.read
    begun: list[int] = []

    def read_and_be_overtaken(subjects: Iterable[str]) -> dict[str, StoredMessage]:
        wanted = list(subjects)
        found = read(wanted)
        if bench.ready() in wanted and not begun:
            assert not found[bench.ready()].revision
            assert other.nats.repair_orphans(0) == ["job"]
            begun.append(other.take_by_new_worker()[0])
        return found

    monkeypatch.setattr(bench.jetstream, "read", read_and_be_overtaken)
    assert bench.nats.repair_orphans(0) == []
    record = bench.record()
    assert (record.status, [record.owner], record.crashes) == (JobStatus.RUNNING, begun, 0)
