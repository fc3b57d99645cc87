"""Priorities beside a backlog: urgent jobs are preferred, and the least urgent ones do not wait for ever."""

from __future__ import annotations

from collections import Counter

import pytest

from mainspring.jobs.engine import Demand
from mainspring.testing.conformance.bench import TYPE
from tests.nats.fault_bench import FaultBench

BACKLOG = 120
STARTS = 100
BEST_EFFORT, NORMAL, URGENT = 0, 1, 2


def submit(bench: FaultBench, *priorities: int) -> None:
    """Let there be a backlog of each of these; what comes first waits longest."""
    for priority in priorities:
        bench.submit(*(f"{priority} {number}" for number in range(BACKLOG)), priority=priority)


def first_starts(bench: FaultBench, starts: int) -> list[int]:
    """Return the priorities of the jobs that a worker with so much room starts first."""
    worker = bench.enroll()
    begun: list[int] = []
    while len(begun) < STARTS:
        taken = bench.look_when_there(lambda: bench.look_for(worker, Demand((TYPE,), starts, 0)))
        assert len(taken.leases) <= starts
        begun += [lease.priority for lease in taken.leases]
        bench.complete(worker, *taken.leases)
    return begun[:STARTS]


@pytest.mark.parametrize("starts", [4, 10, 50])
def test_of_three_backlogs_the_urgent_one_gets_the_most_and_the_least_urgent_one_a_tenth(
    bench: FaultBench, starts: int
) -> None:
    submit(bench, BEST_EFFORT, NORMAL, URGENT)
    shares = Counter(first_starts(bench, starts))
    assert shares[URGENT] >= 45, shares
    assert shares[URGENT] > shares[NORMAL] >= shares[BEST_EFFORT] >= 8, shares


@pytest.mark.parametrize("others", [BEST_EFFORT, NORMAL])
def test_urgent_jobs_overtake_a_backlog_that_was_there_before(bench: FaultBench, others: int) -> None:
    submit(bench, others)
    bench.submit(*(f"urgent {number}" for number in range(20)), priority=URGENT)
    begun = first_starts(bench, 10)
    assert begun[:40].count(URGENT) == 20, begun


def test_the_least_urgent_job_does_not_wait_until_the_others_are_done(bench: FaultBench) -> None:
    submit(bench, URGENT, NORMAL)
    bench.submit("patient", priority=BEST_EFFORT)
    assert BEST_EFFORT in first_starts(bench, 10)[:30]


@pytest.mark.parametrize("priority", [BEST_EFFORT, NORMAL, URGENT])
def test_a_backlog_of_one_priority_gets_all_the_room(bench: FaultBench, priority: int) -> None:
    bench.submit("before", priority=URGENT)
    bench.submit("too", priority=BEST_EFFORT)
    worker = bench.enroll()
    bench.complete(worker, *bench.take_when_there(worker, 2))
    submit(bench, priority)
    taken = bench.look_when_there(lambda: bench.look(worker, starts=60, ahead=0))
    assert len(taken.leases) == 60


def test_jobs_of_one_priority_come_in_the_order_in_which_they_became_due(bench: FaultBench) -> None:
    ids = [f"job {number:03}" for number in range(30)]
    for job_id in ids:
        bench.submit(job_id)
    assert bench.ids_when_there(bench.enroll(), 30, starts=30) == ids
