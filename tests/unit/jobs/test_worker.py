"""A worker: nothing too early, in order, no more at once than it has slots, and a cancelled job never runs."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from threading import Lock

import pytest

from mainspring import Job, JobStatus, Mainspring, Priority, current_job
from mainspring.testing import ManualClock, TimeTravel, time_travel
from tests.support import Gate
from tests.unit.jobs.workshop import Workshop, workshop


@pytest.fixture
def travel(app: Mainspring) -> Iterator[TimeTravel]:
    with time_travel(app) as travel:
        yield travel


@pytest.fixture
def shop(clock: ManualClock) -> Iterator[Workshop]:
    """One thread for handlers, on memory."""
    with workshop(clock, threads=1) as shop:
        yield shop


# -- time


@pytest.mark.parametrize("delay", [0, 0.0005, 0.009, 0.01, 0.0101, 0.5, 1, 1.005, 1.5, 60, 86_400])
def test_a_job_starts_at_its_due_time_and_not_before(app: Mainspring, travel: TimeTravel, delay: float) -> None:
    started: list[timedelta] = []
    begin = travel.now

    @app.job
    def handler() -> None:
        started.append(travel.now - begin)

    handle = handler.after(delay).submit()
    travel.fast_forward(delay)
    assert started == [timedelta(seconds=delay)]
    assert handle.info().lateness == 0


def test_one_microsecond_before_its_due_time_a_job_has_not_begun(app: Mainspring, travel: TimeTravel) -> None:
    ran: list[str] = []

    @app.job
    def handler() -> None:
        ran.append(current_job().id)

    handle = handler.after(5).submit()
    travel.fast_forward(timedelta(seconds=5, microseconds=-1))
    assert ran == []
    travel.fast_forward(timedelta(microseconds=1))
    assert ran == [handle.id]


def test_jobs_run_in_the_order_of_their_due_times(url: str) -> None:
    with Mainspring(url, threads=1) as app:
        seen: list[float] = []

        @app.job
        def handler(delay: float) -> None:
            seen.append(delay)

        with time_travel(app) as travel:
            delays = [7, 0.5, 3600, 2, 0.02, 61, 0, 1.5]
            for delay in delays:
                handler.after(delay).submit(delay)
            travel.fast_forward(hours=1)
        assert seen == sorted(delays)


def test_jobs_with_one_due_time_run_in_the_order_of_their_submit(url: str) -> None:
    with Mainspring(url, threads=1) as app:
        seen: list[int] = []

        @app.job
        def handler(number: int) -> None:
            seen.append(number)

        with time_travel(app) as travel:
            handler.at(travel.now + timedelta(hours=1)).submit_many([(number,) for number in range(100)])
            travel.fast_forward(hours=2)
        assert seen == list(range(100))


def test_a_more_urgent_job_of_the_same_instant_goes_first(url: str) -> None:
    with Mainspring(url, threads=1) as app:
        seen: list[Priority] = []

        @app.job
        def handler(priority: Priority) -> None:
            seen.append(priority)

        with time_travel(app) as travel:
            manager = app.manager()
            manager.shutdown(0)
            for priority in Priority:
                handler.options(priority=priority).submit(priority)
            manager.start()
            travel.settle()
        assert seen == [Priority.USER_BLOCKING, Priority.USER_VISIBLE, Priority.BEST_EFFORT]


def test_overdue_jobs_run_oldest_first_and_do_not_starve_new_urgent_ones(url: str) -> None:
    with Mainspring(url, threads=1) as app:
        seen: list[int | str] = []

        @app.job
        def old(number: int) -> None:
            seen.append(number)
            if number == 10:
                urgent.options(priority=Priority.USER_BLOCKING).submit()

        @app.job
        def urgent() -> None:
            seen.append("urgent")

        with time_travel(app) as travel:
            manager = app.manager()
            manager.shutdown(0)
            old.submit_many([(number,) for number in range(1_500)])
            travel.fast_forward(days=3)
            manager.start()
            travel.settle()
        assert [job for job in seen if job != "urgent"] == list(range(1_500))
        assert seen.index("urgent") < 700


# -- slots


def test_no_more_handlers_run_at_once_than_there_are_threads(url: str) -> None:
    with Mainspring(url, threads=3) as app:
        counts = {"now": 0, "most": 0}
        lock = Lock()

        @app.job
        def handler() -> None:
            with lock:
                counts["now"] += 1
                counts["most"] = max(counts["most"], counts["now"])
            current_job()
            with lock:
                counts["now"] -= 1

        with time_travel(app) as travel:
            handler.submit_many([()] * 500)
            travel.settle()
            assert app.counts()[JobStatus.COMPLETED] == 500
        assert counts["most"] <= 3


def test_no_more_coroutines_run_at_once_than_allowed(url: str) -> None:
    with Mainspring(url, coroutines=3) as app:
        counts = {"now": 0, "most": 0}

        @app.job
        async def handler() -> None:
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
            for _ in range(5):
                await asyncio.sleep(0)
            counts["now"] -= 1

        with time_travel(app) as travel:
            handler.submit_many([()] * 100)
            travel.settle()
            assert app.counts()[JobStatus.COMPLETED] == 100
        assert 1 < counts["most"] <= 3


def test_only_the_queues_asked_for_are_served(url: str) -> None:
    with Mainspring(url, queues=["orders"]) as app:
        seen: list[str] = []

        @app.job
        def handler(name: str) -> None:
            seen.append(name)

        with time_travel(app) as travel:
            for queue in ("mail", "orders"):
                handler.options(queue=queue).submit(queue)
            travel.fast_forward(minutes=1)
            assert app.counts(queue="mail")[JobStatus.PENDING] == 1
        assert seen == ["orders"]


def test_a_job_that_is_due_and_finds_no_slot_is_handed_back_as_if_never_taken(shop: Workshop) -> None:
    gate, ran = Gate(), Gate()
    ran.open()
    shop.manager.register("gate", gate.__call__)
    shop.manager.register("ping", ran.__call__)
    shop.manager.start()
    held = shop.manager.submit("ping", delay=0.5)
    shop.clock.settle()
    shop.manager.submit("gate")
    gate.wait_until_entered()
    shop.clock.jump(0.5)
    shop.engine.wait_for("start")
    assert shop.manager.get(held).status is JobStatus.RUNNING
    shop.clock.jump(0.2)
    (outcome,) = shop.engine.wait_for("settle")
    assert outcome.lease.id == held
    info = shop.manager.get(held)
    assert (info.status, info.starts, info.attempts, info.history) == (JobStatus.PENDING, 0, 0, ())
    gate.open()
    ran.wait_until_entered()


def test_a_worker_holds_only_a_few_jobs_ahead_of_their_time(shop: Workshop) -> None:
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    for _ in range(50):
        shop.manager.submit("ping", delay=0.9)
    shop.clock.settle()
    assert 0 < len(shop.manager.active_jobs()) <= 8
    shop.clock.advance(1)
    assert shop.manager.counts()[JobStatus.COMPLETED] == 50


def test_jobs_that_are_far_away_are_not_in_memory(shop: Workshop) -> None:
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.manager.submit("ping", delay=3_600)
    shop.clock.advance(3_500)
    assert shop.manager.active_jobs() == ()


# -- cancelling


def test_a_job_that_is_held_and_cancelled_never_runs(app: Mainspring, travel: TimeTravel) -> None:
    ran: list[str] = []

    @app.job
    def handler() -> None:
        ran.append(current_job().id)

    handle = handler.after(0.5).submit()
    travel.settle()
    assert handle.info().worker is not None
    assert handle.cancel()
    travel.fast_forward(minutes=1)
    assert (handle.status(), ran) == (JobStatus.CANCELED, [])
    assert app.manager().active_jobs() == ()


def test_a_start_that_the_store_refuses_is_no_start(shop: Workshop) -> None:
    ran: list[str] = []
    shop.manager.register("ping", lambda: ran.append(current_job().id))
    shop.manager.start()
    ids = [shop.manager.submit("ping", delay=0.5) for _ in range(2)]
    shop.clock.settle()
    shop.engine.fail("take", 1_000)  # so that the worker learns of it only when it starts the job
    assert shop.manager.cancel(ids[0])
    shop.clock.advance(0.5)
    assert ran == [ids[1]]
    assert shop.manager.get(ids[0]).starts == 0


@pytest.mark.parametrize("delay", [0.5, 60])
def test_a_cancelled_job_leaves_its_neighbours_alone(app: Mainspring, travel: TimeTravel, delay: float) -> None:
    ran: list[int] = []

    @app.job
    def handler(number: int) -> None:
        ran.append(number)

    handles = [handler.after(delay).submit(number) for number in range(4)]
    travel.settle()
    handles[1].cancel()
    travel.fast_forward(minutes=2)
    assert sorted(ran) == [0, 2, 3]


def test_a_running_job_that_looks_is_stopped(shop: Workshop) -> None:
    gate = Gate()

    def handler() -> None:
        gate()
        if current_job().cancelled:
            raise InterruptedError("half way")

    shop.manager.register("loop", handler)
    shop.manager.start()
    job = shop.manager.submit("loop")
    gate.wait_until_entered()
    shop.engine.wait_for("take")
    assert shop.manager.cancel(job) is False
    shop.engine.wait_for("take")  # in which it is told of the stop
    shop.manager.active_jobs()
    gate.open()
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.CANCELED
    assert shop.manager.get(job).error == "stopped on request (InterruptedError: half way)"


def test_a_running_coroutine_is_cancelled(shop: Workshop) -> None:
    gate = Gate()
    gate.open()

    async def handler() -> None:
        gate()
        await asyncio.Event().wait()

    shop.manager.register("forever", handler)
    shop.manager.start()
    job = shop.manager.submit("forever")
    gate.wait_until_entered()
    assert shop.manager.cancel(job) is False
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.CANCELED


def test_a_job_that_ends_in_spite_of_a_request_to_stop_has_completed(shop: Workshop) -> None:
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.start()
    job = shop.manager.submit("gate")
    gate.wait_until_entered()
    shop.manager.cancel(job)
    gate.open()
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.COMPLETED


def test_a_job_that_fails_after_a_request_to_stop_is_not_tried_again(shop: Workshop) -> None:
    gate = Gate()

    def handler() -> None:
        gate()
        raise ValueError("no")

    shop.manager.register("fails", handler)
    shop.manager.start()
    job = shop.manager.submit("fails")
    gate.wait_until_entered()
    shop.manager.cancel(job)
    gate.open()
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.CANCELED


# -- handlers


def test_a_worker_leaves_the_jobs_of_an_unknown_handler_to_one_that_knows_it(
    shop: Workshop, clock: ManualClock
) -> None:
    shop.manager.start()
    with workshop(clock, shop.engine) as deployed_later:
        deployed_later.manager.register("shop.new", lambda: None)
        job = deployed_later.manager.submit("shop.new")
        clock.advance(minutes=5)
        before = shop.manager.get(job)
        deployed_later.manager.start()
        clock.settle()
        after = shop.manager.get(job)
    assert (before.status, before.starts) == (JobStatus.PENDING, 0)
    assert (after.status, after.starts) == (JobStatus.COMPLETED, 1)


def test_a_handler_registered_while_the_worker_runs_gets_its_jobs(app: Mainspring, travel: TimeTravel) -> None:
    @app.job
    def late() -> int:
        return 7

    handle = late.submit()
    travel.settle()
    assert handle.result() == 7


def test_handlers_submit_jobs_themselves(app: Mainspring, travel: TimeTravel) -> None:
    seen: list[int] = []

    @app.job
    def countdown(number: int) -> None:
        seen.append(number)
        if number:
            again: Job[[int], None] = countdown.after(60)
            again.submit(number - 1)

    countdown.submit(5)
    travel.fast_forward(minutes=10)
    assert seen == [5, 4, 3, 2, 1, 0]
