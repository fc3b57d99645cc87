"""Plain jobs that are stored together, in numbers below and above those for which there is a statement each."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from mainspring.engines.sqlite import schema
from mainspring.engines.sqlite.connections import STATEMENT_CACHE_SIZE
from mainspring.engines.sqlite.submitting import FEW
from mainspring.errors import StoreTooNew
from mainspring.jobs.records import Conflict, ConflictKind
from mainspring.testing.conformance.bench import Bench, seconds


@pytest.mark.parametrize("count", [1, 2, FEW - 1, FEW, FEW + 1])
def test_every_number_of_jobs_is_stored_as_it_was_given(bench: Bench, count: int) -> None:
    jobs = [
        bench.job(
            f"job {n}",
            type=f"type {n % 3}",
            queue=f"queue {n % 2}",
            after=n,
            payload=b'{"n":1}' if n % 2 else b"\x81\xa1n\x01",
            codec="json" if n % 2 else "msgpack",
        )
        for n in range(count)
    ]
    assert bench.engine.submit(jobs) == [None] * count
    for job in jobs:
        stored = bench.record(job.id)
        kept = (stored.type, stored.queue, stored.priority, stored.due, stored.payload, stored.codec)
        assert kept == (job.type, job.queue, job.priority, job.due, job.payload, job.codec)
        assert stored.created == bench.now


@pytest.mark.parametrize("count", [3, FEW + 1])
def test_the_first_of_two_jobs_with_one_id_is_stored_and_those_around_them_are(bench: Bench, count: int) -> None:
    jobs = [bench.job(f"job {n}", after=n) for n in range(count)]
    jobs.insert(2, bench.job("job 1", after=100))
    answers = bench.engine.submit(jobs)
    assert answers == [None, None, Conflict("job 1", ConflictKind.ID), *[None] * (count - 2)]
    assert bench.record("job 1").due == bench.now + seconds(1)
    assert len(bench.find_ids(limit=2 * FEW)) == count


def test_ids_that_were_stored_are_told_from_those_of_the_same_batch_again_and_again(bench: Bench) -> None:
    def submit(ids: str) -> str:
        """Return the ids that were refused; refused rows leave gaps in the row numbers."""
        answers = bench.engine.submit([bench.job(job_id) for job_id in ids])
        return "".join(answer.existing_id for answer in answers if answer is not None)

    assert [submit(ids) for ids in ("ab", "acbcd", "eadef", "fghgf", "xy")] == ["", "abc", "ade", "fgf", ""]
    assert "".join(bench.find_ids()) == "abcdefghxy"


def test_all_numbers_of_jobs_together_leave_room_for_other_prepared_statements() -> None:
    assert FEW < STATEMENT_CACHE_SIZE / 2


def test_a_file_that_a_newer_process_has_migrated_meanwhile_is_refused_until_it_is_not(
    bench: Bench, path: Path
) -> None:
    bench.submit("before")
    other = apsw.Connection(str(path))
    try:
        other.pragma("user_version", schema.VERSION + 1)
        for _ in range(2):  # a unit that was refused has not looked at it for those after it
            with pytest.raises(StoreTooNew):
                bench.submit("refused")
        other.pragma("user_version", schema.VERSION)
        bench.submit("after")
    finally:
        other.close()
    assert bench.find_ids() == ["before", "after"]
