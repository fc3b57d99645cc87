"""Handlers on all threads at once: how many run, and for how long a due job waits for one of them to end.

The handlers wait for a task that is due at a later instant of the manual clock. Such a handler counts as at rest,
so `advance` returns when nothing can change any more: the counts below are exact.
"""

from collections.abc import Callable, Iterator

import pytest

from mainspring import JobStatus, TaskFuture, ThreadPool, current_job
from mainspring.jobs.records import OutcomeKind
from mainspring.testing import ManualClock
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager

PATIENCE = 0.1  # seconds that a due job waits for a slot
MICROSECOND = 1e-6
LONG = 60.0


class Crowd:
    """Handlers that run until the alarm."""

    def __init__(self, alarm: TaskFuture[None]) -> None:
        self._alarm = alarm
        self.members: list[str] = []

    def __call__(self) -> None:
        self.members.append(current_job().id)
        self._alarm.result()


@pytest.fixture
def make_crowd(clock: ManualClock) -> Iterator[Callable[[], Crowd]]:
    with ThreadPool(1, clock=clock) as pool:
        yield lambda: Crowd(pool.submit(lambda: None, delay=LONG))


@pytest.mark.parametrize("threads", [1, 3])
def test_as_many_handlers_run_at_once_as_there_are_threads_and_no_more(
    clock: ManualClock, make_crowd: Callable[[], Crowd], threads: int
) -> None:
    crowd = make_crowd()
    with running_manager(clock, threads=threads) as shop:
        shop.manager.register("crowd", crowd)
        shop.manager.start()
        for _ in range(4 * threads):  # as many as are held ahead of their time
            shop.manager.submit("crowd", delay=0.5)
        clock.advance(0.5)
        assert shop.manager.counts()[JobStatus.RUNNING] == 4 * threads  # the starts of all were stored
        assert len(crowd.members) == threads
        clock.advance(LONG)


def late_job(shop: ManagerFixture, crowd: Crowd) -> str:
    """Occupy the only thread, and let another job become due; return its id."""
    shop.manager.register("crowd", crowd)
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    job = shop.manager.submit("ping", delay=0.5)
    shop.clock.settle()  # it is held
    shop.manager.submit("crowd")
    shop.clock.advance(0.5)
    assert shop.manager.get(job).status is JobStatus.RUNNING  # its start was stored, and it waits for the thread
    return job


def test_a_due_job_waits_for_a_slot_until_its_patience_ends(
    clock: ManualClock, make_crowd: Callable[[], Crowd]
) -> None:
    with running_manager(clock, threads=1) as shop:
        job = late_job(shop, make_crowd())
        clock.advance(PATIENCE - MICROSECOND)
        assert (shop.manager.get(job).status, len(shop.manager.active_jobs())) == (JobStatus.RUNNING, 2)
        clock.advance(MICROSECOND)
        outcome = shop.wait_for_outcome()
        assert (outcome.lease.id, outcome.kind) == (job, OutcomeKind.HANDED_BACK)
        assert (shop.manager.get(job).status, len(shop.manager.active_jobs())) == (JobStatus.PENDING, 1)
        clock.advance(LONG)
        assert shop.manager.get(job).status is JobStatus.COMPLETED


def test_a_due_job_that_finds_a_slot_in_time_is_not_handed_back(
    clock: ManualClock, make_crowd: Callable[[], Crowd]
) -> None:
    with running_manager(clock, threads=1) as shop:
        crowd = make_crowd()
        clock.advance(LONG - 0.5 - PATIENCE / 2)  # the thread is free half of the patience after the job is due
        job = late_job(shop, crowd)
        clock.advance(PATIENCE)
        assert shop.manager.get(job).status is JobStatus.COMPLETED
        kinds: list[OutcomeKind] = []
        while len(kinds) < 2:  # both may be stored at once
            kinds += [outcome.kind for outcome in shop.engine.wait_for("settle")]
        assert kinds == [OutcomeKind.COMPLETED, OutcomeKind.COMPLETED]
