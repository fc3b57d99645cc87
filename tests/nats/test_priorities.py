"""Priorities beside a backlog: urgent jobs are preferred, and the least urgent ones do not wait for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.jobs.engine import Demand
from mainspring.testing.conformance.bench import TYPE
from tests.nats.rig import Rig, rigs
from tests.nats.servers import Servers

BACKLOG = 120
STARTS = 100
BEST_EFFORT, NORMAL, URGENT = 0, 1, 2


@pytest.fixture
def rig(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[Rig]:
    with rigs(nats_server, nats_prefix, tmp_path) as make:
        yield make()


def submit(rig: Rig, *priorities: int) -> None:
    """Let there be a backlog of each of these; what comes first waits longest."""
    for priority in priorities:
        rig.submit(*(f"{priority} {number}" for number in range(BACKLOG)), priority=priority)


def first_starts(rig: Rig, starts: int) -> list[int]:
    """Return the priorities of the jobs that a worker with so much room starts first."""
    worker = rig.enroll()
    begun: list[int] = []
    while len(begun) < STARTS:
        taken = rig.look_when_there(lambda: rig.look_for(worker, Demand((TYPE,), starts, 0)))
        assert len(taken.leases) <= starts
        begun += [lease.priority for lease in taken.leases]
        rig.complete(worker, *taken.leases)
    return begun[:STARTS]


@pytest.mark.parametrize("starts", [4, 10, 50])
def test_of_three_backlogs_the_urgent_one_gets_the_most_and_the_least_urgent_one_a_tenth(
    rig: Rig, starts: int
) -> None:
    submit(rig, BEST_EFFORT, NORMAL, URGENT)
    shares = Counter(first_starts(rig, starts))
    assert shares[URGENT] >= 45, shares
    assert shares[URGENT] > shares[NORMAL] >= shares[BEST_EFFORT] >= 8, shares


@pytest.mark.parametrize("others", [BEST_EFFORT, NORMAL])
def test_urgent_jobs_overtake_a_backlog_that_was_there_before(rig: Rig, others: int) -> None:
    submit(rig, others)
    rig.submit(*(f"urgent {number}" for number in range(20)), priority=URGENT)
    begun = first_starts(rig, 10)
    assert begun[:40].count(URGENT) == 20, begun


def test_the_least_urgent_job_does_not_wait_until_the_others_are_done(rig: Rig) -> None:
    submit(rig, URGENT, NORMAL)
    rig.submit("patient", priority=BEST_EFFORT)
    assert BEST_EFFORT in first_starts(rig, 10)[:30]


@pytest.mark.parametrize("priority", [BEST_EFFORT, NORMAL, URGENT])
def test_a_backlog_of_one_priority_gets_all_the_room(rig: Rig, priority: int) -> None:
    rig.submit("before", priority=URGENT)
    rig.submit("too", priority=BEST_EFFORT)
    worker = rig.enroll()
    rig.complete(worker, *rig.take_when_there(worker, 2))
    submit(rig, priority)
    taken = rig.look_when_there(lambda: rig.look(worker, starts=60, ahead=0))
    assert len(taken.leases) == 60


def test_jobs_of_one_priority_come_in_the_order_in_which_they_became_due(rig: Rig) -> None:
    ids = [f"job {number:03}" for number in range(30)]
    for job_id in ids:
        rig.submit(job_id)
    assert rig.ids_when_there(rig.enroll(), 30, starts=30) == ids
