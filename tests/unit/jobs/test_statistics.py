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
    Mainspring,
    SlotKind,
)
from mainspring.testing import time_travel
from tests.support import eventually

START = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://", threads=3, coroutines=5, processes=2) as app:
        yield app


def busy(app: Mainspring) -> dict[SlotKind, tuple[int, int]]:
    return {slots.kind: (slots.busy, slots.slots) for slots in app.statistics().process.slots}


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
    assert found.slots == ()
    assert [pool.name for pool in found.pools] == ["mainspring-control", "mainspring-io", "mainspring-jobs"]
    assert found.timers is not None


def test_the_commits_of_a_process_are_counted_with_their_operations(app: Mainspring) -> None:
    ping = app.job(name="ping")(lambda: None)
    ping.submit_many([()] * 3)
    ping.submit()
    commits = app.statistics().process.commits
    assert commits is not None
    assert (commits.commits, commits.operations) == (2, 4)
    assert commits.seconds > 0


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
