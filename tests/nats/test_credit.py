"""Credit: no worker holds more than it has room for, or jobs that it cannot run, while others are idle."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from mainspring.engines.nats import deliveries, delivery_buffer
from mainspring.engines.nats.deliveries import FetchRequest
from mainspring.engines.nats.delivery_buffer import KEEP_SECONDS
from mainspring.jobs.records import Query
from mainspring.jobs.status import JobStatus
from tests.nats.fault_bench import FaultBench
from tests.support import PATIENCE

PRIORITIES = (0, 1, 2)
SOON = 2 * KEEP_SECONDS


# -- room


@pytest.mark.parametrize("starts", [1, 2, 3, 7])
def test_a_worker_starts_no_more_than_it_has_room_for_however_many_lanes_there_are(
    bench: FaultBench, starts: int
) -> None:
    for priority in PRIORITIES:
        bench.submit(*(f"{priority} {number}" for number in range(8)), priority=priority)
    worker = bench.enroll()
    taken = bench.look_when_there(lambda: bench.look(worker, starts=starts, ahead=5))
    assert len(taken.leases) <= starts
    assert taken.is_more
    assert len(running(bench)) == len(taken.leases)
    assert all(bench.record(job_id).owner is None for job_id in bench.find_ids(status=JobStatus.PENDING))


def running(bench: FaultBench) -> list[str]:
    return [record.id for record in bench.nats.find(Query(status=JobStatus.RUNNING)).records]


def test_a_worker_holds_no_more_ahead_than_it_has_room_for(
    bench: FaultBench, other: FaultBench, far_ahead: float
) -> None:
    bench.submit(*(f"job {number}" for number in range(9)), after=far_ahead)
    worker, rival = bench.enroll(), other.enroll()
    held = bench.take_when_there(worker, 2, starts=5, ahead=2)
    assert [lease.is_started for lease in held] == [False, False]
    assert len(bench.leases) == 2
    rest = other.take_when_there(rival, 7, starts=10, ahead=10)
    assert len({lease.id for lease in (*held, *rest)}) == 9


def test_one_without_room_gets_nothing(bench: FaultBench, other: FaultBench) -> None:
    worker = bench.enroll()
    bench.submit("job")
    assert bench.take(worker, starts=0, ahead=0) == []
    bench.wait_until_processed()
    assert other.ids_when_there(other.enroll(), 1) == ["job"]


# -- idle pulls and fetches


@pytest.mark.parametrize(("fresh", "fetches"), [(2 * PATIENCE, 0), (-1, 1)])
def test_a_consumer_whose_idle_pull_was_just_started_is_not_asked(
    bench: FaultBench, other: FaultBench, monkeypatch: pytest.MonkeyPatch, fresh: float, fetches: int
) -> None:
    monkeypatch.setattr(deliveries, "FRESH_SECONDS", fresh)
    worker = bench.enroll()
    bench.submit("first")
    bench.complete(worker, *bench.take_when_there(worker, 1))
    assert bench.take(worker) == []  # from now on an idle pull waits
    assert bench.eventually(lambda: bool(bench.jetstream.pulls._idle))
    fetch = Mock(wraps=bench.jetstream.fetch)
    monkeypatch.setattr(bench.jetstream, "fetch", fetch)
    assert bench.take(worker) == []
    assert fetch.call_count == fetches
    other.submit(*(f"job {number}" for number in range(20)))
    assert len(bench.take_when_there(worker, 20, starts=20)) == 20, "what comes then is fetched"


def test_a_consumer_that_has_sent_all_its_messages_is_not_asked_again_at_once(
    bench: FaultBench, other: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "FRESH_SECONDS", 2 * PATIENCE)
    worker = bench.enroll()
    bench.submit("first")
    assert len(bench.take_when_there(worker, 1, starts=1)) == 1  # no slot is left, so no idle pull waits
    fetch = Mock(wraps=bench.jetstream.fetch)
    monkeypatch.setattr(bench.jetstream, "fetch", fetch)
    assert bench.take(worker, starts=5) == []
    assert fetch.call_count == 0
    other.submit("second")
    assert bench.ids_when_there(worker, 1) == ["second"], "the idle pull brings it"
    bench.submit("third", sequence="key")
    assert not bench.jetstream.pulls._drained, "this process knows that there is a message"
    assert bench.ids_when_there(worker, 1) == ["third"]


def test_messages_that_come_after_their_fetch_are_kept(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_buffer, "KEEP_SECONDS", 2 * PATIENCE)
    worker = bench.enroll()
    bench.submit("other")
    bench.complete(worker, *bench.take_when_there(worker, 1))
    consumer = bench.consumers()[bench.lane()]["name"]
    bench.submit("first", "second")
    pulls = bench.jetstream.pulls
    found = bench.jetstream.run_on_loop(pulls.fetch([FetchRequest(consumer, 5)], 0))
    subjects = {delivery.subject for delivery in found}
    both = {bench.ready("first"), bench.ready("second")}
    assert bench.eventually(lambda: subjects | set(bench.delivery_buffer._jobs) == both)
    assert not any((pulls._fetches, pulls._replies, pulls._unfinished))


# -- what finds no room


def test_what_came_by_itself_and_found_no_room_goes_to_another(bench: FaultBench, other: FaultBench) -> None:
    bench.submit("first")
    worker, rival = bench.enroll(), other.enroll()
    (lease,) = bench.take_when_there(worker, 1)
    assert bench.take(worker) == []  # from now on the next job comes by itself
    other.submit("job")
    assert bench.eventually(lambda: bool(bench.delivery_buffer._jobs)), "it came to one who is busy meanwhile"
    assert other.ids_when_there(rival, 1) == ["job"]
    bench.complete(worker, lease)


def test_of_several_that_came_by_themselves_no_more_are_started_than_there_is_room_for(
    bench: FaultBench, other: FaultBench
) -> None:
    worker, rival = bench.enroll(), other.enroll()
    for priority in PRIORITIES:
        bench.submit(f"first {priority}", priority=priority)
    bench.complete(worker, *bench.take_when_there(worker, len(PRIORITIES)))
    assert bench.take(worker) == []  # from now on the next job of each lane comes by itself
    for priority in PRIORITIES:
        other.submit(f"job {priority}", priority=priority)
    assert bench.eventually(lambda: len(bench.delivery_buffer._jobs) == len(PRIORITIES))
    mine = bench.take(worker, starts=1, ahead=0)
    assert len(mine) == 1
    theirs = other.take_when_there(rival, 2)
    assert {lease.id for lease in (*mine, *theirs)} == {f"job {priority}" for priority in PRIORITIES}


def test_what_was_fetched_and_found_no_room_goes_to_another(bench: FaultBench, other: FaultBench) -> None:
    bench.submit("suspect")
    for _ in range(2):
        victim, _ = bench.take_by_new_worker()
        bench.nats.leave(victim)
        assert bench.nats.sweep(bench.enroll()).rescued == ["suspect"]
    worker, rival = bench.enroll(), other.enroll()
    assert bench.eventually(lambda: bench.take(worker, suspects=False) == [] and bool(bench.delivery_buffer._jobs))
    assert other.ids_when_there(rival, 1) == ["suspect"]


def test_what_one_left_for_lack_of_room_is_started_by_another_at_once(
    bench: FaultBench, other: FaultBench
) -> None:
    bench.submit(*(f"job {number}" for number in range(20)))
    worker, rival = bench.enroll(), other.enroll()
    mine = bench.take_when_there(worker, 1, starts=3, ahead=0)
    theirs = other.take_when_there(rival, 20 - len(mine), starts=20)
    assert len({lease.id for lease in (*mine, *theirs)}) == 20


def test_one_that_leaves_keeps_nothing(bench: FaultBench, other: FaultBench) -> None:
    worker = bench.enroll()
    bench.submit("first")
    bench.complete(worker, *bench.take_when_there(worker, 1))
    assert bench.take(worker) == []
    other.submit("job")
    assert bench.eventually(lambda: bool(bench.delivery_buffer._jobs))
    bench.nats.leave(worker)
    assert other.ids_when_there(other.enroll(), 1) == ["job"]


def test_one_that_was_full_is_woken_by_the_next_job_when_it_has_room_again(
    bench: FaultBench, other: FaultBench
) -> None:
    worker = bench.enroll()
    bench.submit("a", "b")
    taken = bench.look_when_there(lambda: bench.look(worker, starts=2, ahead=0))
    assert len(taken.leases) == 2, "it is full"
    bench.complete(worker, *taken.leases)
    if taken.is_more:  # then it looks again as soon as it has room, and only then
        assert bench.take(worker, starts=2) == []
    before = bench.wakes
    other.submit("job")
    assert bench.is_woken(before)
    assert bench.ids_when_there(worker, 1) == ["job"]


# -- what it could not run


def test_a_lane_of_a_handler_that_a_worker_does_not_know_is_never_pulled_by_it(
    bench: FaultBench, other: FaultBench
) -> None:
    other.submit("strange", type="pong")
    other.submit("known")
    worker = bench.enroll("ping")
    (lease,) = bench.take_when_there(worker, 1, "ping")
    assert (lease.id, bench.take(worker, "ping")) == ("known", [])
    assert bench.consumers().keys() == {bench.lane(type="ping"), f"{bench.names.reminders}>"}
    assert other.ids_when_there(other.enroll("pong"), 1, "pong") == ["strange"]


def test_a_lane_of_a_queue_that_a_worker_does_not_serve_is_never_pulled_by_it(
    bench: FaultBench, other: FaultBench
) -> None:
    other.submit("strange", queue="reports")
    other.submit("known", queue="mail")
    worker = bench.enroll()
    (lease,) = bench.take_when_there(worker, 1, queues=("mail", "orders"))
    assert (lease.id, bench.take(worker, queues=("mail", "orders"))) == ("known", [])
    assert bench.consumers().keys() == {bench.lane(queue="mail"), f"{bench.names.reminders}>"}
    assert other.ids_when_there(other.enroll(), 1) == ["strange"]


def test_queues_whose_names_begin_alike_are_kept_apart(bench: FaultBench) -> None:
    names = ("mail", "mail.urgent", "mail*", "mail=2E", "")
    for name in names:
        bench.submit(f"of {name}", queue=name)
    worker = bench.enroll()
    for name in names:
        assert bench.ids_when_there(worker, 1, queues=(name,)) == [f"of {name}"]
