"""Answers of the server that are lost: a change was stored, no client was told, no job is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Conflict, ConflictKind, Outcome, OutcomeKind, UniqueKey
from mainspring.jobs.status import JobStatus
from tests.nats.rig import MakeRig, Rig, rigs
from tests.nats.servers import Servers

KEY = UniqueKey("key", (JobStatus.PENDING, JobStatus.RUNNING))
KINDS: list[dict[str, Any]] = [{}, {"sequence": "key"}, {"limits": (bucket_of("all"),)}]
"""Jobs that are stored in different ways: by a record alone, and together with their gates."""
LATER = (OutcomeKind.RETRY, OutcomeKind.SNOOZED, OutcomeKind.INTERRUPTED, OutcomeKind.HANDED_BACK)

kinds = pytest.mark.parametrize("kind", KINDS, ids=["plain", "sequence", "limit"])


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
    """Let a worker run what there is: exactly these jobs, each for the first time."""
    worker = rig.enroll()
    leases = rig.take_when_there(worker, len(job_ids), starts=len(job_ids) + 5, ahead=len(job_ids))
    assert sorted(lease.id for lease in leases) == sorted(job_ids)
    held = [lease for lease in leases if not lease.is_started]
    assert rig.nats.start(worker, held) == [True] * len(held)
    rig.complete(worker, *leases)
    assert rig.take(worker) == []
    assert {rig.record(job_id).starts for job_id in job_ids} == {1}
    assert rig.eventually(lambda: not rig.link.scan(f"{rig.names.ready}>"))


# -- submit


@pytest.mark.parametrize("number", [1, 8, 30], ids=["one", "a few", "many"])
@pytest.mark.parametrize("after", [0, 1.5], ids=["due", "later"])
def test_a_submit_whose_answer_was_lost_is_stored_once(rig: Rig, number: int, after: float) -> None:
    rig.submit("first")  # its lane is known, so a few are stored one by one
    ids = [f"job {place}" for place in range(number)]
    rig.lose_answer("job")
    rig.submit(*ids, after=after)
    assert len(rig.lost) == 1
    assert_runs_once(rig, "first", *ids)


@kinds
def test_a_submit_with_policies_whose_answer_was_lost_is_stored_once(rig: Rig, kind: dict[str, Any]) -> None:
    rig.lose_answer("job")
    rig.submit("job", unique=KEY, **kind)
    assert len(rig.lost) == 1
    assert rig.nats.submit([rig.job("twin", unique=KEY, **kind)]) == [Conflict("job", ConflictKind.UNIQUE)]
    assert_runs_once(rig, "job")


def test_a_submit_that_finds_its_id_taken_by_another_says_so_even_after_a_lost_answer(
    rig: Rig, other: Rig
) -> None:
    other.submit("job", payload=b"other")
    rig.lose_answer("job")
    answers = rig.nats.submit([rig.job(job_id, payload=b"ours") for job_id in ("new", "job")])
    assert answers == [None, Conflict("job", ConflictKind.ID)]
    assert rig.record("job").payload == b"other"
    assert_runs_once(rig, "job", "new")


# -- take and start


@kinds
def test_a_take_whose_answer_was_lost_hands_the_job_out_once(rig: Rig, other: Rig, kind: dict[str, Any]) -> None:
    rig.submit("job", **kind)
    worker, rival = rig.enroll(), other.enroll()
    rig.lose_answer("job")
    (lease,) = rig.take_when_there(worker, 1)
    assert len(rig.lost) == 1
    assert other.take(rival) == []
    record = rig.record()
    assert (record.owner, record.token, record.starts, record.crashes) == (worker, lease.token, 1, 0)
    rig.complete(worker, lease)
    assert (rig.take(worker), other.take(rival)) == ([], [])
    assert rig.eventually(lambda: not rig.holds(rig.ready()))


def test_a_take_ahead_whose_answer_was_lost_holds_the_job_once(rig: Rig, other: Rig) -> None:
    rig.submit("job", after=0.8)
    worker, rival = rig.enroll(), other.enroll()
    rig.lose_answer("job")
    (lease,) = rig.take_when_there(worker, 1)
    assert len(rig.lost) == 1
    assert other.take(rival) == []
    assert lease.is_started or rig.nats.start(worker, [lease]) == [True]
    assert rig.record().starts == 1
    rig.complete(worker, lease)


def test_a_start_whose_answer_was_lost_is_a_start(rig: Rig, far_ahead: float) -> None:
    rig.submit("a", "b", after=far_ahead)
    worker = rig.enroll()
    leases = rig.sorted_when_there(worker, 2)
    assert not any(lease.is_started for lease in leases)
    rig.lose_answer("job")
    assert rig.nats.start(worker, leases) == [True, True]
    assert len(rig.lost) == 1
    records = [rig.record(lease.id) for lease in leases]
    assert {(record.status, record.starts, record.owner) for record in records} == {(JobStatus.RUNNING, 1, worker)}
    rig.complete(worker, *leases)


# -- settle


@kinds
@pytest.mark.parametrize("outcome", [OutcomeKind.COMPLETED, OutcomeKind.FAILED, OutcomeKind.CANCELED])
def test_an_end_whose_answer_was_lost_is_an_end(rig: Rig, kind: dict[str, Any], outcome: OutcomeKind) -> None:
    worker, lease = rig.begin(**kind)
    rig.submit("next", **kind)
    rig.lose_answer("job")
    assert rig.settle(worker, lease, outcome, error="it broke")
    assert len(rig.lost) == 1
    assert rig.status().value == outcome.value.upper()
    assert not rig.settle(worker, lease, outcome), "a lease ends once"
    assert_runs_once(rig, "next")


@kinds
@pytest.mark.parametrize("outcome", LATER)
def test_a_job_that_is_to_run_again_does_so_once_though_the_answer_was_lost(
    rig: Rig, kind: dict[str, Any], outcome: OutcomeKind
) -> None:
    worker, lease = rig.begin(**kind)
    rig.lose_answer("job")
    is_accepted = rig.settle(worker, lease, outcome, due=rig.now)
    assert len(rig.lost) == 1
    (again,) = rig.take_when_there(worker, 1)
    assert again.token == lease.token + 1
    rig.complete(worker, again)
    assert rig.take(worker) == []
    assert is_accepted, "it was stored, and so it was not refused"


def test_the_outcomes_of_a_batch_whose_answer_was_lost_are_told_apart(rig: Rig) -> None:
    rig.submit("a", "b", "c")
    worker = rig.enroll()
    mine = rig.sorted_when_there(worker, 3)
    rig.complete(worker, mine[1])
    rig.lose_answer("job")
    outcomes = [Outcome(lease, OutcomeKind.COMPLETED) for lease in mine]
    assert rig.nats.settle(worker, outcomes) == [True, False, True]
    assert len(rig.lost) == 1


def test_a_follow_up_whose_answer_was_lost_is_stored_once(rig: Rig) -> None:
    worker, lease = rig.begin()
    rig.lose_answer("job")
    assert rig.settle(worker, lease, OutcomeKind.COMPLETED, follow_up=rig.job("next"))
    assert len(rig.lost) == 1
    assert_runs_once(rig, "next")


def test_progress_whose_answer_was_lost_is_noted(rig: Rig) -> None:
    worker, lease = rig.begin()
    rig.lose_answer("job")
    assert rig.report(worker, lease, 0.5)
    assert len(rig.lost) == 1
    progress = rig.record().progress
    assert progress is not None
    assert progress.done == 0.5
    rig.complete(worker, lease)


# -- signs of life


def test_a_sign_of_life_whose_answer_was_lost_is_a_sign_of_life(rig: Rig, other: Rig) -> None:
    worker, lease = rig.begin()
    rig.lose_answer("worker")
    assert rig.nats.renew(worker)
    assert len(rig.lost) == 1
    assert rig.nats.renew(worker)
    rig.deliver_again("job")
    assert other.take(other.enroll()) == []
    rig.complete(worker, lease)
