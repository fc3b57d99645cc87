"""Who may run a job: the living keep what they have, the dead lose it once, and their late words count nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.engines.nats import workers
from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.records import Cause, OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.fault_bench import FaultBench, MakeBench, fault_benches
from tests.nats.servers import Servers
from tests.support import eventually

LEASE_SECONDS = 2.0


@pytest.fixture
def make_bench(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[MakeBench]:
    with fault_benches(nats_server, nats_prefix, tmp_path, lease=LEASE_SECONDS) as make:
        yield make


def deliver_twice(bench: FaultBench) -> None:
    """Let the message of the job come again, though its worker has it."""
    bench.deliver_again("job")


def publish_twice(bench: FaultBench) -> None:
    """Let there be another message of the job: the first one is gone from the server."""
    bench.jetstream.store(bench.ready(), b"")


again = pytest.mark.parametrize("come_again", [deliver_twice, publish_twice])


# -- messages that come again


@again
def test_a_message_that_comes_again_to_the_worker_that_has_its_job_is_adopted(
    bench: FaultBench, come_again: Callable[[FaultBench], None]
) -> None:
    worker, lease = bench.begin()
    before = bench.leases.all()[0].reply
    come_again(bench)
    assert bench.eventually(lambda: bench.take(worker) == [] and bench.leases.all()[0].reply != before)
    assert bench.record().starts == 1
    bench.complete(worker, lease)
    assert bench.eventually(lambda: not bench.has_message(bench.ready())), (
        "the message that was adopted is acknowledged"
    )


@again
def test_a_message_that_comes_to_another_waits_while_the_worker_that_has_its_job_lives(
    bench: FaultBench, other: FaultBench, come_again: Callable[[FaultBench], None]
) -> None:
    worker, lease = bench.begin()
    come_again(bench)
    rival = other.enroll()
    assert other.eventually(lambda: other.take(rival) == [] and is_put_off(bench))
    assert (bench.record().owner, bench.record().starts) == (worker, 1)
    bench.complete(worker, lease)
    assert other.eventually(lambda: other.take(rival) == [] and not bench.has_message(bench.ready()))


def is_put_off(bench: FaultBench) -> bool:
    """Whether the message of the job was given back, to come again later."""
    consumer = bench.consumers()[bench.lane()]
    return bool(consumer["num_redelivered"]) and not consumer["num_pending"]


@again
def test_a_message_that_waits_comes_back_after_the_lease_of_a_worker_that_has_died_since(
    bench: FaultBench, other: FaultBench, come_again: Callable[[FaultBench], None]
) -> None:
    _, stale = bench.begin()
    come_again(bench)
    rival = other.enroll()
    assert other.eventually(lambda: other.take(rival) == [] and is_put_off(bench))
    bench.fall_silent()
    (lease,) = other.take_when_there(rival, 1)
    assert (lease.token, lease.crashes) == (stale.token + 1, 1)


def test_a_job_of_a_dead_worker_comes_back_after_a_lease_without_heartbeat(
    bench: FaultBench, other: FaultBench
) -> None:
    _, stale = bench.begin()
    rival = other.enroll()
    bench.fall_silent()  # its message is not given back: the server waits for an acknowledgement
    (lease,) = other.take_when_there(rival, 1)
    assert (lease.token, lease.crashes) == (stale.token + 1, 1)


# -- the dead


def test_the_job_of_the_dead_is_taken_over_with_a_crash_counted_and_the_late_word_is_refused(
    bench: FaultBench, other: FaultBench
) -> None:
    dead, stale = bench.begin()
    bench.die()
    rival, lease = other.take_by_new_worker()
    record = other.record()
    assert (record.owner, record.token, record.starts, record.crashes) == (rival, stale.token + 1, 2, 1)
    assert [(attempt.number, attempt.cause) for attempt in record.history] == [(1, Cause.CRASH)]
    for kind in (OutcomeKind.COMPLETED, OutcomeKind.RETRY, OutcomeKind.HANDED_BACK):
        assert not bench.settle(dead, stale, kind, due=bench.now)
    assert not bench.report(dead, stale, 0.5)
    assert other.record() == record
    other.complete(rival, lease)
    assert other.status() is JobStatus.COMPLETED


def test_one_that_is_declared_dead_is_told_and_gets_nothing_under_its_old_number(
    bench: FaultBench, other: FaultBench
) -> None:
    worker, stale = bench.begin()
    bench.nats._workers.delete(worker)  # the server lets the sign vanish
    # A purge is a request of its own: the server may answer later messages first.
    assert eventually(lambda: not bench.has_message(bench.names.worker(worker)))
    assert not bench.nats.renew(worker)
    other.submit("next")
    assert not bench.look(worker).is_alive
    assert bench.nats.start(worker, [stale]) == [False]
    assert other.ids_when_there(other.enroll(), 1) == ["next"]


def test_the_crash_that_is_one_too_many_makes_a_dead_letter(bench: FaultBench, make_bench: MakeBench) -> None:
    bench.submit("job")
    for crashes in range(MAX_CRASHES):
        victim = make_bench()
        _, lease = victim.take_by_new_worker()
        assert lease.crashes == crashes
        victim.die()
    worker = bench.enroll()
    assert bench.eventually(lambda: bench.take(worker) == [] and bench.status() is JobStatus.FAILED)
    record = bench.record()
    assert (record.crashes, record.starts, record.owner) == (MAX_CRASHES, MAX_CRASHES, None)
    assert record.error == f"quarantined: {MAX_CRASHES} workers died while they ran it"
    assert bench.nats.sweep(worker).quarantined == ["job"]
    assert not bench.has_message(bench.ready())


def test_a_job_that_the_dead_only_held_is_free_again_without_a_crash(
    bench: FaultBench, other: FaultBench, far_ahead: float
) -> None:
    bench.submit("job", after=far_ahead)
    dead, stale = bench.take_by_new_worker()
    assert not stale.is_started
    bench.die()
    rival, lease = other.take_by_new_worker()
    assert (lease.token, lease.crashes) == (stale.token + 1, 0)
    assert bench.nats.start(dead, [stale]) == [False]
    assert lease.is_started or other.nats.start(rival, [lease]) == [True]
    record = other.record()
    assert (record.owner, record.starts, record.crashes, record.history) == (rival, 1, 0, ())


def test_all_workers_are_listed_however_few_one_request_reads(
    bench: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKERS_PAGE", 2)
    numbers = [bench.enroll() for _ in range(5)]
    assert [record.number for record in bench.nats.workers()] == numbers
