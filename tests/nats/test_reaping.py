"""Reaping: jobs whose message an operator or a disk has lost are queued again, once; others are left alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from mainspring.engines.nats.drafts import StreamEntry
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.processes import at_once
from tests.nats.rig import MakeRig, Rig, rigs
from tests.nats.servers import Servers

LIMIT = bucket_of("all")


@pytest.fixture
def make_rig(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[MakeRig]:
    with rigs(nats_server, nats_prefix, tmp_path) as make:
        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


@pytest.fixture
def other(make_rig: MakeRig) -> Rig:
    return make_rig()


def assert_runs_once(rig: Rig, *job_ids: str) -> None:
    worker = rig.enroll()
    for job_id in job_ids:
        (lease,) = rig.take_when_there(worker, 1)
        assert lease.id == job_id
        assert lease.is_started or rig.nats.start(worker, [lease]) == [True]
        rig.complete(worker, lease)
    assert rig.take(worker) == []
    assert [(rig.record(job_id).starts, rig.record(job_id).crashes) for job_id in job_ids] == [(1, 0)] * len(
        job_ids
    )


# -- what was lost


@pytest.mark.parametrize("options", [{}, {"sequence": "key"}, {"limits": (LIMIT,)}])
def test_a_job_whose_message_was_purged_is_queued_again_once(rig: Rig, options: dict[str, str]) -> None:
    rig.submit("job", **options)
    rig.purge(rig.ready())
    assert rig.take(rig.enroll()) == []
    assert rig.nats.reap(0) == ["job"]
    assert rig.nats.reap(0) == []
    assert_runs_once(rig, "job")


@pytest.mark.parametrize("options", [{}, {"sequence": "key"}, {"limits": (LIMIT,)}])
def test_a_job_whose_schedule_was_purged_is_queued_again_when_it_is_due(rig: Rig, options: dict[str, str]) -> None:
    rig.submit("job", after=1.5, **options)
    rig.purge(rig.names.at("job", "job"))
    assert rig.nats.reap(0) == [], "it is not missed yet"
    reaped: list[str] = []

    def reap() -> bool:
        reaped.extend(rig.nats.reap(0))
        return bool(reaped)

    assert rig.eventually(reap)
    assert reaped == ["job"]
    assert_runs_once(rig, "job")


def test_a_retry_whose_schedule_was_purged_is_queued_again(rig: Rig) -> None:
    worker, lease = rig.begin()
    assert rig.settle(worker, lease, OutcomeKind.RETRY, due=rig.now + 1_500_000)
    rig.purge(rig.names.at("job", "job"))
    assert rig.eventually(lambda: rig.nats.reap(0) == ["job"])
    (again,) = rig.take_when_there(worker, 1)
    rig.complete(worker, again)


def test_a_job_that_lost_its_message_and_its_worker_is_rescued(rig: Rig, other: Rig) -> None:
    other.begin()
    rig.purge(rig.ready())
    assert rig.nats.reap(0) == [], "its worker lives"
    other.fall_silent()
    assert rig.nats.reap(0) == ["job"]
    _, lease = rig.take_by_new_worker()
    assert lease.crashes == 1


def test_of_many_jobs_those_that_lost_their_message_are_found(rig: Rig) -> None:
    ids = [f"job {number}" for number in range(40)]
    rig.submit(*ids)
    lost = ids[::7]
    rig.purge(*(rig.ready(job_id) for job_id in lost))
    assert rig.nats.reap(0) == lost
    assert sorted(rig.ids_when_there(rig.enroll(), 40, starts=60)) == sorted(ids)


# -- what was not


def test_jobs_that_wait_in_lines_are_left_alone(rig: Rig) -> None:
    rig.limit("all", 1)
    rig.submit("a", "b", "c", sequence="key")
    assert rig.nats.reap(0) == []
    assert_runs_once(rig, "a", "b", "c")
    rig.submit("d", "e", limits=(LIMIT,))
    assert rig.nats.reap(0) == []
    assert_runs_once(rig, "d", "e")


def test_jobs_that_have_what_they_need_are_left_alone(rig: Rig, other: Rig) -> None:
    rig.submit("running", "over")
    worker = rig.enroll()
    leases = {lease.id: lease for lease in rig.take_when_there(worker, 2)}
    rig.complete(worker, leases["over"])
    rig.submit("ready")
    rig.submit("later", after=3_600)
    before = {job_id: rig.record(job_id) for job_id in ("running", "over", "ready", "later")}
    assert other.nats.reap(0) == []
    assert {job_id: rig.record(job_id) for job_id in before} == before


def test_two_who_reap_at_once_queue_a_job_again_once(rig: Rig, other: Rig) -> None:
    rig.submit("job")
    rig.purge(rig.ready())
    at_once(lambda: rig.nats.reap(0), lambda: other.nats.reap(0))
    assert_runs_once(rig, "job")


def test_a_job_that_another_has_queued_again_and_started_meanwhile_stays_where_it_is(
    rig: Rig, other: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.submit("job")
    rig.purge(rig.ready())
    read = rig.link.read
    begun: list[int] = []

    def read_and_be_overtaken(subjects: Iterable[str]) -> dict[str, StreamEntry]:
        wanted = list(subjects)
        found = read(wanted)
        if rig.ready() in wanted and not begun:
            assert not found[rig.ready()].revision
            assert other.nats.reap(0) == ["job"]
            begun.append(other.take_by_new_worker()[0])
        return found

    monkeypatch.setattr(rig.link, "read", read_and_be_overtaken)
    assert rig.nats.reap(0) == []
    record = rig.record()
    assert (record.status, [record.owner], record.crashes) == (JobStatus.RUNNING, begun, 0)
