"""The states of a job. The conformance suite tests the moves between them with every engine."""

import pytest

from mainspring import JobStatus
from mainspring.jobs.records import STATUS_AFTER, OutcomeKind
from mainspring.jobs.status import TRANSITIONS, require_transition, to_status


@pytest.mark.parametrize("status", JobStatus)
def test_from_a_state_that_is_not_final_a_job_can_come_to_every_end(status: JobStatus) -> None:
    reached, new = {status}, {status}
    while new:
        new = {after for before in new for after in TRANSITIONS[before]} - reached
        reached |= new
    assert status.is_final or {end for end in JobStatus if end.is_final} <= reached


@pytest.mark.parametrize("status", JobStatus)
def test_no_worker_moves_a_job_out_of_a_final_state(status: JobStatus) -> None:
    assert status.is_final is (JobStatus.RUNNING not in TRANSITIONS[status] and status is not JobStatus.RUNNING)


@pytest.mark.parametrize("kind", OutcomeKind)
def test_every_outcome_is_a_move_from_running(kind: OutcomeKind) -> None:
    assert STATUS_AFTER[kind] in TRANSITIONS[JobStatus.RUNNING]


def test_a_state_reads_as_its_name() -> None:
    assert f"{JobStatus.COMPLETED}" == "COMPLETED"


@pytest.mark.parametrize("before", JobStatus)
@pytest.mark.parametrize("after", JobStatus)
def test_a_move_that_is_not_in_the_table_is_refused(before: JobStatus, after: JobStatus) -> None:
    if after in TRANSITIONS[before]:
        assert require_transition(before, after) is after
    else:
        with pytest.raises(ValueError, match=f"the status of a job cannot change from {before} to {after}"):
            require_transition(before, after)


@pytest.mark.parametrize("status", JobStatus)
def test_a_state_is_found_by_its_name(status: JobStatus) -> None:
    assert to_status(status.value) is to_status(status) is status


def test_an_unknown_state_is_answered_with_all_names() -> None:
    expected = "^status must be one of PENDING, RUNNING, COMPLETED, FAILED, CANCELED, got 'DONE'$"
    with pytest.raises(ValueError, match=expected):
        to_status("DONE")
