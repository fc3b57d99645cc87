"""The states of a job and the moves between them."""

from itertools import product

import pytest

from mainspring import JobStatus
from mainspring.jobs.engine import STATUS_AFTER, OutcomeKind
from mainspring.jobs.status import FINAL, may_become

PENDING, RUNNING, COMPLETED, FAILED, CANCELED = JobStatus

MOVES = {
    (PENDING, RUNNING),
    (PENDING, CANCELED),
    (PENDING, FAILED),
    (RUNNING, PENDING),
    (RUNNING, COMPLETED),
    (RUNNING, FAILED),
    (RUNNING, CANCELED),
    (FAILED, PENDING),
}


@pytest.mark.parametrize(("before", "after"), list(product(JobStatus, JobStatus)))
def test_these_moves_and_no_others_are_allowed(before: JobStatus, after: JobStatus) -> None:
    assert may_become(before, after) is ((before, after) in MOVES)


def test_there_are_exactly_five_states() -> None:
    assert list(JobStatus) == ["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELED"]


@pytest.mark.parametrize("status", JobStatus)
def test_a_final_state_is_left_only_on_demand(status: JobStatus) -> None:
    assert status.is_final is (status in FINAL) is (status in {COMPLETED, FAILED, CANCELED})


@pytest.mark.parametrize("kind", OutcomeKind)
def test_every_outcome_is_an_allowed_move_from_running(kind: OutcomeKind) -> None:
    assert may_become(RUNNING, STATUS_AFTER[kind])


def test_a_state_reads_as_its_name() -> None:
    assert f"{COMPLETED}" == "COMPLETED"
