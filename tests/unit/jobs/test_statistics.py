"""`app.statistics()`: one snapshot of the store and of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest

from mainspring import (
    Concurrency,
    EngineUnavailable,
    GroupStatistics,
    Mainspring,
    SlotKind,
    Statistics,
    UpcomingSlot,
)
from mainspring.jobs.statistics import JobGroup, JobsInSlot, ProcessStatistics, to_groups, to_slot
from mainspring.testing import time_travel
from tests.support import eventually

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOBODY = ProcessStatistics(slots=(), timers=None, pools=(), commits=None)


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://", threads=3, coroutines=5, processes=2) as app:
        yield app


def group(queue: str, type_: str = "ping", **counts: object) -> GroupStatistics:
    none = {"due": 0, "blocked": 0, "scheduled": 0, "running": 0, "dead_letters": 0}
    ages = {"oldest_due": None, "oldest_blocked": None, "is_exact": True}
    return GroupStatistics(queue=queue, type=type_, **(none | ages | counts))  # type: ignore[arg-type]


def snapshot(*groups: GroupStatistics, paused: tuple[str, ...] = ()) -> Statistics:
    return Statistics(at=START, groups=groups, paused_queues=paused, workers=0, fullest_slot=None, process=NOBODY)


def busy(app: Mainspring) -> dict[SlotKind, tuple[int, int]]:
    return {slots.kind: (slots.busy, slots.slots) for slots in app.statistics().process.slots}


# -- totals


def test_totals_are_the_sums_of_the_groups() -> None:
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    found = snapshot(
        group("mail", due=2, blocked=3, oldest_due=minute, oldest_blocked=hour),
        group("mail", "pong", scheduled=5, running=1, is_exact=False),
        group("orders", due=7, dead_letters=11, oldest_due=hour),
        paused=("mail",),
    )
    assert (found.due, found.blocked, found.scheduled, found.running, found.dead_letters) == (9, 3, 5, 1, 11)
    assert (found.oldest_due, found.oldest_blocked, found.is_exact) == (hour, hour, False)
    assert found.queues == ("mail", "orders")
    mail, orders = found.queue("mail"), found.queue("orders")
    assert (mail.due, mail.blocked, mail.scheduled, mail.running, mail.dead_letters) == (2, 3, 5, 1, 0)
    assert (mail.oldest_due, mail.oldest_blocked, mail.is_exact, mail.is_paused) == (minute, hour, False, True)
    assert (orders.due, orders.dead_letters, orders.is_exact, orders.is_paused) == (7, 11, True, False)


def test_a_queue_without_jobs_has_none() -> None:
    found = snapshot(paused=("quiet",)).queue("quiet")
    assert (found.due, found.blocked, found.scheduled, found.oldest_due, found.is_exact) == (0, 0, 0, None, True)
    assert found.is_paused
    assert snapshot().oldest_due is None


def test_instants_of_an_engine_become_ages() -> None:
    found = to_groups([JobGroup("q", "t", 1, 2, 3, 4, 5, 700, 200, is_exact=False)], 1_000)
    assert found == (
        GroupStatistics(
            queue="q",
            type="t",
            due=1,
            blocked=2,
            scheduled=3,
            running=4,
            dead_letters=5,
            oldest_due=timedelta(microseconds=300),
            oldest_blocked=timedelta(microseconds=800),
            is_exact=False,
        ),
    )
    (later,) = to_groups([JobGroup("q", "t", 1, 0, 0, 0, 0, 1_005, None, is_exact=True)], 1_000)
    assert (later.oldest_due, later.oldest_blocked) == (timedelta(0), None)


@pytest.mark.parametrize(
    ("jobs", "average", "is_hot"),
    [(999, 0.0, False), (1_000, 0.0, True), (1_000, 100.0, True), (1_000, 100.1, False), (5_000, 400.0, True)],
)
def test_a_slot_is_hot_if_it_has_many_jobs_and_far_more_than_others(
    jobs: int,
    average: float,
    is_hot: bool,  # noqa: FBT001
) -> None:
    slot = to_slot(JobsInSlot("q", "t", 0, jobs, 3, average))
    assert slot == UpcomingSlot(
        queue="q", type="t", at=datetime(1970, 1, 1, tzinfo=UTC), jobs=jobs, at_once=3, average=average
    )
    assert slot.is_hot is is_hot
    assert to_slot(None) is None


# -- the store


def test_jobs_are_due_scheduled_and_then_gone(app: Mainspring) -> None:
    @app.job(name="ping", queue="orders")
    def ping() -> None: ...

    with time_travel(app, start=START) as travel:
        ping.after(timedelta(minutes=30)).submit_many([()] * 500)
        found = app.statistics()
        assert (found.due, found.blocked, found.scheduled, found.at) == (0, 0, 500, START)
        assert found.fullest_slot is not None
        assert (found.fullest_slot.jobs, found.fullest_slot.at_once) == (500, 500)
        assert found.fullest_slot.at <= START + timedelta(minutes=30)
        app.queue("orders").pause()
        travel.fast_forward(minutes=40)
        found = app.statistics()
        assert (found.due, found.blocked, found.paused_queues) == (0, 500, ("orders",))
        assert (found.oldest_due, found.oldest_blocked) == (None, timedelta(minutes=10))
        app.queue("orders").resume()
        travel.fast_forward(seconds=1)
        assert app.statistics().groups == ()


def test_jobs_behind_a_hung_head_are_blocked(app: Mainspring) -> None:
    began, release = Event(), Event()

    @app.job(name="step")
    def step() -> None:
        began.set()
        release.wait()

    with app.running():
        step.options(sequence="order-42").submit()
        assert eventually(began.is_set)
        for _ in range(12):
            step.options(sequence="order-42").submit()
        found = app.statistics()
        assert (found.due, found.blocked, found.running, found.workers) == (0, 12, 1, 1)
        release.set()


def test_the_numbers_agree_with_lists_and_counts(app: Mainspring) -> None:
    @app.job(name="ping", concurrency=Concurrency(1))
    def ping() -> None: ...

    ping.submit_many([()] * 3)
    ping.after(60).submit_many([()] * 4)
    found = app.statistics()
    counts = app.counts()
    assert found.due + found.blocked + found.scheduled == counts["PENDING"] == 7
    assert app.queue("default").statistics().pending == 7
    assert (found.running, found.dead_letters) == (counts["RUNNING"], counts["FAILED"])


# -- this process


def test_a_process_without_a_worker_has_no_slots(app: Mainspring) -> None:
    found = app.statistics().process
    assert (found.slots, found.commits) == ((), None)
    assert [pool.name for pool in found.pools] == ["mainspring-control", "mainspring-io", "mainspring-jobs"]
    assert found.timers is not None


def test_slots_are_busy_while_handlers_run(app: Mainspring) -> None:
    release = Event()
    gates: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @app.job(name="on_thread")
    def on_thread() -> None:
        release.wait()

    @app.job(name="on_loop")
    async def on_loop() -> None:
        gate = asyncio.Event()
        gates.append((asyncio.get_running_loop(), gate))
        await gate.wait()

    with app.running():
        assert busy(app) == {
            SlotKind.THREADS: (0, 3),
            SlotKind.COROUTINES: (0, 5),
            SlotKind.PROCESSES: (0, 2),
        }
        on_thread.submit_many([()] * 7)
        on_loop.submit_many([()] * 2)
        assert eventually(lambda: busy(app)[SlotKind.THREADS] == (3, 3))
        assert eventually(lambda: len(gates) == 2)
        assert busy(app)[SlotKind.COROUTINES] == (2, 5)
        assert app.statistics().workers == 1
        release.set()
        for loop, gate in gates:
            loop.call_soon_threadsafe(gate.set)
        assert eventually(lambda: busy(app)[SlotKind.THREADS] == (0, 3))
        assert eventually(lambda: busy(app)[SlotKind.COROUTINES] == (0, 5))
    assert app.statistics().process.slots == ()


def test_a_call_of_a_batch_handler_occupies_one_slot(app: Mainspring) -> None:
    began, release = Event(), Event()

    @app.job(name="many", batch=10)
    def many(numbers: list[int]) -> None:
        began.set()
        release.wait()

    many.submit_many([(number,) for number in range(10)])
    with app.running():
        assert eventually(began.is_set)
        assert busy(app)[SlotKind.THREADS] == (1, 3)
        release.set()


def test_the_timers_of_a_worker_are_counted(app: Mainspring) -> None:
    began, release = Event(), Event()

    @app.job(name="slow", timeout=86_400)
    def slow() -> None:
        began.set()
        release.wait()

    before = app.statistics().process.timers
    with app.running():
        slow.submit()
        assert eventually(began.is_set)
        timers = app.statistics().process.timers
        release.set()
    assert before is not None
    assert timers is not None
    assert timers.pending > before.pending
    assert timers.occupancy[1] >= 1  # the timeout in a day
    assert timers.fullest_slots[1] >= 1


# -- other ways to call it


def test_an_event_loop_gets_the_same(app: Mainspring) -> None:
    @app.job(name="ping")
    def ping() -> None: ...

    ping.after(3_600).submit_many([()] * 3)
    found = asyncio.run(app.statistics_async())
    assert (found.scheduled, found.groups) == (3, app.statistics().groups)


def test_a_closed_manager_refuses(app: Mainspring) -> None:
    manager = app.manager()
    app.close()
    with pytest.raises(EngineUnavailable):
        manager.statistics()
