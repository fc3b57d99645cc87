"""Conformance tests of engines: a submitted job is stored once, with all its fields unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.jobs.commands import CancelJob, Delete
from mainspring.jobs.engine import Capability
from mainspring.jobs.records import Conflict, ConflictKind, FollowUp, JobRecord, OutcomeKind
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench
from mainspring.testing.conformance.capabilities import needs

EVERY_BYTE = bytes(range(256))
NAMES = "größe-注文-🕰"


class SubmitTests(EngineSuite):
    """Tests of the engine's `submit`, of duplicates, and of the stored fields of a job."""

    def test_a_job_is_kept_as_it_was_given(self, bench: Bench) -> None:
        job = bench.job(
            "job", after=60, type="pay", queue="orders", priority=2, payload=b'{"n":1}', origin="older"
        )
        assert bench.engine.submit([job]) == [None]
        assert bench.record() == JobRecord(
            id="job",
            type="pay",
            queue="orders",
            priority=2,
            status=JobStatus.PENDING,
            due=job.due,
            created=bench.record().created,
            payload=b'{"n":1}',
            codec="json",
            token=0,
            owner=None,
            starts=0,
            failures=0,
            timeouts=0,
            crashes=0,
            interruptions=0,
            started=None,
            finished=None,
            result=None,
            error=None,
            stop_requested=False,
            origin="older",
            replayed_as=None,
            history=(),
        )

    def test_policies_are_kept_as_they_were_given(self, bench: Bench) -> None:
        follow_up = FollowUp(
            "next", "orders", 2, 5, "result", "key", True, 60, (("rate of next", ("tenant", "größe")),)
        )
        policies: dict[str, Any] = {
            "sequence": NAMES,
            "steps_aside": True,
            "limits": ("a\x1f", f"b\x1f{NAMES}"),
            "headers": {"trace": "1", NAMES: '"'},
            "follow_up": follow_up,
        }
        bench.engine.submit([bench.job("job", expires=60, **policies)])
        record = bench.record()
        assert {name: getattr(record, name) for name in policies} == policies
        assert (record.expires, record.progress) == (record.due + 60 * MICROSECONDS, None)
        _, lease = bench.take_by_new_worker()
        carried = ("sequence", "limits", "headers", "follow_up")
        assert {name: getattr(lease, name) for name in carried} == {name: policies[name] for name in carried}

    def test_a_job_knows_when_it_was_submitted(self, bench: Bench) -> None:
        before = bench.now
        bench.submit("job", after=-3600)
        assert before <= bench.record().created <= bench.now

    def test_an_empty_batch_is_stored(self, bench: Bench) -> None:
        assert bench.engine.submit([]) == []

    def test_a_duplicate_is_refused_and_the_first_is_kept(self, bench: Bench) -> None:
        bench.submit("job", payload=b"1")
        before = bench.record()
        assert bench.engine.submit([bench.job("job", payload=b"2", queue="other")]) == [
            Conflict("job", ConflictKind.ID)
        ]
        assert bench.record() == before
        assert bench.find_ids() == ["job"]

    def test_the_second_of_two_alike_in_one_batch_is_refused(self, bench: Bench) -> None:
        answers = bench.engine.submit([bench.job("job", payload=b"1"), bench.job("job", payload=b"2")])
        assert answers == [None, Conflict("job", ConflictKind.ID)]
        assert bench.record().payload == b"1"

    def test_a_duplicate_does_not_keep_the_rest_of_its_batch_out(self, bench: Bench) -> None:
        bench.submit("b")
        jobs = [bench.job(job_id) for job_id in ("a", "b", "c", "a", "d")]
        of_a, of_b = Conflict("a", ConflictKind.ID), Conflict("b", ConflictKind.ID)
        assert bench.engine.submit(jobs) == [None, of_b, None, of_a, None]
        assert sorted(bench.find_ids()) == ["a", "b", "c", "d"]

    @pytest.mark.parametrize("status", sorted(FINAL))
    def test_the_id_of_a_job_that_has_ended_is_taken(self, bench: Bench, status: JobStatus) -> None:
        bench.end("job", status)
        assert bench.engine.submit([bench.job("job")]) == [Conflict("job", ConflictKind.ID)]
        assert bench.status() is status

    def test_the_id_of_a_deleted_job_is_free(self, bench: Bench) -> None:
        bench.end("job", JobStatus.COMPLETED)
        assert bench.change(Delete("job")).is_done
        bench.submit("job", payload=b"2")
        assert (bench.record().payload, bench.status()) == (b"2", JobStatus.PENDING)

    def test_names_may_be_of_any_script(self, bench: Bench) -> None:
        payload = '{"name":"größe \\" 注文 🕰"}'.encode()
        bench.submit(NAMES, type=NAMES, queue=NAMES, payload=payload)
        worker = bench.enroll(NAMES)
        (lease,) = bench.take_when_there(worker, 1, NAMES, queues=(NAMES,))
        assert (lease.id, lease.type, lease.queue, lease.payload) == (NAMES, NAMES, NAMES, payload)
        assert bench.settle(worker, lease, OutcomeKind.FAILED, error=f"{NAMES}\n'\"\\")
        record = bench.record(NAMES)
        assert (record.type, record.queue, record.payload) == (NAMES, NAMES, payload)
        assert record.error == f"{NAMES}\n'\"\\"

    @pytest.mark.parametrize(
        "payload", [EVERY_BYTE, b"", b"\x00", b"null"], ids=["every byte", "empty", "nul", "text"]
    )
    @pytest.mark.parametrize("codec", ["msgpack", "one's own"])
    def test_binary_arguments_and_results_come_back_byte_by_byte(
        self, bench: Bench, payload: bytes, codec: str
    ) -> None:
        worker, lease = bench.begin("job", payload=payload, codec=codec)
        assert (lease.payload, lease.codec) == (payload, codec)
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, result=payload)
        record = bench.record()
        assert (record.payload, record.result, record.codec) == (payload, payload, codec)

    def test_ids_may_hold_what_other_notations_give_a_meaning(self, bench: Bench) -> None:
        ids = [
            '"',
            "\\",
            "'",
            '\\"',
            "%",
            "$.a",
            "[0]",
            "a,b",
            "é\u2028",
            "0",
            "null",
            "{}",
            "a b",
            "-- x",
            "\\u0041",
        ]
        bench.submit(*ids)
        assert bench.find_ids() == ids
        assert bench.find_ids(ids=tuple(ids)) == ids
        taken = bench.ids_when_there(bench.enroll(), len(ids), starts=100)
        assert sorted(taken) == sorted(ids)
        answers = bench.engine.change([CancelJob(job_id) for job_id in ids])
        assert [answer.status for answer in answers] == [JobStatus.RUNNING] * len(ids)

    def test_a_job_that_is_due_wakes_workers(self, bench: Bench) -> None:
        bench.enroll()
        before = bench.wakes
        bench.submit("job")
        assert bench.is_woken(before)

    def test_verbs_of_one_unit_see_each_other(self, bench: Bench) -> None:
        worker = bench.enroll()
        with bench.engine.unit(durable=True):
            bench.submit("a", "b")
            assert bench.cancel("a").is_done
            (lease,) = bench.take_when_there(worker, 1)
            assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        assert (bench.status("a"), bench.status("b")) == (JobStatus.CANCELED, JobStatus.COMPLETED)

    @needs(Capability.ATOMIC_UNIT)
    def test_workers_are_woken_after_the_unit_not_inside(self, bench: Bench) -> None:
        bench.enroll()
        with bench.engine.unit(durable=True):
            before = bench.wakes
            bench.submit("job")
            assert bench.wakes == before
        assert bench.is_woken(before)
