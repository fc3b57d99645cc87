"""Conformance tests of engines: jobs with a unique key, conflicts between them, and replacement."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.jobs.commands import Changed, Delete, Reopen, Replay
from mainspring.jobs.engine import Capability
from mainspring.jobs.records import Cause, Conflict, ConflictKind, NewJob, OutcomeKind, UniqueKey
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)


def unique_job(
    bench: Bench, job_id: str, key: str = "key", *, window: float | None = None, **options: Any
) -> NewJob:
    """Return a job that conflicts with jobs of the same key in `states`, by default jobs that have not ended."""
    states = options.pop("states", ALIVE)
    within = None if window is None else seconds(window)
    return bench.job(job_id, unique=UniqueKey(key, states, within), **options)


def replacing_job(bench: Bench, job_id: str, **options: Any) -> NewJob:
    """Return a job with the unique key `key` that replaces a pending job with the same key."""
    return bench.job(job_id, unique=UniqueKey("key", (JobStatus.PENDING,), replaces=True), **options)


def in_the_way(job_id: str, kind: ConflictKind = ConflictKind.UNIQUE) -> list[Conflict]:
    """Return the expected answer to the submit of one job that conflicts with the job `job_id`."""
    return [Conflict(job_id, kind)]


class UniqueKeyTests(EngineSuite):
    """Tests of the engine's `submit` with unique keys, and of commands on such jobs."""

    # -- conflicts

    def test_a_second_job_with_the_same_key_is_not_stored(self, bench: Bench) -> None:
        assert bench.engine.submit([unique_job(bench, "a", payload=b"1")]) == [None]
        before = bench.record("a")
        assert bench.engine.submit([unique_job(bench, "b", payload=b"2", type="x", queue="y")]) == in_the_way("a")
        assert bench.find_ids() == ["a"]
        assert bench.record("a") == before

    def test_a_job_keeps_its_key(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", 'größe "注文"'), bench.job("b")])
        assert (bench.record("a").unique_key, bench.record("b").unique_key) == ('größe "注文"', None)

    def test_jobs_with_other_keys_or_none_are_not_in_the_way(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", "A"), bench.job("b"), bench.job("c")])
        assert bench.engine.submit([unique_job(bench, "d", "D"), unique_job(bench, "e", "")]) == [None, None]

    def test_another_process_finds_the_key_taken(self, bench: Bench, other: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a")])
        assert other.engine.submit([unique_job(other, "b")]) == in_the_way("a")

    @pytest.mark.parametrize("status", JobStatus)
    def test_only_jobs_in_the_chosen_states_are_in_the_way(self, bench: Bench, status: JobStatus) -> None:
        self.bring_to(bench, status)
        others = tuple(state for state in JobStatus if state is not status)
        assert bench.engine.submit([unique_job(bench, "b", states=(status,))]) == in_the_way("a")
        assert bench.engine.submit([unique_job(bench, "b", states=others)]) == [None]

    def bring_to(self, bench: Bench, status: JobStatus) -> None:
        """Submit the job `a` with the unique key, and bring it to this status."""
        bench.engine.submit([unique_job(bench, "a")])
        if status is JobStatus.PENDING:
            return
        worker, lease = bench.take_by_new_worker()
        if status is not JobStatus.RUNNING:
            assert bench.settle(worker, lease, OutcomeKind[status.name])
        assert bench.status("a") is status

    def test_a_retry_is_still_in_the_way(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a")])
        worker, lease = bench.take_by_new_worker()
        due = bench.now + seconds(60)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, cause=Cause.FAILURE)
        assert bench.engine.submit([unique_job(bench, "b")]) == in_the_way("a")

    def test_the_key_of_a_forgotten_job_is_free(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a")])
        bench.cancel("a")
        assert bench.engine.submit([unique_job(bench, "b", states=tuple(JobStatus))]) == in_the_way("a")
        assert bench.change(Delete("a")).is_done
        assert bench.engine.submit([unique_job(bench, "b", states=tuple(JobStatus))]) == [None]

    def test_a_job_is_in_the_way_for_the_window_after_its_submission(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", after=3600)])
        bench.pass_time(0.3)
        assert bench.engine.submit([unique_job(bench, "b", window=60)]) == in_the_way("a")
        assert bench.engine.submit([unique_job(bench, "c", window=0.3)]) == [None]

    @needs(Capability.VIRTUAL_TIME)
    def test_the_window_ends_to_the_microsecond(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", after=3600)])
        bench.pass_time(9.999999)
        assert bench.engine.submit([unique_job(bench, "b", window=10)]) == in_the_way("a")
        bench.pass_time(0.000001)
        assert bench.engine.submit([unique_job(bench, "c", window=10)]) == [None]

    @needs(Capability.VIRTUAL_TIME)
    def test_without_a_window_a_job_is_in_the_way_however_old_it_is(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", after=90_000)])
        bench.pass_time(86_400)
        assert bench.engine.submit([unique_job(bench, "b")]) == in_the_way("a")

    def test_the_latest_of_several_is_named(self, bench: Bench) -> None:
        for job_id in ("a", "b", "c"):
            job = unique_job(bench, job_id, states=(JobStatus.COMPLETED,), after=0 if job_id == "c" else 3600)
            assert bench.engine.submit([job]) == [None]
        assert bench.engine.submit([unique_job(bench, "d")]) == in_the_way("c")
        worker, lease = bench.take_by_new_worker()
        bench.complete(worker, lease)
        assert bench.engine.submit([unique_job(bench, "d")]) == in_the_way("b")

    # -- batches

    def test_the_earlier_jobs_of_a_batch_conflict_with_the_later_ones(self, bench: Bench) -> None:
        batch = [unique_job(bench, "a"), unique_job(bench, "b"), bench.job("c"), unique_job(bench, "d", "D")]
        assert bench.engine.submit(batch) == [None, *in_the_way("a"), None, None]
        assert bench.find_ids() == ["a", "c", "d"]

    def test_what_was_not_stored_is_in_nobodys_way(self, bench: Bench) -> None:
        batch = [unique_job(bench, "a"), unique_job(bench, "b"), bench.job("b", payload=b"2")]
        assert bench.engine.submit(batch) == [None, *in_the_way("a"), None]
        assert bench.record("b").payload == b"2"

    def test_an_equal_id_counts_before_an_equal_key(self, bench: Bench) -> None:
        bench.engine.submit([bench.job("a"), unique_job(bench, "b")])
        assert bench.engine.submit([unique_job(bench, "a")]) == in_the_way("a", ConflictKind.ID)
        assert bench.engine.submit([replacing_job(bench, "a", payload=b"2")]) == in_the_way("a", ConflictKind.ID)
        assert bench.record("b").payload == b"{}"

    # -- replacing

    def test_the_job_in_the_way_can_be_given_the_arguments_and_times_of_the_new_one(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", payload=b"1", headers={"by": "a"}, after=60, expires=70)])
        before = bench.record("a")
        new = replacing_job(
            bench, "b", payload=b"\xff", codec="msgpack", headers={"by": "b"}, after=30, expires=40, priority=2
        )
        assert bench.engine.submit([new]) == in_the_way("a", ConflictKind.REPLACED)
        assert bench.find_ids() == ["a"]
        assert bench.record("a") == replace(
            before, payload=b"\xff", codec="msgpack", headers={"by": "b"}, due=new.due, expires=new.expires
        )

    def test_a_job_can_be_put_off_again_and_again(self, bench: Bench) -> None:
        worker = bench.enroll()
        for number in range(3):
            # Nothing is claimed between the two submits, so it does not matter how long they take.
            bench.engine.submit([replacing_job(bench, f"soon {number}", payload=b"0", after=0.3)])
            later = replacing_job(bench, f"later {number}", payload=b"1", after=3_600)
            assert bench.engine.submit([later]) == in_the_way("soon 0", ConflictKind.REPLACED)
            bench.pass_time(0.4)
            assert bench.take(worker, ahead=0) == []
        bench.engine.submit([replacing_job(bench, "now", payload=b"2")])
        (lease,) = bench.take_when_there(worker, 1)
        assert (lease.id, lease.payload) == ("soon 0", b"2")

    def test_a_job_that_is_put_forward_wakes_workers(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", after=3600)])
        before = bench.wakes
        bench.engine.submit([replacing_job(bench, "b")])
        assert bench.is_woken(before)
        assert bench.ids_when_there(bench.enroll(), 1) == ["a"]

    def test_a_job_of_the_same_batch_can_be_replaced(self, bench: Bench) -> None:
        batch = [replacing_job(bench, job_id, payload=job_id.encode()) for job_id in "abc"]
        assert bench.engine.submit(batch) == [None, *in_the_way("a", ConflictKind.REPLACED) * 2]
        assert (bench.find_ids(), bench.record("a").payload) == (["a"], b"c")

    def test_a_job_of_the_same_batch_keeps_what_is_not_replaced(self, bench: Bench) -> None:
        first = replacing_job(
            bench, "a", type="x", queue="one", priority=0, sequence="s", limits=("l\x1f",), after=60
        )
        second = replacing_job(bench, "b", payload=b"2")
        assert bench.engine.submit([first, second]) == [None, *in_the_way("a", ConflictKind.REPLACED)]
        record = bench.record("a")
        assert (record.type, record.queue, record.priority) == ("x", "one", 0)
        assert (record.sequence, record.limits) == ("s", ())  # limits depend on the arguments
        assert (record.payload, record.due) == (b"2", second.due)

    def test_a_held_job_that_is_replaced_is_taken_from_its_worker(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", payload=b"1", after=SOON_SECONDS)])
        worker, stale = bench.take_by_new_worker()
        assert bench.engine.submit([replacing_job(bench, "b", payload=b"2")]) == in_the_way(
            "a", ConflictKind.REPLACED
        )
        assert (bench.record("a").owner, bench.record("a").token) == (None, stale.token + 1)
        assert bench.engine.start(worker, [stale]) == [False]
        assert not bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        _, lease = bench.take_by_new_worker()
        assert (lease.payload, lease.token > stale.token) == (b"2", True)

    def test_a_running_job_is_not_replaced(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", payload=b"1")])
        worker, lease = bench.take_by_new_worker()
        assert bench.engine.submit([replacing_job(bench, "b", payload=b"2")]) == [None]
        bench.complete(worker, lease)
        assert (bench.record("a").payload, bench.record("b").payload) == (b"1", b"2")

    @pytest.mark.parametrize("kind", [OutcomeKind.SNOOZED, OutcomeKind.RETRY, OutcomeKind.INTERRUPTED])
    def test_a_job_that_has_started_is_not_replaced(self, bench: Bench, kind: OutcomeKind) -> None:
        bench.engine.submit([unique_job(bench, "a", payload=b"1")])
        worker, lease = bench.take_by_new_worker()
        due = None if kind is OutcomeKind.INTERRUPTED else bench.now + seconds(3_600)
        assert bench.settle(worker, lease, kind, due=due)
        before = bench.record("a")
        assert bench.engine.submit([replacing_job(bench, "b", payload=b"2", after=60)]) == [None]
        assert bench.engine.submit([replacing_job(bench, "c", payload=b"3", after=70)]) == in_the_way(
            "b", ConflictKind.REPLACED
        )
        assert bench.record("a") == before
        assert bench.record("b").payload == b"3"

    def test_a_job_that_goes_back_without_a_start_is_replaced(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "a", payload=b"1")])
        worker, lease = bench.take_by_new_worker()
        assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
        assert bench.engine.submit([replacing_job(bench, "b", payload=b"2")]) == in_the_way(
            "a", ConflictKind.REPLACED
        )

    def test_an_older_job_that_has_not_started_is_replaced_beside_a_newer_one_that_has(self, bench: Bench) -> None:
        bench.engine.submit([unique_job(bench, "waits", payload=b"1", after=3_600)])
        bench.engine.submit([unique_job(bench, "runs", states=(JobStatus.COMPLETED,))])
        worker, lease = bench.take_by_new_worker()
        assert bench.settle(worker, lease, OutcomeKind.SNOOZED, due=bench.now + seconds(3_600))
        assert bench.engine.submit([replacing_job(bench, "new", payload=b"2")]) == in_the_way(
            "waits", ConflictKind.REPLACED
        )

    # -- occurrences

    def test_an_occurrence_of_a_schedule_is_stored_once(self, bench: Bench) -> None:
        bench.submit("a", schedule="nightly", occurrence=1)
        assert bench.engine.submit([bench.job("b", schedule="nightly", occurrence=1)]) == in_the_way("a")
        bench.submit("c", schedule="nightly", occurrence=2)
        bench.submit("d", schedule="weekly", occurrence=1)
        assert (bench.record("d").schedule, bench.record("d").occurrence) == ("weekly", 1)

    # -- dead letters

    def test_a_letter_is_not_reopened_while_another_job_has_its_key(self, bench: Bench) -> None:
        self.bring_to(bench, JobStatus.FAILED)
        bench.engine.submit([unique_job(bench, "b")])
        before = bench.record("a")
        refused = Changed(False, JobStatus.FAILED, "b", is_unique_conflict=True)
        assert bench.change(Reopen("a", bench.now)) == refused
        worker, lease = bench.take_by_new_worker()
        assert bench.change(Reopen("a", bench.now)) == refused
        assert bench.record("a") == before
        bench.complete(worker, lease)
        assert bench.change(Reopen("a", bench.now)) == Changed(True, JobStatus.FAILED)

    def test_a_reopened_letter_has_its_key_again(self, bench: Bench) -> None:
        self.bring_to(bench, JobStatus.FAILED)
        assert bench.change(Reopen("a", bench.now)).is_done
        assert bench.engine.submit([unique_job(bench, "b")]) == in_the_way("a")

    def test_of_two_letters_with_one_key_only_one_is_reopened(self, bench: Bench) -> None:
        self.bring_to(bench, JobStatus.FAILED)
        bench.engine.submit([unique_job(bench, "b")])
        worker, lease = bench.take_by_new_worker()
        assert bench.settle(worker, lease, OutcomeKind.FAILED)
        assert bench.engine.change([Reopen("b", 0), Reopen("a", 0)]) == [
            Changed(True, JobStatus.FAILED),
            Changed(False, JobStatus.FAILED, "b", is_unique_conflict=True),
        ]

    def test_a_replay_carries_no_key(self, bench: Bench) -> None:
        self.bring_to(bench, JobStatus.FAILED)
        bench.engine.submit([unique_job(bench, "b")])
        assert bench.change(Replay("a", "copy", bench.now)) == Changed(True, JobStatus.FAILED)
        assert bench.record("copy").unique_key is None
        bench.cancel("b")
        assert bench.engine.submit([unique_job(bench, "c")]) == [None]
