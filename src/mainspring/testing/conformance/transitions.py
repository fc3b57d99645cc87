"""Conformance of engines: jobs make exactly the status transitions of the table in `jobs/status.py`."""

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
from mainspring.testing.conformance.bench import Bench

EXPIRES_SECONDS = 0.3


@dataclass(frozen=True)
class Subject:
    """A job, and the worker that has claimed it."""

    bench: Bench
    id: str
    worker: int
    lease: Lease

    def status(self) -> JobStatus:
        """Return its status."""
        return self.bench.status(self.id)


Step: TypeAlias = Callable[[Subject], object]


def _settle(subject: Subject, *, kind: OutcomeKind) -> None:
    subject.bench.settle(subject.worker, subject.lease, kind, due=subject.lease.due)


def _change(subject: Subject, *, command: Callable[[Subject], Command]) -> None:
    subject.bench.change(command(subject))


def _start(subject: Subject) -> None:
    subject.bench.engine.start(subject.worker, [subject.lease])


def _submit_again(subject: Subject) -> None:
    subject.bench.engine.submit([subject.bench.job(subject.id, type=subject.id)])


def _steps() -> Iterator[Step]:
    """Yield every operation of a worker or an operator, whether the status of a job allows it or not."""
    yield _start
    yield _submit_again
    for kind in OutcomeKind:
        yield partial(_settle, kind=kind)
    for command in COMMANDS:
        yield partial(_change, command=command)


COMMANDS: list[Callable[[Subject], Command]] = [
    lambda subject: CancelJob(subject.id),
    lambda subject: Reopen(subject.id, subject.bench.now),
    lambda subject: Replay(subject.id, f"copy-of-{subject.id}", subject.bench.now),
    lambda subject: Edit(subject.id, b"2", "json"),
    lambda subject: Reschedule(subject.id, subject.bench.now),
]


def _make(bench: Bench, job_id: str, status: JobStatus) -> Subject:
    """Create a job with this status; each job has its own type, so that it does not affect others."""
    worker = bench.enroll(job_id)
    bench.submit(job_id, type=job_id, after=0.5 if status is JobStatus.PENDING else 0)
    (lease,) = bench.take_when_there(worker, 1, job_id)
    if status.is_final:
        kind = next(kind for kind in OutcomeKind if kind.value.upper() == status)
        assert bench.settle(worker, lease, kind)
    subject = Subject(bench, job_id, worker, lease)
    assert subject.status() is status
    return subject


class Transitions(EngineSuite):
    """Test of the table of status transitions."""

    @pytest.mark.parametrize("before", JobStatus)
    def test_a_job_makes_the_moves_of_the_table_and_no_others(self, bench: Bench, before: JobStatus) -> None:
        reached = {_expire(bench)} if before is JobStatus.PENDING else set()
        for number, step in enumerate(_steps()):
            subject = _make(bench, f"job{number}", before)
            step(subject)
            reached.add(subject.status())
        assert reached - {before} == TRANSITIONS[before]


def _expire(bench: Bench) -> JobStatus:
    """Let a job expire, and return its status."""
    bench.submit("late", type="late", expires=EXPIRES_SECONDS)
    bench.pass_time(EXPIRES_SECONDS)
    worker = bench.enroll("late")
    bench.eventually(lambda: bool(bench.take(worker, "late")) or bench.status("late").is_final)
    return bench.status("late")
