"""Conformance tests of engines: jobs make exactly the status transitions of the table in `jobs/status.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pytest

from mainspring.jobs.commands import CancelJob, Command, Edit, Reopen, Replay, Reschedule
from mainspring.jobs.records import Lease, OutcomeKind
from mainspring.jobs.status import TRANSITIONS, JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench

EXPIRES_SECONDS = 0.3


@dataclass(frozen=True)
class ClaimedJob:
    """A job, and the worker that has claimed it."""

    bench: Bench
    id: str
    worker: int
    lease: Lease

    def status(self) -> JobStatus:
        """Return the status of the job."""
        return self.bench.status(self.id)


Step: TypeAlias = Callable[[ClaimedJob], object]


def _settle(job: ClaimedJob, *, kind: OutcomeKind) -> None:
    job.bench.settle(job.worker, job.lease, kind, due=job.lease.due)


def _change(job: ClaimedJob, *, command: Callable[[ClaimedJob], Command]) -> None:
    job.bench.change(command(job))


def _start(job: ClaimedJob) -> None:
    job.bench.engine.start(job.worker, [job.lease])


def _submit_again(job: ClaimedJob) -> None:
    job.bench.engine.submit([job.bench.job(job.id, type=job.id)])


def _steps() -> Iterator[Step]:
    """Yield every operation of a worker or an operator, whether the status of a job allows it or not."""
    yield _start
    yield _submit_again
    for kind in OutcomeKind:
        yield partial(_settle, kind=kind)
    for command in COMMANDS:
        yield partial(_change, command=command)


COMMANDS: list[Callable[[ClaimedJob], Command]] = [
    lambda job: CancelJob(job.id),
    lambda job: Reopen(job.id, job.bench.now),
    lambda job: Replay(job.id, f"copy-of-{job.id}", job.bench.now),
    lambda job: Edit(job.id, b"2", "json"),
    lambda job: Reschedule(job.id, job.bench.now),
]


def _make(bench: Bench, job_id: str, status: JobStatus) -> ClaimedJob:
    """Create a job, let a new worker claim it, and bring it to this status. Each job has a type of its own."""
    worker = bench.enroll(job_id)
    bench.submit(job_id, type=job_id, after=SOON_SECONDS if status is JobStatus.PENDING else 0)
    (lease,) = bench.take_when_there(worker, 1, job_id)
    if status.is_final:
        kind = next(kind for kind in OutcomeKind if kind.value.upper() == status)
        assert bench.settle(worker, lease, kind)
    job = ClaimedJob(bench, job_id, worker, lease)
    assert job.status() is status
    return job


class TransitionTests(EngineSuite):
    """Test that each operation makes only the status changes that the table allows, and that all of these
    occur.
    """

    @pytest.mark.parametrize("before", JobStatus)
    def test_a_job_makes_the_moves_of_the_table_and_no_others(self, bench: Bench, before: JobStatus) -> None:
        reached = {_expire(bench)} if before is JobStatus.PENDING else set()
        for number, step in enumerate(_steps()):
            job = _make(bench, f"job{number}", before)
            step(job)
            reached.add(job.status())
        assert reached - {before} == TRANSITIONS[before]


def _expire(bench: Bench) -> JobStatus:
    """Submit a job that expires, let its time pass, and return its status."""
    bench.submit("late", type="late", expires=EXPIRES_SECONDS)
    bench.pass_time(EXPIRES_SECONDS)
    worker = bench.enroll("late")
    bench.eventually(lambda: bool(bench.take(worker, "late")) or bench.status("late").is_final)
    return bench.status("late")
