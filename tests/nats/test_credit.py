"""Credit: no worker holds more than it has room for, or jobs that it cannot run, while others are idle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.engines.nats.intake import PATIENCE_SECONDS
from mainspring.jobs.records import Query
from mainspring.jobs.status import JobStatus
from tests.nats.rig import MakeRig, Rig, rigs
from tests.nats.servers import Servers

PRIORITIES = (0, 1, 2)
SOON = 2 * PATIENCE_SECONDS


@pytest.fixture
def make_rig(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[MakeRig]:
    with rigs(nats_server, nats_prefix, tmp_path) as make:
        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


@pytest.fixture
def other(make_rig: MakeRig) -> Rig:
    return make_rig()


# -- room


@pytest.mark.parametrize("starts", [1, 2, 3, 7])
def test_a_worker_starts_no_more_than_it_has_room_for_however_many_lanes_there_are(rig: Rig, starts: int) -> None:
    for priority in PRIORITIES:
        rig.submit(*(f"{priority} {number}" for number in range(8)), priority=priority)
    worker = rig.enroll()
    taken = rig.look_when_there(lambda: rig.look(worker, starts=starts, ahead=5))
    assert len(taken.leases) <= starts
    assert taken.is_more
    assert len(running(rig)) == len(taken.leases)
    assert all(rig.record(job_id).owner is None for job_id in rig.find_ids(status=JobStatus.PENDING))


def running(rig: Rig) -> list[str]:
    return [record.id for record in rig.nats.find(Query(status=JobStatus.RUNNING)).records]


def test_a_worker_holds_no_more_ahead_than_it_has_room_for(rig: Rig, other: Rig, far_ahead: float) -> None:
    rig.submit(*(f"job {number}" for number in range(9)), after=far_ahead)
    worker, rival = rig.enroll(), other.enroll()
    held = rig.take_when_there(worker, 2, starts=5, ahead=2)
    assert [lease.is_started for lease in held] == [False, False]
    assert len(rig.hands) == 2
    rest = other.take_when_there(rival, 7, starts=10, ahead=10)
    assert len({lease.id for lease in (*held, *rest)}) == 9


def test_one_without_room_gets_nothing(rig: Rig, other: Rig) -> None:
    worker = rig.enroll()
    rig.submit("job")
    assert rig.take(worker, starts=0, ahead=0) == []
    rig.in_order()
    assert other.ids_when_there(other.enroll(), 1) == ["job"]


# -- what finds no room


def test_what_came_by_itself_and_found_no_room_goes_to_another(rig: Rig, other: Rig) -> None:
    rig.submit("first")
    worker, rival = rig.enroll(), other.enroll()
    (lease,) = rig.take_when_there(worker, 1)
    assert rig.take(worker) == []  # from now on the next job comes by itself
    other.submit("job")
    assert rig.eventually(lambda: bool(rig.intake._jobs)), "it came to one who is busy meanwhile"
    assert other.ids_when_there(rival, 1) == ["job"]
    rig.complete(worker, lease)


def test_of_several_that_came_by_themselves_no_more_are_started_than_there_is_room_for(
    rig: Rig, other: Rig
) -> None:
    worker, rival = rig.enroll(), other.enroll()
    for priority in PRIORITIES:
        rig.submit(f"first {priority}", priority=priority)
    rig.complete(worker, *rig.take_when_there(worker, len(PRIORITIES)))
    assert rig.take(worker) == []  # from now on the next job of each lane comes by itself
    for priority in PRIORITIES:
        other.submit(f"job {priority}", priority=priority)
    assert rig.eventually(lambda: len(rig.intake._jobs) == len(PRIORITIES))
    mine = rig.take(worker, starts=1, ahead=0)
    assert len(mine) == 1
    theirs = other.take_when_there(rival, 2)
    assert {lease.id for lease in (*mine, *theirs)} == {f"job {priority}" for priority in PRIORITIES}


def test_what_was_fetched_and_found_no_room_goes_to_another(rig: Rig, other: Rig) -> None:
    rig.submit("suspect")
    for _ in range(2):
        victim, _ = rig.take_by_new_worker()
        rig.nats.leave(victim)
        assert rig.nats.sweep(rig.enroll()).rescued == ["suspect"]
    worker, rival = rig.enroll(), other.enroll()
    assert rig.eventually(lambda: rig.take(worker, suspects=False) == [] and bool(rig.intake._jobs))
    assert other.ids_when_there(rival, 1) == ["suspect"]


def test_what_one_left_for_lack_of_room_is_started_by_another_at_once(rig: Rig, other: Rig) -> None:
    rig.submit(*(f"job {number}" for number in range(20)))
    worker, rival = rig.enroll(), other.enroll()
    mine = rig.take_when_there(worker, 1, starts=3, ahead=0)
    theirs = other.take_when_there(rival, 20 - len(mine), starts=20)
    assert len({lease.id for lease in (*mine, *theirs)}) == 20


def test_one_that_leaves_keeps_nothing(rig: Rig, other: Rig) -> None:
    worker = rig.enroll()
    rig.submit("first")
    rig.complete(worker, *rig.take_when_there(worker, 1))
    assert rig.take(worker) == []
    other.submit("job")
    assert rig.eventually(lambda: bool(rig.intake._jobs))
    rig.nats.leave(worker)
    assert other.ids_when_there(other.enroll(), 1) == ["job"]


def test_one_that_was_full_is_woken_by_the_next_job_when_it_has_room_again(rig: Rig, other: Rig) -> None:
    worker = rig.enroll()
    rig.submit("a", "b")
    taken = rig.look_when_there(lambda: rig.look(worker, starts=2, ahead=0))
    assert len(taken.leases) == 2, "it is full"
    rig.complete(worker, *taken.leases)
    if taken.is_more:  # then it looks again as soon as it has room, and only then
        assert rig.take(worker, starts=2) == []
    before = rig.wakes
    other.submit("job")
    assert rig.is_woken(before)
    assert rig.ids_when_there(worker, 1) == ["job"]


# -- what it could not run


def test_a_lane_of_a_handler_that_a_worker_does_not_know_is_never_pulled_by_it(rig: Rig, other: Rig) -> None:
    other.submit("strange", type="pong")
    other.submit("known")
    worker = rig.enroll("ping")
    (lease,) = rig.take_when_there(worker, 1, "ping")
    assert (lease.id, rig.take(worker, "ping")) == ("known", [])
    assert rig.consumers().keys() == {rig.lane(type="ping"), f"{rig.names.chores}>"}
    assert other.ids_when_there(other.enroll("pong"), 1, "pong") == ["strange"]


def test_a_lane_of_a_queue_that_a_worker_does_not_serve_is_never_pulled_by_it(rig: Rig, other: Rig) -> None:
    other.submit("strange", queue="reports")
    other.submit("known", queue="mail")
    worker = rig.enroll()
    (lease,) = rig.take_when_there(worker, 1, queues=("mail", "orders"))
    assert (lease.id, rig.take(worker, queues=("mail", "orders"))) == ("known", [])
    assert rig.consumers().keys() == {rig.lane(queue="mail"), f"{rig.names.chores}>"}
    assert other.ids_when_there(other.enroll(), 1) == ["strange"]


def test_queues_whose_names_begin_alike_are_kept_apart(rig: Rig) -> None:
    names = ("mail", "mail.urgent", "mail*", "mail=2E", "")
    for name in names:
        rig.submit(f"of {name}", queue=name)
    worker = rig.enroll()
    for name in names:
        assert rig.ids_when_there(worker, 1, queues=(name,)) == [f"of {name}"]
