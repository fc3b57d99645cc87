"""Who may run a job: the living keep what they have, the dead lose it once, and their late words count nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.records import Cause, OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.rig import MakeRig, Rig, rigs
from tests.nats.servers import Servers

LEASE_SECONDS = 2.0


@pytest.fixture
def make_rig(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[MakeRig]:
    with rigs(nats_server, nats_prefix, tmp_path, lease=LEASE_SECONDS) as make:
        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


@pytest.fixture
def other(make_rig: MakeRig) -> Rig:
    return make_rig()


def deliver_twice(rig: Rig) -> None:
    """Let the message of the job come again, though its worker has it."""
    rig.deliver_again("job")


def publish_twice(rig: Rig) -> None:
    """Let there be another message of the job: the first one is gone from the server."""
    rig.link.store(rig.ready(), b"")


again = pytest.mark.parametrize("come_again", [deliver_twice, publish_twice])


# -- messages that come again


@again
def test_a_message_that_comes_again_to_the_worker_that_has_its_job_is_adopted(
    rig: Rig, come_again: Callable[[Rig], None]
) -> None:
    worker, lease = rig.begin()
    before = rig.hands.all()[0].reply
    come_again(rig)
    assert rig.eventually(lambda: rig.take(worker) == [] and rig.hands.all()[0].reply != before)
    assert rig.record().starts == 1
    rig.complete(worker, lease)
    assert rig.eventually(lambda: not rig.holds(rig.ready())), "the message that was adopted is acknowledged"


@again
def test_a_message_that_comes_to_another_waits_while_the_worker_that_has_its_job_lives(
    rig: Rig, other: Rig, come_again: Callable[[Rig], None]
) -> None:
    worker, lease = rig.begin()
    come_again(rig)
    rival = other.enroll()
    assert other.eventually(lambda: other.take(rival) == [] and is_put_off(rig))
    assert (rig.record().owner, rig.record().starts) == (worker, 1)
    rig.complete(worker, lease)
    assert other.eventually(lambda: other.take(rival) == [] and not rig.holds(rig.ready()))


def is_put_off(rig: Rig) -> bool:
    """Whether the message of the job was given back, to come again later."""
    consumer = rig.consumers()[rig.lane()]
    return bool(consumer["num_redelivered"]) and not consumer["num_pending"]


@again
def test_a_message_that_waits_comes_back_after_the_lease_of_a_worker_that_has_died_since(
    rig: Rig, other: Rig, come_again: Callable[[Rig], None]
) -> None:
    _, stale = rig.begin()
    come_again(rig)
    rival = other.enroll()
    assert other.eventually(lambda: other.take(rival) == [] and is_put_off(rig))
    rig.fall_silent()
    (lease,) = other.take_when_there(rival, 1)
    assert (lease.token, lease.crashes) == (stale.token + 1, 1)


def test_a_job_of_a_dead_worker_comes_back_after_a_lease_without_heartbeat(rig: Rig, other: Rig) -> None:
    _, stale = rig.begin()
    rival = other.enroll()
    rig.fall_silent()  # its message is not given back: the server waits for an acknowledgement
    (lease,) = other.take_when_there(rival, 1)
    assert (lease.token, lease.crashes) == (stale.token + 1, 1)


# -- the dead


def test_the_job_of_the_dead_is_taken_over_with_a_crash_counted_and_the_late_word_is_refused(
    rig: Rig, other: Rig
) -> None:
    dead, stale = rig.begin()
    rig.die()
    rival, lease = other.take_by_new_worker()
    record = other.record()
    assert (record.owner, record.token, record.starts, record.crashes) == (rival, stale.token + 1, 2, 1)
    assert [(attempt.number, attempt.cause) for attempt in record.history] == [(1, Cause.CRASH)]
    for kind in (OutcomeKind.COMPLETED, OutcomeKind.RETRY, OutcomeKind.HANDED_BACK):
        assert not rig.settle(dead, stale, kind, due=rig.now)
    assert not rig.report(dead, stale, 0.5)
    assert other.record() == record
    other.complete(rival, lease)
    assert other.status() is JobStatus.COMPLETED


def test_one_that_is_declared_dead_is_told_and_gets_nothing_under_its_old_number(rig: Rig, other: Rig) -> None:
    worker, stale = rig.begin()
    rig.nats._workers.forget(worker)  # the server lets the sign vanish
    rig.in_order()
    assert not rig.nats.renew(worker)
    other.submit("next")
    assert not rig.look(worker).is_alive
    assert rig.nats.start(worker, [stale]) == [False]
    assert other.ids_when_there(other.enroll(), 1) == ["next"]


def test_the_crash_that_is_one_too_many_makes_a_dead_letter(rig: Rig, make_rig: MakeRig) -> None:
    rig.submit("job")
    for crashes in range(MAX_CRASHES):
        victim = make_rig()
        _, lease = victim.take_by_new_worker()
        assert lease.crashes == crashes
        victim.die()
    worker = rig.enroll()
    assert rig.eventually(lambda: rig.take(worker) == [] and rig.status() is JobStatus.FAILED)
    record = rig.record()
    assert (record.crashes, record.starts, record.owner) == (MAX_CRASHES, MAX_CRASHES, None)
    assert record.error == f"quarantined: {MAX_CRASHES} workers died while they ran it"
    assert rig.nats.sweep(worker).quarantined == ["job"]
    assert not rig.holds(rig.ready())


def test_a_job_that_the_dead_only_held_is_free_again_without_a_crash(
    rig: Rig, other: Rig, far_ahead: float
) -> None:
    rig.submit("job", after=far_ahead)
    dead, stale = rig.take_by_new_worker()
    assert not stale.is_started
    rig.die()
    rival, lease = other.take_by_new_worker()
    assert (lease.token, lease.crashes) == (stale.token + 1, 0)
    assert rig.nats.start(dead, [stale]) == [False]
    assert lease.is_started or other.nats.start(rival, [lease]) == [True]
    record = other.record()
    assert (record.owner, record.starts, record.crashes, record.history) == (rival, 1, 0, ())
