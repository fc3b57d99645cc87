"""Replies of the server that are lost: a change was stored, no client was told, no job is lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Conflict, ConflictKind, Outcome, OutcomeKind, UniqueKey
from mainspring.jobs.status import JobStatus
from tests.nats.fault_bench import FaultBench

KEY = UniqueKey("key", (JobStatus.PENDING, JobStatus.RUNNING))
KINDS: list[dict[str, Any]] = [{}, {"sequence": "key"}, {"limits": (bucket_of("all"),)}]
"""Jobs that are stored in different ways: by a record alone, and together with their limiters."""
LATER = (OutcomeKind.RETRY, OutcomeKind.SNOOZED, OutcomeKind.INTERRUPTED, OutcomeKind.HANDED_BACK)

kinds = pytest.mark.parametrize("kind", KINDS, ids=["plain", "sequence", "limit"])


def assert_runs_once(bench: FaultBench, *job_ids: str) -> None:
    """Let a worker run what there is: exactly these jobs, each for the first time."""
    worker = bench.enroll()
    leases = bench.take_when_there(worker, len(job_ids), starts=len(job_ids) + 5, ahead=len(job_ids))
    assert sorted(lease.id for lease in leases) == sorted(job_ids)
    held = [lease for lease in leases if not lease.is_started]
    assert bench.nats.start(worker, held) == [True] * len(held)
    bench.complete(worker, *leases)
    assert bench.take(worker) == []
    assert {bench.record(job_id).starts for job_id in job_ids} == {1}
    assert bench.eventually(lambda: not bench.jetstream.scan(f"{bench.names.ready}>"))


# -- submit


@pytest.mark.parametrize("number", [1, 8, 30], ids=["one", "a few", "many"])
@pytest.mark.parametrize("after", [0, 1.5], ids=["due", "later"])
def test_a_submit_whose_answer_was_lost_is_stored_once(bench: FaultBench, number: int, after: float) -> None:
    bench.submit("first")  # its lane is known, so a few are stored one by one
    ids = [f"job {place}" for place in range(number)]
    bench.lose_reply("job")
    bench.submit(*ids, after=after)
    assert len(bench.lost) == 1
    assert_runs_once(bench, "first", *ids)


@kinds
def test_a_submit_with_policies_whose_answer_was_lost_is_stored_once(
    bench: FaultBench, kind: dict[str, Any]
) -> None:
    bench.lose_reply("job")
    bench.submit("job", unique=KEY, **kind)
    assert len(bench.lost) == 1
    assert bench.nats.submit([bench.job("twin", unique=KEY, **kind)]) == [Conflict("job", ConflictKind.UNIQUE)]
    assert_runs_once(bench, "job")


def test_a_submit_that_finds_its_id_taken_by_another_says_so_even_after_a_lost_answer(
    bench: FaultBench, other: FaultBench
) -> None:
    other.submit("job", payload=b"other")
    bench.lose_reply("job")
    answers = bench.nats.submit([bench.job(job_id, payload=b"ours") for job_id in ("new", "job")])
    assert answers == [None, Conflict("job", ConflictKind.ID)]
    assert bench.record("job").payload == b"other"
    assert_runs_once(bench, "job", "new")


# -- take and start


@kinds
def test_a_take_whose_answer_was_lost_hands_the_job_out_once(
    bench: FaultBench, other: FaultBench, kind: dict[str, Any]
) -> None:
    bench.submit("job", **kind)
    worker, rival = bench.enroll(), other.enroll()
    bench.lose_reply("job")
    (lease,) = bench.take_when_there(worker, 1)
    assert len(bench.lost) == 1
    assert other.take(rival) == []
    record = bench.record()
    assert (record.owner, record.token, record.starts, record.crashes) == (worker, lease.token, 1, 0)
    bench.complete(worker, lease)
    assert (bench.take(worker), other.take(rival)) == ([], [])
    assert bench.eventually(lambda: not bench.has_message(bench.ready()))


def test_a_take_ahead_whose_answer_was_lost_holds_the_job_once(bench: FaultBench, other: FaultBench) -> None:
    bench.submit("job", after=0.8)
    worker, rival = bench.enroll(), other.enroll()
    bench.lose_reply("job")
    (lease,) = bench.take_when_there(worker, 1)
    assert len(bench.lost) == 1
    assert other.take(rival) == []
    assert lease.is_started or bench.nats.start(worker, [lease]) == [True]
    assert bench.record().starts == 1
    bench.complete(worker, lease)


def test_a_start_whose_answer_was_lost_is_a_start(bench: FaultBench, far_ahead: float) -> None:
    bench.submit("a", "b", after=far_ahead)
    worker = bench.enroll()
    leases = bench.sorted_when_there(worker, 2)
    assert not any(lease.is_started for lease in leases)
    bench.lose_reply("job")
    assert bench.nats.start(worker, leases) == [True, True]
    assert len(bench.lost) == 1
    records = [bench.record(lease.id) for lease in leases]
    assert {(record.status, record.starts, record.owner) for record in records} == {(JobStatus.RUNNING, 1, worker)}
    bench.complete(worker, *leases)


# -- settle


@kinds
@pytest.mark.parametrize("outcome", [OutcomeKind.COMPLETED, OutcomeKind.FAILED, OutcomeKind.CANCELED])
def test_an_end_whose_answer_was_lost_is_an_end(
    bench: FaultBench, kind: dict[str, Any], outcome: OutcomeKind
) -> None:
    worker, lease = bench.begin(**kind)
    bench.submit("next", **kind)
    bench.lose_reply("job")
    assert bench.settle(worker, lease, outcome, error="it broke")
    assert len(bench.lost) == 1
    assert bench.status().value == outcome.value.upper()
    assert not bench.settle(worker, lease, outcome), "a lease ends once"
    assert_runs_once(bench, "next")


@kinds
@pytest.mark.parametrize("outcome", LATER)
def test_a_job_that_is_to_run_again_does_so_once_though_the_answer_was_lost(
    bench: FaultBench, kind: dict[str, Any], outcome: OutcomeKind
) -> None:
    worker, lease = bench.begin(**kind)
    bench.lose_reply("job")
    is_accepted = bench.settle(worker, lease, outcome, due=bench.now)
    assert len(bench.lost) == 1
    (again,) = bench.take_when_there(worker, 1)
    assert again.token == lease.token + 1
    bench.complete(worker, again)
    assert bench.take(worker) == []
    assert is_accepted, "it was stored, and so it was not refused"


def test_the_outcomes_of_a_batch_whose_answer_was_lost_are_told_apart(bench: FaultBench) -> None:
    bench.submit("a", "b", "c")
    worker = bench.enroll()
    mine = bench.sorted_when_there(worker, 3)
    bench.complete(worker, mine[1])
    bench.lose_reply("job")
    outcomes = [Outcome(lease, OutcomeKind.COMPLETED) for lease in mine]
    assert bench.nats.settle(worker, outcomes) == [True, False, True]
    assert len(bench.lost) == 1


def test_a_follow_up_whose_answer_was_lost_is_stored_once(bench: FaultBench) -> None:
    worker, lease = bench.begin()
    bench.lose_reply("job")
    assert bench.settle(worker, lease, OutcomeKind.COMPLETED, follow_up=bench.job("next"))
    assert len(bench.lost) == 1
    assert_runs_once(bench, "next")


def test_progress_whose_answer_was_lost_is_noted(bench: FaultBench) -> None:
    worker, lease = bench.begin()
    bench.lose_reply("job")
    assert bench.report(worker, lease, 0.5)
    assert len(bench.lost) == 1
    progress = bench.record().progress
    assert progress is not None
    assert progress.done == 0.5
    bench.complete(worker, lease)


# -- signs of life


def test_a_sign_of_life_whose_answer_was_lost_is_a_sign_of_life(bench: FaultBench, other: FaultBench) -> None:
    worker, lease = bench.begin()
    bench.lose_reply("worker")
    assert bench.nats.renew(worker)
    assert len(bench.lost) == 1
    assert bench.nats.renew(worker)
    bench.deliver_again("job")
    assert other.take(other.enroll()) == []
    bench.complete(worker, lease)
