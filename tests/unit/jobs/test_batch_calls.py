"""How the ready jobs of a batch handler become calls."""

from msgspec.structs import replace

from mainspring.jobs.records import Lease
from mainspring.jobs.worker.executors import split_into_calls
from mainspring.jobs.worker.lease_table import LeasedJob
from tests.unit.jobs.leases import make_lease, make_leased_job


def many(items: list[int]) -> None: ...


def batch_job(number: int, crashes: int = 0) -> LeasedJob:
    lease: Lease = replace(make_lease(b'{"items":1}', crashes=crashes), ref=number, id=str(number))
    return make_leased_job(many, lease, batch=3)


def ids_of(jobs: list[LeasedJob]) -> list[list[str]]:
    return [[job.lease.id for job in call.jobs] for call in split_into_calls(jobs)]


def test_a_batch_is_cut_into_calls_in_order() -> None:
    assert ids_of([batch_job(number) for number in range(7)]) == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


def test_a_job_that_another_thread_has_claimed_is_in_no_call() -> None:
    jobs = [batch_job(number) for number in range(4)]
    for job in jobs[1:3]:
        job.claim_start()
    assert ids_of(jobs) == [["0"], ["3"]]


def test_a_call_is_claimed_when_its_turn_comes() -> None:
    jobs = [batch_job(number) for number in range(4)]
    next(split_into_calls(jobs))
    assert [job.is_waiting for job in jobs] == [False, False, False, True]


def test_a_suspect_is_called_alone() -> None:
    jobs = [batch_job(0), batch_job(1, crashes=2), batch_job(2), batch_job(3, crashes=1)]
    assert ids_of(jobs) == [["0", "2"], ["1"], ["3"]]
