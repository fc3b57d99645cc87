"""A worker: nothing too early, in order, no more at once than it has slots."""

import asyncio
from datetime import timedelta
from threading import Barrier, Lock

import pytest

from mainspring import JobFunction, JobStatus, Mainspring, Priority, Retry, current_job
from mainspring.jobs.records import OutcomeKind
from mainspring.testing import ManualClock, TimeTravel, time_travel
from tests.support import PATIENCE, Gate
from tests.unit.jobs.call_log import START
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager


@pytest.fixture
def threads() -> int:
    return 1


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


@pytest.mark.parametrize("stepped_at", [0, 0.495], ids=["while it is held", "while it is about to start"])
def test_a_wall_clock_set_back_a_little_starts_nothing_early(shop: ManagerFixture, stepped_at: float) -> None:
    ran: list[str] = []
    shop.manager.register("ping", lambda: ran.append(current_job().id))
    shop.manager.start()
    job = shop.manager.submit("ping", delay=0.5)
    shop.clock.settle()
    shop.clock.advance(stepped_at)
    shop.clock.step_wall(-0.05)  # too little for jobs to be timed anew
    shop.clock.advance(0.549 - stepped_at)
    before = list(ran)
    shop.clock.advance(0.001)
    assert (before, ran) == ([], [job])


def test_jobs_run_in_the_order_of_their_due_times(url: str) -> None:
    with Mainspring(url, threads=1) as app:
        seen: list[float] = []

        @app.job
        def handler(delay: float) -> None:
            seen.append(delay)

        with time_travel(app, start=START) as travel:
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

        with time_travel(app, start=START) as travel:
            handler.at(travel.now + timedelta(hours=1)).submit_many([(number,) for number in range(100)])
            travel.fast_forward(hours=2)
        assert seen == list(range(100))


def test_a_more_urgent_job_of_the_same_instant_goes_first(url: str) -> None:
    with Mainspring(url, threads=1) as app:
        seen: list[Priority] = []

        @app.job
        def handler(priority: Priority) -> None:
            seen.append(priority)

        with time_travel(app, start=START) as travel:
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

        with time_travel(app, start=START) as travel:
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
        meeting = Barrier(3)

        @app.job
        def handler(number: int) -> None:
            with lock:
                counts["now"] += 1
                counts["most"] = max(counts["most"], counts["now"])
            if number < 3:
                meeting.wait(PATIENCE)  # until as many run as there are threads
            with lock:
                counts["now"] -= 1

        with time_travel(app, start=START) as travel:
            handler.submit_many([(number,) for number in range(500)])
            travel.settle()
            assert app.counts()[JobStatus.COMPLETED] == 500
        assert counts["most"] == 3


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

        with time_travel(app, start=START) as travel:
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

        with time_travel(app, start=START) as travel:
            for queue in ("mail", "orders"):
                handler.options(queue=queue).submit(queue)
            travel.fast_forward(minutes=1)
            assert app.counts(queue="mail")[JobStatus.PENDING] == 1
        assert seen == ["orders"]


def test_a_job_that_is_due_and_finds_no_slot_is_handed_back_as_if_never_taken(shop: ManagerFixture) -> None:
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
    (outcome,) = shop.wait_for_hand_back()
    assert outcome.lease.id == held
    info = shop.manager.get(held)
    assert (info.status, info.starts, info.attempts, info.history) == (JobStatus.PENDING, 0, 0, ())
    gate.open()
    ran.wait_until_entered()


def test_what_runs_is_not_handed_back_with_what_waits(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.start()
    ids = {shop.manager.submit("gate", delay=0.5) for _ in range(2)}
    shop.clock.settle()
    shop.clock.jump(0.5)
    gate.wait_until_entered()
    shop.engine.wait_for("start")
    (outcome,) = shop.wait_for_hand_back()
    (other,) = ids - {outcome.lease.id}
    assert outcome.kind is OutcomeKind.HANDED_BACK
    assert shop.manager.get(other).status is JobStatus.RUNNING
    gate.open()


def test_a_job_that_came_while_all_threads_were_busy_runs_when_it_is_due(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.manager.submit("gate")
    gate.wait_until_entered()
    job = shop.manager.submit("ping", delay=5)
    while not any(taken.next_due for taken in shop.engine.taken):  # a look without room has seen it
        shop.engine.wait_for("take")
    gate.open()
    shop.clock.advance(5)
    assert shop.manager.get(job).status is JobStatus.COMPLETED


def test_a_job_that_is_due_again_at_once_is_found_by_the_worker_that_had_no_room(shop: ManagerFixture) -> None:
    attempts: list[int] = []

    def handler() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) < 3:
            raise Retry.Later(0)

    shop.manager.register("again", handler)
    shop.manager.start()
    shop.manager.submit("again")
    shop.clock.settle()
    assert attempts == [1, 2, 3]


def test_a_worker_holds_only_a_few_jobs_ahead_of_their_time(shop: ManagerFixture) -> None:
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    for _ in range(50):
        shop.manager.submit("ping", delay=0.9)
    shop.clock.settle()
    assert 0 < len(shop.manager.active_jobs()) <= 8
    shop.clock.advance(1)
    assert shop.manager.counts()[JobStatus.COMPLETED] == 50


def test_jobs_that_are_far_away_are_not_in_memory(shop: ManagerFixture) -> None:
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.manager.submit("ping", delay=3_600)
    shop.clock.advance(3_500)
    assert shop.manager.active_jobs() == ()


# -- handlers


def test_a_worker_leaves_the_jobs_of_an_unknown_handler_to_one_that_knows_it(
    shop: ManagerFixture, clock: ManualClock
) -> None:
    shop.manager.start()
    with running_manager(clock, shop.engine) as deployed_later:
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
            again: JobFunction[[int], None] = countdown.after(60)
            again.submit(number - 1)

    countdown.submit(5)
    travel.fast_forward(minutes=10)
    assert seen == [5, 4, 3, 2, 1, 0]
